"""How engines render the bodies of a model: what of them no prompt holds, and what stands where.

Owns what is known by a model's name alone, as read in public templates. Where a model's own template is at
hand, that tells (`epp.tokens.template`); what engines alone decide is learned (`epp.tokens.optional_parts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from msgspec import Struct

#: Arguments that a template puts before the chat, each with values that say the same as none.
FirstArguments = Mapping[str, Collection[str | float | bool | None]]
EFFORT, THINKING = "reasoning_effort", "enable_thinking"
#: Parts of bodies that some engines and templates leave out of the prompt: reasoning before the last that a
#: user said, reasoning since then, and tools that ``tool_choice`` rules out.
PAST_REASONING, REASONING, UNCHOSEN_TOOLS = "past reasoning", "reasoning", "unchosen tools"
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
#: Families whose templates print the ids of calls: Mistral's and Kimi.
_PRINTS_IDS = re.compile(r"[sx]tral|kimi", re.IGNORECASE)


class Rendering(Struct, frozen=True):
    """One model's rendering.

    Attributes:
        first: arguments of its template that stand before the chat: chats that differ there share nothing.
        lists_first: so do lists and objects among them, whatever their names.
        prints_ids: prompts hold the ids of calls.
        separator: what stands between text parts that follow each other: a line feed as vLLM joins them for
            templates that take texts.
        dropped: which of the optional parts prompts lack.
    """

    first: FirstArguments = {}
    lists_first: bool = True
    prints_ids: bool = False
    separator: str = "\n"
    dropped: frozenset[str] = frozenset()


#: A model's public name to its rendering.
Renderings = Callable[[str], Rendering]
#: Bytes of a body's optional parts.
OptionalBytes = Mapping[str, int]


@lru_cache(maxsize=256)
def by_name(model: str) -> Rendering:
    """Return what a model's name tells."""
    first = next((first for name, first in _FAMILIES if name.search(model)), {})
    return Rendering(first, prints_ids=_PRINTS_IDS.search(model) is not None)
