"""Anthropic messages and count_tokens: bodies to canonical form.

Tools, then the system prompt, then the messages, as Anthropic's guide to prompt caching orders them and as
engines' templates do. ``cache_control`` marks move from turn to turn and change nothing; signatures of
thinking never reach a template. Claude Code opens its system prompt with a block of attribution that differs
from request to request; engines take it out before they render (vLLM does), so it is no part of the prompt.
A system message among the messages stays in its place, as in engines whose template can have it there.
Calls and results of tools are framed as in a chat, which is what engines make of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.apis.arguments import add_arguments
from epp.apis.body import Body
from epp.apis.chat_messages import add_part, function_call, function_tool, last_said
from epp.apis.decode import Whole, invalid, output_limit
from epp.apis.media import ANTHROPIC_RATES

if TYPE_CHECKING:
    from epp.apis.media import PromptFrames

_ATTRIBUTION = "x-anthropic-billing-header:"
_MEDIA = frozenset({"image", "document", "audio", "video", "file", "container_upload"})
_UNSEEN = frozenset({"cache_control", "signature"})
#: Roles that Claude Code writes (2.1.154 and later), which engines render as the user's.
_ROLES = {"ctx": "user", "msg": "user"}


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]

    def __post_init__(self) -> None:
        self.role = _ROLES.get(self.role, self.role)


class CountTokens(Body, kw_only=True):
    """Messages whose tokens are to be counted."""

    api = "anthropic-count-tokens"
    rates = ANTHROPIC_RATES
    messages: list[_Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    output_config: Any = None
    chat_template_kwargs: Any = None

    def frame(self, framed: PromptFrames) -> int | None:  # noqa: ARG002  # see below
        """Frame nothing of messages whose tokens are to be counted.

        The engine tokenizes and answers: no prefill, no KV cache. A decision made with the prompt would
        expect blocks where none will be.
        """
        if not self.messages:
            raise invalid("'messages' must not be empty", "messages")
        return 0


class Messages(CountTokens, kw_only=True):
    """Messages."""

    api = "anthropic-messages"
    tells_usage = True
    max_tokens: Whole | None = None

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame messages."""
        super().frame(framed)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise invalid("'max_tokens' must be at least 1", "max_tokens")
        add_arguments(framed, self.chat_template_kwargs, self.output_config)
        tools = [function_tool(_rendered(tool), "input_schema") for tool in self.tools or ()]
        framed.add_tools(tools, self.tool_choice)
        _add_system(framed, self.system)
        last = last_said(self.messages, _speaks)
        for number, message in enumerate(self.messages):
            framed.is_past = number < last
            if message.role == "system":
                _add_system(framed, message.content)
            elif isinstance(message.content, str):
                framed.add_said(message.role, message.content)
            else:
                _add_blocks(framed, message.role, message.content)
        return output_limit(max_tokens=self.max_tokens)


def _speaks(message: _Message) -> bool:
    """Return whether a user speaks in a message, which may hold results of tools alone."""
    content = message.content
    return message.role == "user" and (
        isinstance(content, str) or any(block.get("type") != "tool_result" for block in content)
    )


def _add_system(framed: PromptFrames, system: str | list[dict[str, Any]] | None) -> None:
    """Frame a system prompt; its blocks are one text to engines, which leave the attribution's out."""
    if isinstance(system, str):
        kept = system
    else:
        texts = [text for block in system or () if isinstance(text := block.get("text"), str)]
        kept = "".join(text for text in texts if not text.startswith(_ATTRIBUTION))
    if kept:
        framed.add_said("system", kept)


def _add_blocks(framed: PromptFrames, role: str, blocks: list[dict[str, Any]]) -> None:
    """Frame a message of blocks; each tool's result is a message of its own, as in a chat."""
    speaks = False
    for block in blocks:
        if block.get("type") == "tool_result":
            _add_result(framed, block)
            speaks = False
            continue
        if not speaks:
            framed.add_text(b"R", role)
            speaks = True
        _add_block(framed, block)
    if not blocks:
        framed.add_text(b"R", role)


def _add_result(framed: PromptFrames, block: dict[str, Any]) -> None:
    framed.add_text(b"R", "tool")
    content = block.get("content")
    if isinstance(content, str):
        framed.add_piece(content, "")
    elif isinstance(content, list):
        for inner in content:
            if not isinstance(inner, dict):
                raise invalid("a tool result's content must be blocks", "messages")
            _add_block(framed, inner)
    framed.add_id(block.get("tool_use_id"))


def _add_block(framed: PromptFrames, block: dict[str, Any]) -> None:
    kind, source = block.get("type"), block.get("source")
    if kind == "tool_use":
        framed.add_call(function_call(block.get("id"), block.get("name"), block.get("input")))
    elif (
        isinstance(source, dict)
        and isinstance(text := source.get("data"), str)
        and source.get("type") == "text"
    ):
        beside = [block.get(name) for name in ("title", "context")]
        if any(beside):
            framed.add_json(b"J", beside)
        framed.add_text(b"C", text)
    elif kind in ("text", "thinking") or (isinstance(kind, str) and kind in _MEDIA):
        add_part(framed, block)
    else:
        framed.add_json(b"J", _rendered(block))


def _rendered(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block, and the blocks that are its content, without what no template sees."""
    seen = {name: value for name, value in block.items() if name not in _UNSEEN}
    if isinstance(inner := seen.get("content"), list):
        seen["content"] = [_rendered(one) if isinstance(one, dict) else one for one in inner]
    return seen
