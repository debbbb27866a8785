"""Canonical bytes back to what a chat template or a tokenizer takes: messages, tools, plain texts.

Owns the reading of frames that `epp.apis.canonical` writes; knows no API and no template. What canonical
form has dropped is not there: of media only their tokens are known.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from epp.apis.body_values import too_many_values
from epp.apis.canonical import MEDIA_BYTES_PER_TOKEN
from epp.apis.decode import decoder

_MARK = b"\xff"
_DECODE = decoder(Any).decode
_REASONING, _REFUSAL = "reasoning_content", "refusal"


@dataclass(slots=True)
class PromptContent:
    """A prompt's parts.

    Attributes:
        texts: prompts given as text, each tokenized for itself.
        messages: a chat's messages, as chat templates take them.
        tools: descriptions of tools.
        documents: documents that some templates take.
        chat_template: the client's own template, ``""`` for the model's.
        media_tokens: estimate for images, recordings and files, of which nothing is in the text.
    """

    texts: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    documents: list[Any] = field(default_factory=list)
    chat_template: str = ""
    media_tokens: int = 0


def frames(canonical: bytes) -> list[bytes]:
    """The frames of a prompt that is not given as token ids: a tag of one letter and content each."""
    return canonical.split(_MARK)[1:]


def prompt_content(canonical: bytes) -> PromptContent:
    """The parts of a prompt that is not given as token ids.

    Several text parts of a message are joined by line feeds and a tool call's arguments become an object,
    as engines do before they render (vLLM's ``string`` content format).

    Raises:
        ValueError: the bytes are no chat and no text: pairs to be scored, what an engine keeps elsewhere.
    """
    content = PromptContent()
    try:
        texts: list[list[str]] = []
        for frame in frames(canonical):
            tag, data = frame[:1], frame[1:]
            if tag == b"P":
                texts.append([data.decode()])
            elif tag == b"C" and texts and not content.messages:
                texts[-1].append(data.decode())  # a text that goes on behind a piece of media
            else:
                _add(content, tag, data)
        content.texts = ["".join(pieces) for pieces in texts]
        for message in content.messages:
            _join(message)
    except (UnicodeDecodeError, msgspec.DecodeError, IndexError, RecursionError) as error:
        raise ValueError(f"not canonical: {error}") from error
    return content


def _add(content: PromptContent, tag: bytes, data: bytes) -> None:
    if tag == b"R":
        content.messages.append({"role": data.decode(), "content": None})
    elif tag == b"T":
        content.tools.append(_DECODE(data))
    elif tag == b"D":
        content.documents.append(_DECODE(data))
    elif tag == b"E":
        pass  # an argument of the template, no part of the chat
    elif tag == b"H":
        content.chat_template = data.decode()
    elif tag == b"M":
        content.media_tokens += len(data) // MEDIA_BYTES_PER_TOKEN
    else:
        _add_to_message(content.messages[-1], tag, data)


def _add_to_message(message: dict[str, Any], tag: bytes, data: bytes) -> None:
    if tag in (b"C", b"J"):  # what is structured and has no place of its own stands as its JSON
        _append(message, "content", data)
    elif tag == b"G":
        _append(message, _REASONING, data)
    elif tag == b"X":
        _append(message, _REFUSAL, data)
    elif tag == b"N":
        message["name"] = data.decode()
    elif tag == b"I":
        message["tool_call_id"] = data.decode()
    elif tag == b"K":
        message.setdefault("tool_calls", []).append(_call(_DECODE(data)))
    elif tag == b"L":
        message.setdefault("tools", []).append(_DECODE(data))
    elif tag == b"F":
        message["function_call"] = _DECODE(data)
    else:
        raise ValueError(f"unknown frame {tag!r}")


def _append(message: dict[str, Any], key: str, data: bytes) -> None:
    if message.get(key) is None:
        message[key] = []
    message[key].append(data.decode())


def _join(message: dict[str, Any]) -> None:
    """Parts to texts, once for all of them: a client may send a hundred thousand."""
    for key in ("content", _REASONING, _REFUSAL):
        if message.get(key) is not None:
            message[key] = "\n".join(message[key])


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if (
        isinstance(function, dict)
        and isinstance(arguments := function.get("arguments"), str)
        and not too_many_values(arguments.encode())  # a text's values were not counted with the body's
    ):
        with suppress(msgspec.DecodeError):
            function["arguments"] = _DECODE(arguments)
    return call
