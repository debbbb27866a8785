"""Which optional parts of bodies engines put into the prompts of a model, learned from their own counts.

Owns the votes. A client sends back what a model thought, or rules tools out: templates and engines keep that
or leave it out, and the prompt's tokens tell which. A part is kept until a few requests say otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.types import RequestInfo

#: Votes that a part of a model may have, and those that it begins with; above 0 it is dropped.
_MOST_VOTES, _FIRST_VOTES = 3, -1
#: Share of the prompt's tokens by which the better account must be nearer to be a vote.
_LEAST_DIFFERENCE = 0.1
_MAX_MODELS = 256


class OptionalParts:
    """What is kept and dropped, by model name."""

    def __init__(self) -> None:
        self._votes: OrderedDict[str, dict[str, int]] = OrderedDict()

    def dropped(self, model: str) -> frozenset[str]:
        """Return the parts that prompts of a model lack."""
        return frozenset(kind for kind, count in self._votes.get(model, {}).items() if count > 0)

    def observe(self, request: RequestInfo, prompt_tokens: int, bytes_per_token: float) -> int:
        """Learn from an engine's count of a request's prompt.

        Returns:
            The bytes that it counted, as near as can be told.
        """
        parts = request.optional
        if not parts:
            return request.text_bytes
        whole = request.text_bytes + sum(size for kind, size in parts.items() if kind in request.dropped)
        accounts = []
        for number in range(len(parts) + 1):
            for dropped in combinations(parts, number):
                size = whole - sum(parts[kind] for kind in dropped)
                accounts.append((abs(size / bytes_per_token - prompt_tokens), size, dropped))
        votes = self._votes.setdefault(request.model, {})
        self._votes.move_to_end(request.model)
        for kind in parts:
            off_kept = min(off for off, _, dropped in accounts if kind not in dropped)
            off_dropped = min(off for off, _, dropped in accounts if kind in dropped)
            if abs(off_kept - off_dropped) >= _LEAST_DIFFERENCE * prompt_tokens:
                vote = votes.get(kind, _FIRST_VOTES) + (1 if off_dropped < off_kept else -1)
                votes[kind] = min(max(vote, -_MOST_VOTES), _MOST_VOTES)
        if len(self._votes) > _MAX_MODELS:
            self._votes.popitem(last=False)
        return min(accounts)[1]
