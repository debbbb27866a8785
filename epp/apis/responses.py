"""OpenAI responses: bodies to canonical form.

Tools, then instructions (which engines make the system message), then what the body knows of the past, then
the items of the input in order. What the engine adds itself - the turns behind ``previous_response_id`` or
``conversation`` - is not in the body: two requests with the same name for it share what that name stands for,
and nothing is known of its length. Names and states of items (``id``, ``status``) never reach a template and
are left out, so that an answer's items may be sent back as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.apis.arguments import add_first, template_arguments
from epp.apis.chat_messages import add_part, function_call, function_tool
from epp.apis.decode import OpenAIFields, Whole, decode, decoder, output_limit, required
from epp.apis.error_bodies import openai_error
from epp.apis.media import PromptFrames
from epp.apis.types import ParsedRequest
from epp.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from epp.apis.types import TemplateArguments

_UNSEEN = frozenset({"id", "status", "cache_control"})


class _Responses(OpenAIFields, kw_only=True):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    max_output_tokens: Whole | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    previous_input_messages: list[Any] | None = None
    reasoning: Any = None
    chat_template_kwargs: Any = None


_RESPONSES = decoder(_Responses)


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
        arguments = template_arguments(asked.chat_template_kwargs, asked.reasoning)
        framed = _framed(asked, conversation, arguments)
        return ParsedRequest(
            api=self.name,
            model=asked.model,
            canonical=framed.bytes(),
            stream=bool(asked.stream),
            max_output_tokens=output_limit(max_output_tokens=asked.max_output_tokens),
            session=asked.session(headers, conversation) or asked.previous_response_id or "",
            cache_salt=asked.salt(),
            include_usage=True,  # the last event of a stream is the whole response, usage and all
            template_arguments=arguments,
            text_only=framed.text_only,
        )

    def error_body(self, status: int, message: str, param: str | None = None) -> bytes:
        """An OpenAI error."""
        return openai_error(status, message, param)


def _framed(asked: _Responses, conversation: object, arguments: TemplateArguments) -> PromptFrames:
    items = _Items(PromptFrames(asked.model))
    framed = items.framed
    add_first(framed, asked.model, arguments)
    try:
        for tool in asked.tools or ():
            framed.add_described(b"T", function_tool(tool))
        if asked.prompt is not None:  # a stored template: instructions and messages that lie elsewhere
            framed.add_json(b"J", asked.prompt)
        if isinstance(asked.instructions, str):
            items.message("system", asked.instructions, "instructions")
        else:
            items.add(asked.instructions or (), "instructions")
        for name in (conversation, asked.previous_response_id):
            if isinstance(name, str) and name:
                framed.add_text(b"V", name)
        for message in asked.previous_input_messages or ():
            framed.add_json(b"J", message)
        if isinstance(asked.input, str):
            items.message("user", asked.input, "input")
        else:
            items.add(asked.input or (), "input")
    except ValueError as error:
        raise ClientError(400, f"Invalid request: {error}", "input") from None
    return framed


class _Items:
    """Frames items one after the other, as engines make a chat of them.

    Calls and reasoning belong to the assistant's message that goes on until someone else speaks.
    """

    def __init__(self, framed: PromptFrames) -> None:
        self.framed = framed
        self._role = ""

    def add(self, items: Iterable[dict[str, Any]], field: str) -> None:
        """Frame a list of items.

        Raises:
            ClientError: 400, an item lacks what its kind needs.
            ValueError: one has no JSON spelling, or is nested too deeply.
        """
        for number, item in enumerate(items):
            self._add(item, f"{field}[{number}]")

    def message(self, role: str, content: object, where: str) -> None:
        """Frame a message: a text, or a list of parts."""
        self._speaks(role, anew=True)
        if content is not None and not isinstance(content, (str, list)):
            raise ClientError(400, f"Invalid request: expected a text or a list of parts at {where}", where)
        for part in [content] if isinstance(content, str) else content or ():
            if not isinstance(part, (str, dict)):
                raise ClientError(400, f"Invalid request: expected a part of content at {where}", where)
            add_part(self.framed, part)

    def _speaks(self, role: str, *, anew: bool = False) -> None:
        if anew or role != self._role:
            self.framed.add_text(b"R", role)
        self._role = role

    def _add(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            role = item.get("role")
            if not isinstance(role, str):
                raise ClientError(
                    400, f"Invalid request: a message needs a 'role' at {where}", f"{where}.role"
                )
            self.message(role, item.get("content"), f"{where}.content")
        elif kind == "function_call":
            self._speaks("assistant")
            call = function_call(item.get("call_id"), item.get("name"), item.get("arguments"))
            self.framed.add_described(b"K", call)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self.message("tool", item.get("output"), f"{where}.output")
            call_id = item.get("call_id")
            self.framed.add_text(b"I", call_id if isinstance(call_id, str) else "")
        elif kind == "reasoning":
            self._speaks("assistant")
            self._reasoning(item)
        elif kind == "computer_call_output":
            self._speaks("tool", anew=True)
            self.framed.add_json(b"J", {name: item.get(name) for name in ("call_id", "type")})
            self.framed.add_part(item.get("output"), "image")
        elif kind == "item_reference":  # names what lies elsewhere: the name is all there is
            self.framed.add_json(b"J", item)
        else:
            self.framed.add_json(b"J", _rendered(item))

    def _reasoning(self, item: dict[str, Any]) -> None:
        """What was thought in words, else its summary, else what only the engine can read."""
        for field in ("content", "summary"):
            parts = item.get(field)
            if not isinstance(parts, list):
                continue
            said = [part.get("text") for part in parts if isinstance(part, dict)]
            texts = [text for text in said if isinstance(text, str)]
            for text in texts:
                self.framed.add_text(b"G", text)
            if texts:
                return
        self.framed.add_json(b"J", _rendered(item))


def _rendered(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _UNSEEN}
