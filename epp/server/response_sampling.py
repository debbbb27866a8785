"""Which responses are read, and the leases of requests whose response nobody sees.

The draw is keyed by the decision's id, so that a record shows whether it was in the sample. Above
``max_chunks_per_s`` the share falls in proportion; it rises again in steps when there is room for a step.
Streams that are being read are read to their end, so the rate follows the share with the length of an answer,
and the share is left alone for a while after each change. A request in full duplex that only the limit leaves
unread is carried: its stream can end with its pick only by a replacement of its body, which is the operator's
choice to make.

A request whose stream ended with its pick has estimated ends: its uncached tokens are released at the
predicted first token, its lease at the predicted end. Engine metrics correct this both ways: an endpoint that
reports nothing running or waiting frees what was sent to it well before that scrape, and one that reports at
least as many requests as the ledger counts keeps a lease for longer, up to `LONGEST` times its prediction. An
access log that reports the end goes before all of this.
"""

from __future__ import annotations

import heapq
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.config.schema import ObserveSection
from epp.extproc.types import Cause, Observe
from epp.keyed_uniform import keyed_uniform
from epp.signals.engine_metrics import RUNNING, WAITING

if TYPE_CHECKING:
    from epp.clock import Clock
    from epp.schedule.decision import Decision, Outcome
    from epp.schedule.picker import Picker
    from epp.server.outcomes import Outcomes
    from epp.signals.duration import Duration

log = logging.getLogger(__name__)

SALT = "observe"
#: Seconds between two looks at what is due, and over which the rate is measured.
TICK_S, WINDOW_S = 0.1, 1.0
#: Seconds for which a lowered share is left alone, and between two steps up.
SETTLE_S, RISE_S = 3.0, 5.0
#: The share aims below the limit when it falls, and rises to at most this part of it.
_AIM, _ROOM = 0.9, 0.8
_STEP = 1.5
_LEAST = 1e-4
#: A lease that the engine's metrics bear out lives for at most so many times its predicted length.
LONGEST = 3.0
#: A request that an idle engine can have missed: sent so many seconds before the scrape, and a round trip.
IN_TRANSIT_S = 0.5


def section_of(observe: ObserveSection | str) -> ObserveSection:
    """Read the section, of which the text form is the mode alone."""
    return observe if isinstance(observe, ObserveSection) else ObserveSection(mode=observe)


def share_of(mode: str) -> float:
    """Read the share of the responses of a mode: ``all``, ``none``, or ``sample:`` and the share."""
    if mode == "all":
        return 1.0
    return 0.0 if mode == "none" else float(mode.removeprefix("sample:"))


class Sampler:
    """Says of each decision whether its response is read.

    Args:
        settings: mode, limit, and what becomes of the others.
        seed: seed of the draws.
        clock: the time.

    Attributes:
        now_s: the monotonic time.
        share: the share in force.
        counts: responses by what became of them.
        may_end_streams: whether any stream may end with its pick.
    """

    def __init__(self, settings: ObserveSection, *, seed: int, clock: Clock) -> None:
        self._seed, self.now_s = seed, clock.mono_s
        self._configured = self.share = share_of(settings.mode)
        self._limit = settings.max_chunks_per_s
        ends = settings.unobserved == "end"
        self._otherwise = Observe.END_STREAM_AFTER_PICK if ends else Observe.CARRY
        self.may_end_streams = ends and (self._configured < 1.0 or self._limit > 0)
        self._window_begun_s = self._changed_s = clock.mono_s()
        self._in_window = 0
        self.counts = dict.fromkeys(Observe, 0)

    def choose(self, decision_id: str, *, duplex: bool = False) -> Observe:
        """Choose what becomes of the response to a decision, whose request came in full ``duplex`` or not."""
        share, drawn = self.share, 0.0
        if 0.0 < share < 1.0:
            drawn = keyed_uniform(self._seed, decision_id, SALT)
        if drawn < share:
            how = Observe.READ
        elif duplex and drawn < self._configured:
            how = Observe.CARRY
        else:
            how = self._otherwise
        self.counts[how] += 1
        return how

    def chunk(self) -> None:
        """Count a piece that was read."""
        self._in_window += 1

    def tick(self) -> None:
        """Measure, and adjust the share; acts about once per `WINDOW_S`."""
        now_s = self.now_s()
        passed_s = now_s - self._window_begun_s
        if passed_s < WINDOW_S:
            return
        rate = self._in_window / passed_s
        self._in_window, self._window_begun_s = 0, now_s
        if self._limit <= 0 or not self._configured:
            return
        rested_s = now_s - self._changed_s
        if rate > self._limit and rested_s >= (SETTLE_S if self.share < self._configured else 0.0):
            self._set(max(self.share * self._limit * _AIM / rate, _LEAST * self._configured), rate, now_s)
        elif self.share < self._configured and rested_s >= RISE_S and rate * _STEP <= self._limit * _ROOM:
            self._set(min(self.share * _STEP, self._configured), rate, now_s)

    def _set(self, share: float, rate: float, now_s: float) -> None:
        log.warning(
            "%.0f chunks/s of responses read, %.0f allowed: reading %.3g %% of the responses, was %.3g %%",
            rate,
            self._limit,
            share * 100,
            self.share * 100,
        )
        self.share, self._changed_s = share, now_s


@dataclass(slots=True)
class _Lease:
    """A request and its prediction; `slot` and `ended_s` once its stream has ended with its pick."""

    endpoint: str
    rtt_s: float
    expected: Duration
    slot: int = -1
    ended_s: float = math.nan

    def at_s(self, lengths: float) -> float:
        """Monotonic time at which so many times its predicted length is over."""
        return self.ended_s + lengths * self.expected.end_s


class EstimatedLeases:
    """Ends the leases of requests whose stream ended with the pick.

    Args:
        picker: holds the leases.
        outcomes: takes each end.
        clock: the time.
    """

    def __init__(self, picker: Picker, outcomes: Outcomes, clock: Clock) -> None:
        self._picker, self._outcomes, self._clock = picker, outcomes, clock
        self._open: dict[str, _Lease] = {}
        self._estimated: dict[str, _Lease] = {}
        self._due: list[tuple[float, str]] = []
        outcomes.listeners.append(self._forget)

    def __len__(self) -> int:
        """Requests whose end is estimated."""
        return len(self._estimated)

    def decided(self, decision: Decision, expected: Duration) -> None:
        """Remember how long a request is expected to take, until its outcome is there."""
        rtt_s = decision.fleet.rtt_ms.item(decision.chosen) / 1e3
        self._open[decision.id] = _Lease(decision.endpoint, rtt_s, expected)

    def stream_ended(self, decision_id: str) -> None:
        """Estimate the end of a request from now on."""
        lease = self._open.get(decision_id)
        slot = None if lease is None else self._picker.fleet.slot_of(lease.endpoint)
        if lease is None or slot is None:  # its endpoint left in the same moment
            self._outcomes.stream_ended(decision_id, Cause.UNOBSERVED.value)
            return
        lease.slot, lease.ended_s = slot, self._clock.mono_s()
        self._estimated[decision_id] = lease
        heapq.heappush(self._due, (lease.ended_s + lease.expected.first_token_s, decision_id))

    def unsent(self, decision_id: str) -> None:
        """End a request whose pick did not reach the proxy: no engine has it."""
        if self._estimated.pop(decision_id, None) is not None:
            self._outcomes.stream_ended(decision_id, Cause.CLIENT_GONE.value)

    def tick(self) -> None:
        """Do what is due."""
        now_s = self._clock.mono_s()
        if self._estimated:
            self._free_idle(now_s)
        while self._due and self._due[0][0] <= now_s:
            _, decision_id = heapq.heappop(self._due)
            lease = self._estimated.get(decision_id)
            if lease is None:
                continue
            if now_s < lease.at_s(1.0):
                self._picker.fleet.ledger.first_token(decision_id, now_s)
                heapq.heappush(self._due, (lease.at_s(1.0), decision_id))
            elif now_s < lease.at_s(LONGEST) and self._borne_out(lease, now_s):
                heapq.heappush(self._due, (now_s + TICK_S, decision_id))
            else:
                self._end(decision_id)

    def _free_idle(self, now_s: float) -> None:
        """End what an engine without work cannot have any more."""
        engine = self._picker.fleet.engine
        block, scraped_s = engine.block(now_s), engine.updated_s
        idle = set(np.flatnonzero(block[RUNNING] + block[WAITING] == 0.0).tolist())
        if not idle:
            return
        for decision_id, lease in list(self._estimated.items()):
            sent_s = lease.ended_s + lease.rtt_s + IN_TRANSIT_S
            if lease.slot in idle and sent_s < scraped_s[lease.slot] and self._is_there(lease):
                self._end(decision_id)

    def _is_there(self, lease: _Lease) -> bool:
        """Whether its slot is its endpoint's: another that took it says nothing of this request."""
        return self._picker.fleet.address_of(lease.slot) == lease.endpoint

    def _borne_out(self, lease: _Lease, now_s: float) -> bool:
        fleet, slot = self._picker.fleet, lease.slot
        busy = fleet.engine.block(now_s)[[RUNNING, WAITING], slot].sum()
        # False where unknown
        return self._is_there(lease) and bool(busy >= fleet.ledger.running_requests[slot])

    def _end(self, decision_id: str) -> None:
        del self._estimated[decision_id]
        self._outcomes.stream_ended(decision_id, Cause.UNOBSERVED.value, predicted=True)

    def _forget(self, outcome: Outcome) -> None:
        self._estimated.pop(outcome.id, None)
        self._open.pop(outcome.id, None)
