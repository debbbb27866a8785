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

from epp.apis.arguments import add_first, template_arguments
from epp.apis.chat_messages import function_call, function_tool
from epp.apis.decode import Whole, decode, decoder, output_limit, required, session_hint
from epp.apis.error_bodies import anthropic_error
from epp.apis.media import ANTHROPIC_RATES, PromptFrames
from epp.apis.types import ParsedRequest
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.apis.types import TemplateArguments

_ATTRIBUTION = "x-anthropic-billing-header:"
_MEDIA = frozenset({"image", "document", "audio", "video", "file", "container_upload"})
_UNSEEN = frozenset({"cache_control", "signature"})
#: Roles that Claude Code writes (2.1.154 and later), which engines render as the user's.
_ROLES = {"ctx": "user", "msg": "user"}


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class _Counted(msgspec.Struct, kw_only=True):
    """What both have in common."""

    model: str
    messages: list[_Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    session_id: Any = None
    cache_salt: str | None = None
    output_config: Any = None
    chat_template_kwargs: Any = None


class _Messages(_Counted, kw_only=True):
    max_tokens: Whole
    stream: bool | None = None


_MESSAGES = decoder(_Messages)
_COUNTED = decoder(_Counted)


class MessagesParser:
    """``/v1/messages``."""

    name = "anthropic-messages"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Messages to canonical form.

        Raises:
            ClientError: 400 in Anthropic's words.
        """
        asked = decode(_MESSAGES, body)
        _check(asked)
        if asked.max_tokens < 1:
            raise ClientError(400, "max_tokens: must be at least 1", "max_tokens")
        arguments = template_arguments(asked.chat_template_kwargs, asked.output_config)
        framed = _framed(asked, arguments)
        return ParsedRequest(
            api=self.name,
            model=asked.model,
            canonical=framed.bytes(),
            stream=bool(asked.stream),
            max_output_tokens=output_limit(max_tokens=asked.max_tokens),
            session=_session(asked, headers),
            cache_salt=asked.cache_salt or "",
            include_usage=True,
            template_arguments=arguments,
            text_only=framed.text_only,
        )

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An Anthropic error."""
        return anthropic_error(status, message, param)


class CountTokensParser:
    """``/v1/messages/count_tokens``: read as messages, and weighed as nothing.

    The engine tokenizes and answers: no prefill, no KV cache, so the prompt is empty here; a decision made
    with it would expect blocks where none will be.
    """

    name = "anthropic-count-tokens"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Model and session of what is to be counted.

        Raises:
            ClientError: 400 in Anthropic's words.
        """
        asked = decode(_COUNTED, body)
        _check(asked)
        return ParsedRequest(self.name, asked.model, b"", False, 0, _session(asked, headers), "", False)

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An Anthropic error."""
        return anthropic_error(status, message, param)


def _check(asked: _Counted) -> None:
    required(asked.model, "model")
    if not asked.messages:
        raise ClientError(400, "messages: at least one message is required", "messages")


def _session(asked: _Counted, headers: Mapping[str, str]) -> str:
    """``session_id``, ``metadata.session_id``, then ``metadata.user_id``.

    Claude Code's user id names account and session; other clients name a person.
    """
    metadata = asked.metadata or {}
    return session_hint(headers, (asked.session_id, metadata.get("session_id"), metadata.get("user_id")))


def _framed(asked: _Counted, arguments: TemplateArguments) -> PromptFrames:
    framed = PromptFrames(asked.model, ANTHROPIC_RATES)
    add_first(framed, asked.model, arguments)
    try:
        for tool in asked.tools or ():
            framed.add_described(b"T", function_tool(_rendered(tool), "input_schema"))
        _add_system(framed, asked.system)
        for message in asked.messages:
            if message.role == "system":
                _add_system(framed, message.content)
            elif isinstance(message.content, str):
                framed.add_text(b"R", _ROLES.get(message.role, message.role))
                framed.add_text(b"C", message.content)
            else:
                _add_blocks(framed, _ROLES.get(message.role, message.role), message.content)
    except ValueError as error:
        raise ClientError(400, f"messages: {error}", "messages") from None
    return framed


def _add_system(framed: PromptFrames, system: str | list[dict[str, Any]] | None) -> None:
    """A system prompt; its blocks are one text to engines, which leave the attribution's out."""
    if isinstance(system, str):
        kept = system
    else:
        texts = [text for block in system or () if isinstance(text := block.get("text"), str)]
        kept = "".join(text for text in texts if not text.startswith(_ATTRIBUTION))
    if kept:
        framed.add_text(b"R", "system")
        framed.add_text(b"C", kept)


def _add_blocks(framed: PromptFrames, role: str, blocks: list[dict[str, Any]]) -> None:
    """A message of blocks; each tool's result is a message of its own, as in a chat."""
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
        framed.add_text(b"C", content)
    elif isinstance(content, list):
        for inner in content:
            if not isinstance(inner, dict):
                raise ClientError(400, "messages: a tool result's content must be blocks", "messages")
            _add_block(framed, inner)
    elif content is not None:
        framed.add_json(b"J", content)
    name = block.get("tool_use_id")
    framed.add_text(b"I", name if isinstance(name, str) else "")


def _add_block(framed: PromptFrames, block: dict[str, Any]) -> None:
    kind = block.get("type")
    text = block.get("text" if kind == "text" else "thinking" if kind == "thinking" else "")
    if isinstance(text, str):
        framed.add_text(b"C" if kind == "text" else b"G", text)
    elif kind == "tool_use":
        arguments = framed.spell(block.get("input") or {})
        framed.add_described(b"K", function_call(block.get("id"), block.get("name"), arguments))
    elif isinstance(kind, str) and kind in _MEDIA:
        _add_media(framed, block)
    else:
        framed.add_json(b"J", _rendered(block))


def _add_media(framed: PromptFrames, block: dict[str, Any]) -> None:
    """Media by content; a document whose source is text is text."""
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
        beside = [block.get(name) for name in ("title", "context")]
        if any(beside):
            framed.add_json(b"J", beside)
        framed.add_text(b"C", source["data"])
    else:
        framed.add_part(block)


def _rendered(block: dict[str, Any]) -> dict[str, Any]:
    """A block, and the blocks that are its content, without what no template sees."""
    seen = {name: value for name, value in block.items() if name not in _UNSEEN}
    if isinstance(inner := seen.get("content"), list):
        seen["content"] = [
            {name: value for name, value in one.items() if name not in _UNSEEN}
            if isinstance(one, dict)
            else one
            for one in inner
        ]
    return seen
