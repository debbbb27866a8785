"""What clients give a model's chat template beside the chat, and which of it stands first in the prompt.

Owns the bounds on arguments and the families of models whose templates put one of them before all else: chats
that differ there share not even their system prompt. Most templates put them behind the chat or at its turns.
There they are no part of the hash: a conversation that goes on with another setting is cached all the same.
Which families do was read in their public templates. Where a model's own template is at hand, that tells for
models of other names, too (`epp.tokens.template`).
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.apis.canonical import exact_tokens

if TYPE_CHECKING:
    from epp.apis.media import PromptFrames
    from epp.apis.types import FirstArguments, ParsedRequest, TemplateArguments

EFFORT, THINKING = "reasoning_effort", "enable_thinking"
_NO_EFFORT = "none"
_TAG, _FRAME = b"E", b"\xffE"
#: Bounds on what a client may hand to a template.
_MOST_ARGUMENTS, _ARGUMENT_CHARS = 16, 256
#: Arguments that stand first by the model's name, each with what says the same as nothing.
_FIRST: dict[str, FirstArguments] = {
    "gpt-?oss": {EFFORT: ("medium",)},
    "gemma-?4": {THINKING: (False,)},
    "smollm-?3": {THINKING: (True,)},
    "glm-?5": {EFFORT: ("max",)},
    r"step-?3\.7": {EFFORT: ()},
    "deepseek-?v4": {EFFORT: ()},
    "kimi-?k3": {EFFORT: ("max",), "thinking_effort": ("max",), "thinking": (True,)},
}
_FAMILIES = tuple((re.compile(name, re.IGNORECASE), first) for name, first in _FIRST.items())


def add_arguments(framed: PromptFrames, given: object, *efforts: object, **more: object) -> None:
    """Add what engines pass on to the template, and frame first what its prompts begin with.

    Texts, numbers and truth values are; others are left out.

    Args:
        framed: of which nothing is framed yet.
        given: ``chat_template_kwargs``.
        efforts: where the API may say how hard to think: the effort, or an object that holds it as
            ``effort``. The first that does counts before `given`; it tells whether to think at all, too,
            where `given` does not.
        more: other arguments by name, None where the body does not say.
    """
    asked: dict[object, object] = {name: value for name, value in more.items() if value is not None}
    if isinstance(given, dict):
        asked |= given
    for one in efforts:
        effort = one.get("effort") if isinstance(one, dict) else one
        if isinstance(effort, str) and effort:
            asked = {EFFORT: effort, THINKING: effort != _NO_EFFORT} | asked | {EFFORT: effort}
            break
    kept = (
        (name, value)
        for name, value in asked.items()
        if isinstance(name, str)
        and isinstance(value, str | int | float)
        and len(name) <= _ARGUMENT_CHARS
        and len(str(value)) <= _ARGUMENT_CHARS
    )
    # The others are not even looked at: they may be a million.
    framed.arguments = arguments = tuple(islice(kept, _MOST_ARGUMENTS))
    if arguments:
        first = next((first for name, first in _FAMILIES if name.search(framed.model)), {})
        if spelled := _spelled(first, arguments):
            framed.add_text(_TAG, spelled)


def with_first(request: ParsedRequest, first: FirstArguments) -> ParsedRequest:
    """Return the request with its arguments that stand first framed, if they are not by the model's name."""
    known, spelled = request.canonical.startswith(_FRAME), _spelled(first, request.template_arguments)
    if known or not spelled or exact_tokens(request.canonical) is not None:
        return request
    return replace(request, canonical=_FRAME + spelled.encode("utf-8", "replace") + request.canonical)


def _spelled(first: FirstArguments, arguments: TemplateArguments) -> str:
    """Return those of the arguments that stand first as one text, in whatever order they came."""
    kept = ((name, value) for name, value in arguments if name in first and value not in first[name])
    return " ".join(sorted(f"{value} {name}" for name, value in kept))
