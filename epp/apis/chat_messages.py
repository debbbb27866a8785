"""Messages and parts of content as OpenAI's chat API spells them, which other APIs took over.

Owns their place in the canonical bytes: one message after the other, in each the role, who speaks, what was
thought, what was said, then calls. Other APIs' parsers write the same frames for the same things, in the way
that engines translate those APIs to chats before they render them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp.apis.media import PromptFrames

#: Parts that are text: their frames' tag, and the fields that may hold it. All others are media.
_TEXT_PARTS = {
    "text": (b"C", ("text",)),
    "input_text": (b"C", ("text",)),
    "output_text": (b"C", ("text",)),
    "refusal": (b"X", ("refusal",)),
    "thinking": (b"G", ("thinking", "text")),
    "reasoning": (b"G", ("text", "thinking")),
}
_T = TypeVar("_T")
_NO_TEXT: tuple[bytes, tuple[str, ...]] = (b"", ())


class Message(msgspec.Struct):
    """One message; what engines give no meaning is left out, by its name or by its type."""

    role: str
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: Any = None
    refusal: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    audio: Any = None
    tools: Any = None


def add_message(framed: PromptFrames, message: Message) -> None:
    """Frame a message.

    Raises:
        ClientError: 400, a call or a part is nested too deeply, or too many came.
    """
    content, reasoning = message.content, message.reasoning_content or message.reasoning
    if isinstance(content, str) and not reasoning and not message.name:
        framed.add_said(message.role, content)
    else:
        framed.add_text(b"R", message.role)
        if message.name:
            framed.add_text(b"N", message.name)
        if reasoning:
            framed.add_reasoning(reasoning)
        for part in [content] if isinstance(content, str) else content or ():
            add_part(framed, part)
    if message.tools and isinstance(message.tools, list):  # declared as the chat goes on
        for tool in message.tools:
            framed.add_described(b"L", tool)
    if message.tool_call_id:
        framed.add_id(message.tool_call_id)
    for call in message.tool_calls or ():
        framed.add_call(call)
    if message.function_call and isinstance(message.function_call, dict):
        framed.add_described(b"F", message.function_call)
    if message.refusal and isinstance(message.refusal, str):
        framed.add_text(b"X", message.refusal)
    if message.audio and isinstance(message.audio, dict):
        framed.add_part(message.audio, "audio")


def add_messages(framed: PromptFrames, messages: Sequence[Message]) -> None:
    """Frame a chat's messages.

    Raises:
        ClientError: as `add_message`.
    """
    last = last_said(messages, lambda message: message.role == "user")
    for number, message in enumerate(messages):
        framed.is_past = number < last
        add_message(framed, message)


def last_said(turns: Sequence[_T], speaks: Callable[[_T], bool]) -> int:
    """Return the place of the last turn in which a user speaks, 0 where none does."""
    return next((at for at in reversed(range(len(turns))) if speaks(turns[at])), 0)


def add_part(framed: PromptFrames, part: str | dict[str, Any]) -> None:
    """Frame a part of content: a bare text, a text part, or media.

    Raises:
        ClientError: 400, it is nested too deeply, or too many came.
    """
    if isinstance(part, str):
        framed.count_values()
        framed.add_piece(part, framed.rendering.separator)
        return
    tag, fields = _text_part(part)
    for field in fields:
        if isinstance(text := part.get(field), str):
            if tag == b"C":
                framed.add_piece(text, framed.rendering.separator)
            elif tag == b"G":
                framed.add_reasoning(text)
            else:
                framed.add_text(tag, text)
            return
    framed.add_part(part)


def media_parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message's content that are no text."""
    parts = message.content if isinstance(message.content, list) else ()
    return [part for part in parts if isinstance(part, dict) and not _text_part(part)[1]]


def _text_part(part: dict[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    kind = part.get("type", "text")
    return _TEXT_PARTS.get(kind, _NO_TEXT) if isinstance(kind, str) else _NO_TEXT


def function_tool(tool: object, parameters: str = "parameters") -> object:
    """Return a flat description of a function as the chat API nests it; other tools as they are.

    Args:
        tool: as the request has it.
        parameters: the request's name for the schema of its arguments.
    """
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or parameters not in tool:
        return tool
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function | {"parameters": tool[parameters]}}


def function_call(call_id: object, name: object, arguments: object) -> dict[str, Any]:
    """Return a call as the chat API has it, its arguments a text of JSON or what that means."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
