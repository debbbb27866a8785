"""The newest decisions of a running picker, and what came of them, for people."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from epp.schedule.decision import outcome_record, to_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.schedule.decision import Decision, Outcome

#: Id of a decision that nobody has asked for in earnest.
PREVIEW = "preview"
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
        self._outcomes: dict[str, tuple[Outcome, float]] = {}  # of these decisions, with their Unix times
        self._bytes = 0

    def add(self, decision: Decision) -> None:
        """Remember a decision, forget the oldest."""
        decisions = self._decisions
        decisions[decision.id] = decision
        self._bytes += _bytes_of(decision)
        while len(decisions) > self._size or (self._bytes > self._max_bytes and len(decisions) > 1):
            oldest, gone = decisions.popitem(last=False)
            self._bytes -= _bytes_of(gone)
            self._outcomes.pop(oldest, None)

    def ended(self, outcome: Outcome, at_wall_s: float) -> None:
        """Remember what came of a decision, for as long as the decision itself."""
        if outcome.id in self._decisions:
            self._outcomes[outcome.id] = outcome, at_wall_s

    def get(self, decision_id: str) -> Decision | None:
        """Return a decision by its id."""
        return self._decisions.get(decision_id)

    def find(self, name: str) -> Decision | None:
        """Return a decision by its id or its origin's, the ``newest``, or the ``last`` with a prompt."""
        if name in ("last", "newest"):
            prompted = (each for each in reversed(self) if each.request.prompt_tokens or name == "newest")
            return next(prompted, None)
        forwarded = (each for each in reversed(self) if each.request.origin_decision == name)
        return self.get(name) or next(forwarded, None)

    def record(self, name: str) -> dict[str, Any] | None:
        """Return the record of what `find` finds, with its ``outcome``; None where it finds nothing."""
        if (found := self.find(name)) is None:
            return None
        ended = self._outcomes.get(found.id)
        return to_record(found) | {"outcome": None if ended is None else outcome_record(*ended)}

    def __reversed__(self) -> Iterator[Decision]:
        """Go through them, the newest first."""
        return reversed(self._decisions.values())


def _bytes_of(decision: Decision) -> int:
    return _ENDPOINT_BYTES * len(decision.snapshot) + _BLOCK_BYTES * len(decision.request.blocks)
