"""The newest decisions of a running picker, for people."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.schedule.decision import Decision

#: Newest decisions that are remembered, and the memory of their endpoints and blocks together.
RECENT_DECISIONS, RECENT_BYTES = 1000, 16_000_000
_ENDPOINT_BYTES, _BLOCK_BYTES = 250, 40


class RecentDecisions:
    """The newest decisions, for `epp explain` against a running picker; those before are in the records.

    Args:
        size: decisions at most.
        max_bytes: memory that they take, about; the newest stays however large it is.
    """

    def __init__(self, size: int = RECENT_DECISIONS, max_bytes: int = RECENT_BYTES) -> None:
        self._size, self._max_bytes = size, max_bytes
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._bytes = 0

    def add(self, decision: Decision) -> None:
        """Remember a decision, forget the oldest."""
        decisions = self._decisions
        decisions[decision.id] = decision
        self._bytes += _bytes_of(decision)
        while len(decisions) > self._size or (self._bytes > self._max_bytes and len(decisions) > 1):
            self._bytes -= _bytes_of(decisions.popitem(last=False)[1])

    def get(self, decision_id: str) -> Decision | None:
        """Return a decision by its id."""
        return self._decisions.get(decision_id)

    def find(self, name: str) -> Decision | None:
        """Return a decision by its id or by its origin's; the newest for ``"last"``."""
        if name == "last":
            return next(reversed(self), None)
        forwarded = (each for each in reversed(self) if each.request.origin_decision == name)
        return self.get(name) or next(forwarded, None)

    def __reversed__(self) -> Iterator[Decision]:
        """Go through them, the newest first."""
        return reversed(self._decisions.values())


def _bytes_of(decision: Decision) -> int:
    return _ENDPOINT_BYTES * len(decision.snapshot) + _BLOCK_BYTES * len(decision.request.blocks)
