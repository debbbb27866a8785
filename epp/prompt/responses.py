"""OpenAI responses: bodies to canonical form.

Tools, then instructions (which engines make the system message), then what the body knows of the past, then
the items of the input in order. What the engine adds itself - the turns behind ``previous_response_id`` or
``conversation`` - is not in the body: two requests with the same name for it share what that name stands for,
and nothing is known of its length. Names and states of items (``id``, ``status``) never reach a template and
are left out, so that an answer's items may be sent back as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.errors import ClientError
from epp.prompt.content import add_part
from epp.prompt.decode import OpenAIFields, decode, output_limit, required
from epp.prompt.error_bodies import openai_error
from epp.prompt.media import PromptFrames
from epp.prompt.types import ParsedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNSEEN = frozenset({"id", "status", "cache_control"})


class _Responses(OpenAIFields, kw_only=True):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    previous_input_messages: list[Any] | None = None


_RESPONSES = msgspec.json.Decoder(_Responses)


class ResponsesParser:
    """``/v1/responses``."""

    name = "openai-responses"

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """A response request to canonical form.

        The session hint adds the conversation's name before ``prompt_cache_key``, and, when there is nothing
        else, the name of the previous response: engines keep stored answers for themselves.

        Raises:
            ClientError: 400 in OpenAI's words.
        """
        asked = decode(_RESPONSES, body)
        required(asked.model, "model")
        if asked.input is None and asked.prompt is None:
            raise ClientError(400, "Invalid request: missing required field 'input'", "input")
        if isinstance(asked.input, list) and not asked.input and asked.prompt is None:
            raise ClientError(400, "Invalid request: 'input' must not be empty", "input")
        conversation = asked.conversation
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        return ParsedRequest(
            api=self.name,
            model=asked.model,
            canonical=_frame(asked, conversation),
            stream=bool(asked.stream),
            max_output_tokens=output_limit(asked.max_output_tokens),
            session=asked.session(headers, conversation) or asked.previous_response_id or "",
            cache_salt=asked.cache_salt or "",
            include_usage=True,  # the last event of a stream is the whole response, usage and all
        )

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


def _frame(asked: _Responses, conversation: object) -> bytes:
    framed = PromptFrames(asked.model)
    try:
        for tool in asked.tools or ():
            framed.add_json(b"T", tool)
        if asked.prompt is not None:  # a stored template: instructions and messages that lie elsewhere
            framed.add_json(b"H", asked.prompt)
        _add_instructions(framed, asked.instructions)
        if isinstance(conversation, str):
            framed.add_text(b"V", conversation)
        if asked.previous_response_id:
            framed.add_text(b"V", asked.previous_response_id)
        for message in asked.previous_input_messages or ():
            framed.add_json(b"J", message)
        if isinstance(asked.input, str):
            framed.add_text(b"R", "user")
            framed.add_text(b"C", asked.input)
        else:
            for number, item in enumerate(asked.input or ()):
                _add_item(framed, item, f"input[{number}]")
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "input") from None
    return framed.bytes()


def _add_instructions(framed: PromptFrames, instructions: str | list[dict[str, Any]] | None) -> None:
    if isinstance(instructions, str):
        framed.add_text(b"R", "system")
        framed.add_text(b"C", instructions)
    else:
        for number, item in enumerate(instructions or ()):
            _add_item(framed, item, f"instructions[{number}]")


def _add_item(framed: PromptFrames, item: dict[str, Any], where: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str):
            raise ClientError(400, f"Invalid request: a message needs a 'role' at {where}", f"{where}.role")
        framed.add_text(b"R", role)
        _add_content(framed, item.get("content"), f"{where}.content")
    elif kind in ("function_call_output", "custom_tool_call_output"):
        framed.add_text(b"R", "tool")
        call = item.get("call_id")
        framed.add_text(b"I", call if isinstance(call, str) else "")
        _add_content(framed, item.get("output"), f"{where}.output")
    elif kind == "reasoning":
        framed.add_json(b"G", _rendered(item))
    elif kind == "computer_call_output":
        framed.add_json(b"I", {name: value for name, value in _rendered(item).items() if name != "output"})
        framed.add_part(item.get("output"), "image")
    elif kind == "item_reference":  # names what lies elsewhere: here the name is all there is
        framed.add_json(b"J", item)
    else:
        framed.add_json(b"K" if kind == "function_call" else b"J", _rendered(item))


def _rendered(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _UNSEEN}


def _add_content(framed: PromptFrames, content: object, where: str) -> None:
    """A text, or a list of parts.

    Raises:
        ClientError: 400, it is neither.
        ValueError: as `add_part`.
    """
    if isinstance(content, str):
        framed.add_text(b"C", content)
        return
    if content is not None and not isinstance(content, list):
        raise ClientError(400, f"Invalid request: expected a text or a list of parts at {where}", where)
    for part in content or ():
        if not isinstance(part, (str, dict)):
            raise ClientError(400, f"Invalid request: expected a part of content at {where}", where)
        add_part(framed, part)
