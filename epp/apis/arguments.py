"""What clients give a model's chat template beside the chat, and which of it stands first in the prompt.

Owns the bounds on arguments. Chats that differ in an argument that a template puts before all else share not
even their system prompt. Most templates put them behind the chat or at its turns. There they are no part of
the hash: a conversation that goes on with another setting is cached all the same. Which stand first tells the
model's rendering (`epp.apis.rendering`).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from epp.apis.canonical import spell
from epp.apis.rendering import EFFORT, THINKING

if TYPE_CHECKING:
    from epp.apis.media import PromptFrames

_NO_EFFORT = "none"
_TAG = b"E"
#: Bounds on what a client may hand to a template.
_MOST_ARGUMENTS, _ARGUMENT_CHARS = 16, 256


def add_arguments(framed: PromptFrames, given: object, *efforts: object, **more: object) -> None:
    """Add what engines pass on to the template, and frame first what its prompts begin with.

    Texts, numbers, truth values, lists and objects are.

    Args:
        framed: of which nothing is framed yet.
        given: ``chat_template_kwargs``.
        efforts: where the API may say how hard to think: the effort, or an object that holds it as
            ``effort``. The first that does counts before `given`; it tells whether to think at all, too,
            where `given` does not.
        more: other arguments by name, None where the body does not say.

    Raises:
        ClientError: 400, an argument is nested too deeply.
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
        and len(name) <= _ARGUMENT_CHARS
        and (isinstance(value, list | dict) or (value is not None and len(str(value)) <= _ARGUMENT_CHARS))
    )
    # The others are not even looked at: they may be a million.
    framed.arguments = arguments = tuple(islice(kept, _MOST_ARGUMENTS))
    if arguments and (spelled := _spelled(framed, arguments)):
        framed.add_text(_TAG, spelled)


def _spelled(framed: PromptFrames, arguments: tuple[tuple[str, object], ...]) -> str:
    """Return those of the arguments that stand first as one text, in whatever order they came."""
    rendering, kept = framed.rendering, list[str]()
    for name, value in arguments:
        if isinstance(value, list | dict):
            if value and (rendering.lists_first or name in rendering.first):
                kept.append(f"{spell(value).decode()} {name}")
        elif name in rendering.first and value not in rendering.first[name]:
            kept.append(f"{value} {name}")
    return " ".join(sorted(kept))
