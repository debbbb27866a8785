"""Canonical bytes back to what a chat template or a tokenizer takes: messages, tools, plain texts.

Owns the reading of frames that `epp.prompt.canonical` writes; knows no API and no template. What canonical
form has dropped is not there: objects have their keys sorted, media are counted and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

_MARK = b"\xff"
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
        media: images, recordings and files; none of their tokens are in the text.
    """

    texts: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    documents: list[Any] = field(default_factory=list)
    chat_template: str = ""
    media: int = 0


def frames(canonical: bytes) -> list[bytes]:
    """The frames of a prompt that is not given as token ids: a tag of one letter and content each."""
    return canonical.split(_MARK)[1:]


def prompt_content(canonical: bytes) -> PromptContent:
    """The parts of a prompt that is not given as token ids.

    Several text parts of a message are joined by line feeds and a tool call's arguments become an object,
    as engines do before they render (vLLM's ``string`` content format).

    Raises:
        ValueError: the bytes are not what a parser writes.
    """
    content = PromptContent()
    try:
        for frame in frames(canonical):
            _add(content, frame[:1], frame[1:])
    except (UnicodeDecodeError, msgspec.DecodeError, IndexError, RecursionError) as error:
        raise ValueError(f"not canonical: {error}") from error
    return content


def _add(content: PromptContent, tag: bytes, data: bytes) -> None:
    if tag == b"P":
        content.texts.append(data.decode())
    elif tag == b"R":
        content.messages.append({"role": data.decode(), "content": None})
    elif tag == b"T":
        content.tools.append(msgspec.json.decode(data))
    elif tag == b"D":
        content.documents.append(msgspec.json.decode(data))
    elif tag == b"H":
        content.chat_template = data.decode()
    elif tag == b"M":
        content.media += 1
    else:
        _add_to_message(content.messages[-1], tag, data)


def _add_to_message(message: dict[str, Any], tag: bytes, data: bytes) -> None:
    if tag == b"C":
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
        message.setdefault("tool_calls", []).append(_call(msgspec.json.decode(data)))
    elif tag == b"F":
        message["function_call"] = msgspec.json.decode(data)
    else:
        raise ValueError(f"unknown frame {tag!r}")


def _append(message: dict[str, Any], key: str, data: bytes) -> None:
    before = message.get(key)
    message[key] = data.decode() if before is None else f"{before}\n{data.decode()}"


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        try:
            function["arguments"] = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            return call
    return call
