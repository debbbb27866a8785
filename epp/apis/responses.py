"""OpenAI responses: bodies to canonical form.

Tools, then instructions (which engines make the system message), then what the body knows of the past, then
the items of the input in order. What the engine adds itself - the turns behind ``previous_response_id`` or
``conversation`` - is not in the body: two requests with the same name for it share what that name stands
for, and nothing is known of its length. Who has a previous response, `epp.signals.stored_responses` knows.
Names and states of items (``id``, ``status``) never reach a template and are left out, so that an answer's
items may be sent back as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.apis.arguments import add_arguments
from epp.apis.body import Body
from epp.apis.chat_messages import add_part, function_call, function_tool, last_said
from epp.apis.decode import Whole, invalid, output_limit

if TYPE_CHECKING:
    from epp.apis.media import PromptFrames

RESPONSES = "openai-responses"
_UNSEEN = frozenset({"id", "status", "cache_control"})


class Responses(Body, kw_only=True):
    """A response request."""

    api = RESPONSES
    stored = True
    tells_usage = True  # the last event of a stream is the whole response, usage and all
    input: str | list[dict[str, Any]] | None = None
    instructions: str | list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    max_output_tokens: Whole | None = None
    prompt: dict[str, Any] | None = None
    previous_input_messages: list[Any] | None = None
    reasoning: Any = None
    chat_template_kwargs: Any = None
    truncation: Any = None

    def kept_tokens(self) -> int | None:
        """Return -1 where the engine cuts the past to fit."""
        return -1 if self.truncation == "auto" else super().kept_tokens()

    def frame(self, framed: PromptFrames) -> int | None:
        """Frame a response request."""
        items = _Items(framed)
        if not self.input and self.input != "" and self.prompt is None:
            raise invalid("'input' must not be empty", "input")
        add_arguments(framed, self.chat_template_kwargs, self.reasoning)
        framed.add_tools(map(function_tool, self.tools or ()), self.tool_choice)
        if self.prompt is not None:  # a stored template: instructions and messages that lie elsewhere
            framed.add_json(b"J", self.prompt)
        items.add(self.instructions, "system", "instructions")
        past = self.conversation
        # In the place of the turns that the engine adds: who goes on from the same past shares it.
        for name in (past.get("id") if isinstance(past, dict) else past, self.previous_response_id):
            if isinstance(name, str) and name:
                framed.add_text(b"V", name)
        for message in self.previous_input_messages or ():
            framed.add_json(b"J", message)
        items.add(self.input, "user", "input")
        return output_limit(max_output_tokens=self.max_output_tokens)


class _Items:
    """Frames items one after the other, as engines make a chat of them.

    Calls and reasoning belong to the assistant's message that goes on until someone else speaks.
    """

    def __init__(self, framed: PromptFrames) -> None:
        self.framed = framed
        self._role = ""

    def add(self, given: str | list[dict[str, Any]] | None, role: str, field: str) -> None:
        """Frame a text that this role says, or a list of items.

        Raises:
            ClientError: 400, an item lacks what its kind needs.
        """
        if isinstance(given, str):
            self._message(role, given, field)
        items = given if isinstance(given, list) else []
        last = last_said(items, lambda item: item.get("role") == "user")
        for number, item in enumerate(items):
            self.framed.is_past = number < last
            self._add(item, f"{field}[{number}]")

    def _message(self, role: str, content: object, where: str) -> None:
        self._speaks(role, is_new=True)
        parts = [content] if isinstance(content, str) else [] if content is None else content
        if not isinstance(parts, list) or not all(isinstance(part, str | dict) for part in parts):
            raise invalid(f"expected a text or a list of parts of content at {where}", where)
        for part in parts:
            add_part(self.framed, part)

    def _speaks(self, role: str, *, is_new: bool = False) -> None:
        if is_new or role != self._role:
            self.framed.add_text(b"R", role)
        self._role = role

    def _add(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            role = item.get("role")
            if not isinstance(role, str):
                raise invalid(f"a message needs a 'role' at {where}", f"{where}.role")
            self._message(role, item.get("content"), f"{where}.content")
        elif kind == "function_call":
            self._speaks("assistant")
            self.framed.add_call(function_call(item.get("call_id"), item.get("name"), item.get("arguments")))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._message("tool", item.get("output"), f"{where}.output")
            self.framed.add_id(item.get("call_id"))
        elif kind == "reasoning":
            self._speaks("assistant")
            self._reasoning(item)
        elif kind == "computer_call_output":
            self._speaks("tool", is_new=True)
            self.framed.add_json(b"J", {name: item.get(name) for name in ("call_id", "type")})
            self.framed.add_part(item.get("output"), "image")
        elif kind == "item_reference":  # names what lies elsewhere: the name is all there is
            self.framed.add_json(b"J", item)
        else:
            self.framed.add_json(b"J", _rendered(item))

    def _reasoning(self, item: dict[str, Any]) -> None:
        """Frame what was thought in words, else its summary, else what only the engine can read."""
        parts = item.get("content") or item.get("summary")
        given = filter(lambda part: isinstance(part, dict), parts) if isinstance(parts, list) else ()
        texts = [text for part in given if isinstance(text := part.get("text"), str)]
        for text in texts:
            self.framed.add_reasoning(text)
        if not texts:
            self.framed.add_json(b"J", _rendered(item))


def _rendered(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _UNSEEN}
