"""What keeps the requests of a conversation together where clients name no session: its root.

Owns what was learned of shared templates: a block after which many different blocks were seen ends something
that everybody sends (a system prompt, a tool list), and the first block below it is where one conversation
begins. Pure.

Rules
- A prompt that ends within its template has no root. Neither has any of a namespace of which too little
  was seen: a template taken for a conversation would put all its conversations into one arm.
- Used during splits alone, so that it costs nothing otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.types import RequestInfo

#: So many different continuations make a template; a conversation that is regenerated has fewer.
_TEMPLATE_CHILDREN = 16
#: How deep a template is looked for, in blocks; some 8,000 tokens with blocks of 256 bytes.
_MAX_DEPTH = 128
#: Prompts of a namespace that only teach.
_LEARN_PROMPTS = 100
_MAX_PARENTS = 100_000
_MAX_NAMESPACES = 10_000


class PromptRoots:
    """Roots of the prompts that it learned from."""

    __slots__ = ("_children", "_seen")

    def __init__(self) -> None:
        # parent block -> its only child, or several; the least recently used first
        self._children: OrderedDict[int, int | set[int]] = OrderedDict()
        self._seen: OrderedDict[int, int] = OrderedDict()

    def root(self, prompt: RequestInfo) -> int | None:
        """Find the first block below the prompt's template, None when it has none or little is known yet."""
        parent, root = prompt.namespace, None
        for block in prompt.blocks[:_MAX_DEPTH]:
            if self._splits(parent):
                root = block
            parent = block
        known = self._seen.get(prompt.namespace, 0) > _LEARN_PROMPTS
        return root if known and not self._splits(parent) else None

    def learn(self, prompt: RequestInfo) -> None:
        """Learn from a prompt how templates go on."""
        self._count(prompt.namespace)
        parent = prompt.namespace
        for block in prompt.blocks[:_MAX_DEPTH]:
            self._add(parent, block)
            parent = block
        while len(self._children) > _MAX_PARENTS:
            self._children.popitem(last=False)

    def _splits(self, parent: int) -> bool:
        """Whether prompts part below a block: it ends their template, or is in it."""
        below = self._children.get(parent)
        return isinstance(below, set) and len(below) >= _TEMPLATE_CHILDREN

    def _add(self, parent: int, block: int) -> None:
        """Note a continuation."""
        known = self._children.setdefault(parent, block)
        self._children.move_to_end(parent)
        if isinstance(known, int):
            if known == block:
                return
            known = self._children[parent] = {known}
        if len(known) < _TEMPLATE_CHILDREN:
            known.add(block)

    def _count(self, namespace: int) -> None:
        self._seen[namespace] = self._seen.pop(namespace, 0) + 1
        if len(self._seen) > _MAX_NAMESPACES:
            self._seen.popitem(last=False)
