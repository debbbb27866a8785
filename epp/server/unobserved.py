"""Leases of requests whose response nobody sees: they end when it is to be expected.

Owns the requests that were left with their pick, by the moment at which something is to be done for each:
its uncached tokens go back at the predicted first token, its lease at the predicted end. Engine metrics
correct the prediction both ways: an endpoint that reports nothing running or waiting frees what was sent to
it well before that scrape, and one that reports at least as many requests as the ledger counts keeps a
lease for longer, up to `LONGEST` times its prediction. An access log that tells the end goes before all of
this.

How long answers take is learned from those that are seen, or from an access log (`epp.schedule.feedback`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.extproc.types import Cause

if TYPE_CHECKING:
    from epp.clock import Clock
    from epp.schedule.decision import Decision, Outcome
    from epp.schedule.picker import Picker
    from epp.server.outcomes import Outcomes
    from epp.signals.duration import Duration

#: Seconds between two looks at what is due.
TICK_S = 0.1
#: A lease that the engine's metrics bear out lives for at most so many times its predicted length.
LONGEST = 3.0
#: A request that an idle engine can have missed: sent so many seconds before the scrape, and a round trip.
IN_TRANSIT_S = 0.5


class _Sent(Struct, frozen=True):
    endpoint: str
    rtt_s: float
    expected: Duration


@dataclass(slots=True)
class _Left:
    endpoint: str
    slot: int
    left_s: float
    end_s: float
    longest_s: float
    rtt_s: float


class UnobservedLeases:
    """Ends the leases of requests that were left.

    Args:
        picker: holds the leases.
        outcomes: told of each end.
        clock: the time.
    """

    def __init__(self, picker: Picker, outcomes: Outcomes, clock: Clock) -> None:
        self._picker, self._outcomes, self._clock = picker, outcomes, clock
        self._sent: dict[str, _Sent] = {}
        self._left: dict[str, _Left] = {}
        self._due: list[tuple[float, str]] = []
        outcomes.told.append(self._forget)

    def __len__(self) -> int:
        """Requests left and not ended."""
        return len(self._left)

    def decided(self, decision: Decision, expected: Duration) -> None:
        """Remember how long a request is to be expected to take, until its outcome is told."""
        rtt_s = decision.fleet.rtt_ms.item(decision.chosen) / 1e3
        self._sent[decision.id] = _Sent(decision.endpoint, rtt_s, expected)

    def left(self, decision_id: str) -> None:
        """Its stream was ended with the pick."""
        sent = self._sent.get(decision_id)
        slot = None if sent is None else self._picker.fleet.slot_of(sent.endpoint)
        if sent is None or slot is None:  # its endpoint left in the same moment
            self._outcomes.stream_ended(decision_id, "unobserved")
            return
        now_s, expected = self._clock.mono_s(), sent.expected
        end_s, longest_s = now_s + expected.end_s, now_s + LONGEST * expected.end_s
        self._left[decision_id] = _Left(sent.endpoint, slot, now_s, end_s, longest_s, sent.rtt_s)
        heapq.heappush(self._due, (now_s + expected.first_token_s, decision_id))

    def unsent(self, decision_id: str) -> None:
        """Its pick did not reach the proxy: no engine has the request."""
        if self._left.pop(decision_id, None) is not None:
            self._outcomes.stream_ended(decision_id, Cause.CLIENT_GONE.value)

    def tick(self) -> None:
        """Do what is due."""
        now_s = self._clock.mono_s()
        if self._left:
            self._free_idle(now_s)
        while self._due and self._due[0][0] <= now_s:
            _, decision_id = heapq.heappop(self._due)
            left = self._left.get(decision_id)
            if left is None:
                continue
            if now_s < left.end_s:
                self._picker.fleet.ledger.first_token(decision_id, now_s)
                heapq.heappush(self._due, (left.end_s, decision_id))
            elif now_s < left.longest_s and self._borne_out(left, now_s):
                heapq.heappush(self._due, (now_s + TICK_S, decision_id))
            else:
                self._end(decision_id)

    def _free_idle(self, now_s: float) -> None:
        """End what an engine without work cannot have any more."""
        engine = self._picker.fleet.engine
        busy, scraped_s = engine.running(now_s) + engine.waiting(now_s), engine.updated_s
        idle = {slot for slot in {left.slot for left in self._left.values()} if busy[slot] == 0.0}
        if not idle:
            return
        for decision_id, left in list(self._left.items()):
            missed = left.slot in idle and left.left_s + left.rtt_s + IN_TRANSIT_S < scraped_s[left.slot]
            if missed and self._still_there(left):
                self._end(decision_id)

    def _still_there(self, left: _Left) -> bool:
        """Whether its slot is its endpoint's: another that took it tells nothing of this request."""
        return self._picker.fleet.address_of(left.slot) == left.endpoint

    def _borne_out(self, left: _Left, now_s: float) -> bool:
        if not self._still_there(left):
            return False
        fleet, slot = self._picker.fleet, left.slot
        busy = fleet.engine.running(now_s)[slot] + fleet.engine.waiting(now_s)[slot]
        return bool(busy >= fleet.ledger.running_requests[slot])  # False where unknown

    def _end(self, decision_id: str) -> None:
        del self._left[decision_id]
        self._outcomes.stream_ended(decision_id, "unobserved", predicted=True)

    def _forget(self, outcome: Outcome) -> None:
        self._left.pop(outcome.id, None)
        self._sent.pop(outcome.id, None)
