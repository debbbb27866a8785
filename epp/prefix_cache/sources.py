"""Merge what any number of sources knows of prefixes: one question a request, one answer by slot.

The picker's own index is one source, summaries of peer regions are another. A source says what it knows of
one prompt; several prompts of a request and the bound on what its engine reads are the merge's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.prefix_cache.index import PrefixIndex
    from epp.prefix_cache.match import PrefixMatch
    from epp.types import Floats, RequestInfo, Slots


class Match(Protocol):
    """Say how much of one prompt each slot holds."""

    def cached_tokens(self, slots: Slots) -> Floats:
        """Return the tokens cached by candidate, 0 where the source knows nothing; the caller may write."""
        ...


class PrefixSource(Protocol):
    """Know prefixes."""

    def match(self, prompt: RequestInfo) -> Match:
        """Look up one prompt."""
        ...


class RequestMatch:
    """Say how much of all prompts of one request each slot holds.

    Args:
        prompts: the matches of each prompt, by source.
        most_tokens: that the request's engine may read of all of them, None for any.
        own: the match of the first prompt by the picker's own index.

    Attributes:
        depth_blocks: blocks of the first prompt that any slot holds by that index.
        parted: another prompt went on from there in a way of its own.
    """

    __slots__ = ("_most_tokens", "_prompts", "depth_blocks", "parted")

    def __init__(
        self, prompts: Sequence[Sequence[Match]], most_tokens: float | None, own: PrefixMatch
    ) -> None:
        self._prompts, self._most_tokens = prompts, most_tokens
        self.depth_blocks, self.parted = own.depth_blocks, own.parted

    def cached_tokens(self, slots: Slots) -> Floats:
        """Return the cached tokens that the request's engine may read, by candidate."""
        total: Floats = np.zeros(len(slots))
        for first, *others in self._prompts:
            cached = first.cached_tokens(slots)
            for other in others:
                cached = np.maximum(cached, other.cached_tokens(slots))
            total += cached
        return total if self._most_tokens is None else np.minimum(total, self._most_tokens)


class PrefixSources:
    """Ask all sources.

    Args:
        index: the picker's own, which learns from its decisions.

    Attributes:
        others: further sources, by name.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self.others: dict[str, PrefixSource] = {}

    def match(self, request: RequestInfo) -> RequestMatch | None:
        """Look up a request's prompts; None where it has none, or its engine reads no cache."""
        if not request.prompt_tokens or request.readable_tokens == 0:
            return None
        own = self._index.match(request)
        prompts: list[Sequence[Match]] = [(own, *self._ask_others(request))]
        prompts += [(self._index.match(one), *self._ask_others(one)) for one in request.more]
        readable_tokens = request.readable_tokens
        most_tokens = None if readable_tokens is None else float(readable_tokens * request.prompts)
        return RequestMatch(prompts, most_tokens, own)

    def _ask_others(self, prompt: RequestInfo) -> list[Match]:
        return [source.match(prompt) for source in self.others.values()]
