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

from epp.apis.canonical import Frames, exact_tokens

if TYPE_CHECKING:
    from epp.apis.types import FirstArguments, ParsedRequest, TemplateArguments

EFFORT, THINKING = "reasoning_effort", "enable_thinking"
_NO_EFFORT = "none"
_TAG = b"E"
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


def template_arguments(given: object, *efforts: object, **more: object) -> TemplateArguments:
    """What engines pass on to the template: texts, numbers and truth values; others are left out.

    Args:
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
    if not asked:
        return ()
    kept = (
        (name, value)
        for name, value in asked.items()
        if isinstance(name, str)
        and isinstance(value, str | int | float)
        and max(len(name), len(value) if isinstance(value, str) else 0) <= _ARGUMENT_CHARS
    )
    return tuple(islice(kept, _MOST_ARGUMENTS))  # the others are not even looked at: they may be a million


def add_first(framed: Frames, model: str, arguments: TemplateArguments) -> None:
    """Frame the arguments that stand first in prompts of the model, of which nothing is framed yet."""
    if not arguments:
        return
    for name, first in _FAMILIES:
        if name.search(model):
            if said := _said(first, arguments):
                framed.add_text(_TAG, said)
            return


def with_first(request: ParsedRequest, first: FirstArguments) -> ParsedRequest:
    """The request with its arguments that stand first framed; where the model's name told them, they are."""
    known = request.canonical.startswith(b"\xff" + _TAG)
    if known or not request.template_arguments or exact_tokens(request.canonical) is not None:
        return request
    framed = Frames()
    if not (said := _said(first, request.template_arguments)):
        return request
    framed.add_text(_TAG, said)
    return replace(request, canonical=framed.bytes() + request.canonical)


def _said(first: FirstArguments, arguments: TemplateArguments) -> str:
    """Those of the arguments that stand first as one text, in whatever order they came."""
    said = ((name, value) for name, value in arguments if name in first and value not in first[name])
    return " ".join(sorted(f"{value} {name}" for name, value in said))
