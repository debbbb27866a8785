"""Canonical bytes back to what a chat template or a tokenizer takes: messages, tools, plain texts.

Owns the reading of frames that `epp.apis.canonical` writes; knows no API and no template. What canonical
form has dropped is not there: of media only their tokens are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from epp.apis.canonical import MEDIA_BYTES_PER_TOKEN
from epp.apis.decode import decoder

_MARK = b"\xff"
_DECODE = decoder(Any).decode
#: Frames of a message that are pieces of text; what is structured and has no place of its own is its JSON.
_TEXTS = {b"C": "content", b"J": "content", b"G": "reasoning_content", b"X": "refusal"}
_NAMES = {b"N": "name", b"I": "tool_call_id"}
_VALUES = {b"K": "tool_calls", b"L": "tools"}


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


def prompt_content(canonical: bytes) -> PromptContent:
    """Return the parts of a prompt that is not given as token ids.

    Texts of a message that media stand between are joined by line feeds, as engines do before they render
    (vLLM's ``string`` content format).

    Raises:
        ValueError: the bytes are no chat and no text: pairs to be scored, what an engine keeps elsewhere.
    """
    content = PromptContent()
    try:
        texts: list[list[str]] = []
        for frame in canonical.split(_MARK)[1:]:
            tag, data = frame[:1], frame[1:]
            if tag == b"P":
                texts.append([data.decode()])
            elif tag == b"C" and texts and not content.messages:
                texts[-1].append(data.decode())  # a text that goes on behind a piece of media
            else:
                _add(content, tag, data)
        content.texts = ["".join(pieces) for pieces in texts]
        for message in content.messages:
            for key in set(_TEXTS.values()).intersection(message):  # at once: there may be a hundred thousand
                message[key] = "\n".join(message[key]) if message[key] else None
            if thought := message.get("reasoning_content"):
                message["reasoning"] = thought  # templates read either
    except (UnicodeDecodeError, msgspec.DecodeError, IndexError, KeyError, RecursionError) as error:
        raise ValueError(f"not canonical: {error}") from error
    return content


def _add(content: PromptContent, tag: bytes, data: bytes) -> None:
    if tag == b"R":
        content.messages.append({"role": data.decode(), "content": []})
    elif tag == b"T":
        content.tools.append(_DECODE(data))
    elif tag == b"D":
        content.documents.append(_DECODE(data))
    elif tag == b"H":
        content.chat_template = data.decode()
    elif tag == b"M":
        content.media_tokens += len(data) // MEDIA_BYTES_PER_TOKEN
    elif tag != b"E":  # that is an argument of the template, no part of the chat
        message = content.messages[-1]
        if tag in _TEXTS:
            message.setdefault(_TEXTS[tag], []).append(data.decode())
        elif tag in _NAMES:
            message[_NAMES[tag]] = data.decode()
        elif tag == b"F":
            message["function_call"] = _DECODE(data)
        else:
            message.setdefault(_VALUES[tag], []).append(_DECODE(data))
