"""A model's chat template, rendered as transformers renders it, without transformers.

Owns the environment that templates expect: a sandbox (templates come with models, not with this program),
the ``tojson`` filter, ``raise_exception``, ``strftime_now``, loop controls and ``{% generation %}`` blocks.
Jinja is all of it that rendering needs; transformers would bring seconds of start-up and much more code.
A client's own template is never rendered: a loop in it would be ours to run.

Tells, too, what of a chat a template prints, and which of a client's arguments it puts before the chat: it
renders some chats with and without.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from epp.apis.content import PromptContent
from epp.apis.rendering import PAST_REASONING, REASONING, Rendering
from epp.apis.types import NotCountableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jinja2.parser import Parser

    from epp.apis.rendering import FirstArguments
    from epp.apis.types import TemplateArguments

#: What arguments of public templates may be, and the chats that are rendered with them; some templates take
#: no system prompt.
_VALUES = (True, False, "none", "low", "medium", "high", "max", 512)
_LIST = ["code_interpreter"]
_FIRST_SAID = "the first that is said"
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
_USER: dict[str, Any] = {"role": "user", "content": _FIRST_SAID}
#: Two texts side by side, an id, and thoughts, before the last that a user says and since then.
_PIECES = [{"type": "text", "text": "one piece"}, {"type": "text", "text": "another piece"}]
_CALL_ID, _THOUGHT = "a1b2c3d4e", "a thought of its own"  # Mistral's templates take ids of nine characters
_CALL = {"id": _CALL_ID, "type": "function", "function": {"name": "f", "arguments": {}}}
_THINKING = {"role": "assistant", "reasoning_content": _THOUGHT, "reasoning": _THOUGHT}
_RESULT = {"role": "tool", "tool_call_id": _CALL_ID, "content": "d"}
_PAST: list[dict[str, Any]] = [_USER, _THINKING | {"content": "c"}, _USER]
_SINCE: list[dict[str, Any]] = [_USER, _THINKING | {"content": "", "tool_calls": [_CALL]}, _RESULT]
_CHATS = tuple(
    PromptContent(messages=messages, tools=tools)
    for messages in ([{"role": "system", "content": _FIRST_SAID}, _USER], [_USER])
    for tools in ([], [_TOOL])
)


class _Generation(Extension):
    """``{% generation %}``: marks what an assistant said, for training; rendering keeps its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005  # the local date, as engines print it


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text.
        with_tools: another one for chats with tools, where a model has two.
        constants: what the template may refer to beside the chat, e.g. ``bos_token``.

    Raises:
        ValueError: the text is no template.
    """

    def __init__(self, source: str, with_tools: str = "", constants: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(  # prompts are not HTML
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self.source = source
        try:
            self._plain = environment.from_string(source)
            self._tools = environment.from_string(with_tools) if with_tools else self._plain
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ValueError(f"line {line}: {error}" if line else str(error)) from error
        self._constants = dict(constants or {})
        self._reserved = {"messages", "tools", "documents", *self._constants, *environment.globals}
        self._read = meta.find_undeclared_variables(environment.parse(source))
        self._read |= meta.find_undeclared_variables(environment.parse(with_tools))

    def render(self, content: PromptContent, arguments: TemplateArguments = ()) -> str:
        """Return the text that an engine tokenizes for a chat, up to where the answer begins.

        Args:
            content: the chat.
            arguments: the client's; they cannot stand for the chat, constants or functions.

        Raises:
            NotCountableError: the template refuses the chat or fails.
        """
        template = self._tools if content.tools else self._plain
        allowed = {name: value for name, value in arguments if name not in self._reserved}
        try:
            return template.render(
                messages=content.messages,
                tools=content.tools or None,
                documents=content.documents or None,
                **self._constants,
                **{"add_generation_prompt": True, **allowed},
            )
        except Exception as error:
            # A template is a program of somebody else's: on a strange chat it can fail in any way.
            raise NotCountableError("template") from error

    def rendering(self) -> Rendering:
        """Tell how the template renders chats."""
        kinds = ((PAST_REASONING, _PAST), (REASONING, _SINCE))
        dropped = [kind for kind, chat in kinds if _THOUGHT not in self._tried(chat, _THOUGHT)]
        pieces = self._tried([{"role": "user", "content": _PIECES}], "")
        between, found, _ = pieces.partition("one piece")[2].partition("another piece")
        return Rendering(
            self.first_arguments(),
            lists_first=False,
            prints_ids=_CALL_ID in self._tried(_SINCE, ""),
            # A template that takes texts prints the list itself, or refuses it.
            separator=between if found and not between.strip() else "\n",
            dropped=frozenset(dropped),
        )

    def _tried(self, messages: list[dict[str, Any]], otherwise: str) -> str:
        """Return a chat's text, or something else where the template refuses it."""
        with suppress(NotCountableError):
            return self.render(PromptContent(messages=messages, tools=[_TOOL]))
        return otherwise

    def first_arguments(self) -> FirstArguments:
        """Return arguments that change what stands before the first message, each with values that do not.

        Found by rendering some chats for each argument that the template reads.
        """
        heads = list(self._heads())
        first = {}
        for name in sorted(self._read - self._reserved - {"add_generation_prompt"}):
            same = frozenset(value for value in _VALUES if not self._stands_first(heads, name, value))
            if len(same) < len(set(_VALUES)) or self._stands_first(heads, name, _LIST):
                first[name] = same
        return first

    def _heads(self) -> Iterator[tuple[PromptContent, str]]:
        """Return the chats that the template takes, each with its text up to the first message."""
        for chat in _CHATS:
            with suppress(NotCountableError):
                head, said, _ = self.render(chat).partition(_FIRST_SAID)
                if said:
                    yield chat, head + said

    def _stands_first(self, heads: Sequence[tuple[PromptContent, str]], name: str, value: object) -> bool:
        for chat, head in heads:
            with suppress(NotCountableError):  # of this value
                if not self.render(chat, ((name, value),)).startswith(head):
                    return True
        return False
