"""Which responses are read, and how many of them at once: the draw, and what lowers its share.

Owns the share in force and the counts of what was observed. The draw is keyed by the decision's id, so that
a record can be told to have been in the sample. Above ``max_chunks_per_s`` the share falls by itself, in
proportion, and it rises again in steps when there is room for a step (hysteresis: it falls above the limit
and rises only to what leaves a fifth of it free). Streams that are being read are read to their end: the
share holds for new ones, so the rate follows it with the length of an answer, and the share is left alone
for a while after each change. A request in full duplex that only the limit leaves unread is carried: its
stream can end with its pick only by a replacement of its body, which is the operator's choice to make.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epp.config.schema import ObserveSection
from epp.extproc.types import Observe
from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from epp.clock import Clock

log = logging.getLogger(__name__)

SALT = "observe"
#: Seconds over which the rate is measured.
WINDOW_S = 1.0
#: Seconds for which a lowered share is left alone, and between two steps up.
SETTLE_S, RISE_S = 3.0, 5.0
#: The share aims below the limit when it falls, and rises to at most this part of it.
_AIM, _ROOM = 0.9, 0.8
_STEP = 1.5
_LEAST = 1e-4


def section_of(observe: ObserveSection | str) -> ObserveSection:
    """The section, of which the text form is the mode alone."""
    return observe if isinstance(observe, ObserveSection) else ObserveSection(mode=observe)


def share_of(mode: str) -> float:
    """Share of the responses that a mode reads: ``all``, ``none``, or ``sample:`` and the share."""
    if mode == "all":
        return 1.0
    return 0.0 if mode == "none" else float(mode.removeprefix("sample:"))


class Sampler:
    """Says of each decision whether its response is read.

    Args:
        settings: mode, limit, and what becomes of the others.
        seed: seed of the draws.
        clock: the time.
    """

    def __init__(self, settings: ObserveSection, *, seed: int, clock: Clock) -> None:
        self._seed, self._clock = seed, clock
        self._configured = self._share = share_of(settings.mode)
        self._limit = settings.max_chunks_per_s
        self._otherwise = Observe.END_STREAM_AFTER_PICK if settings.unobserved == "end" else Observe.CARRY
        self._window_begun_s = self._changed_s = clock.mono_s()
        self._in_window = 0
        #: Responses by what became of them.
        self.counts = dict.fromkeys(Observe, 0)

    @property
    def share(self) -> float:
        """The share in force."""
        return self._share

    @property
    def may_leave(self) -> bool:
        """Whether any stream may end with its pick."""
        return self._otherwise is Observe.END_STREAM_AFTER_PICK and (
            self._configured < 1.0 or self._limit > 0
        )

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._clock.mono_s()

    def choose(self, decision_id: str, *, duplex: bool = False) -> Observe:
        """What becomes of the response to a decision.

        Args:
            decision_id: the decision's.
            duplex: whether its request came in full duplex.
        """
        share, drawn = self._share, 0.0
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
        """A piece was read."""
        self._in_window += 1

    def tick(self) -> None:
        """Measure, and adjust the share; to be called about once per `WINDOW_S`."""
        now_s = self._clock.mono_s()
        passed_s = now_s - self._window_begun_s
        if passed_s < WINDOW_S:
            return
        rate = self._in_window / passed_s
        self._in_window, self._window_begun_s = 0, now_s
        if self._limit <= 0 or not self._configured:
            return
        rested_s = now_s - self._changed_s
        if rate > self._limit and rested_s >= (SETTLE_S if self._share < self._configured else 0.0):
            self._set(max(self._share * self._limit * _AIM / rate, _LEAST * self._configured), rate, now_s)
        elif self._share < self._configured and rested_s >= RISE_S and rate * _STEP <= self._limit * _ROOM:
            self._set(min(self._share * _STEP, self._configured), rate, now_s)

    def _set(self, share: float, rate: float, now_s: float) -> None:
        log.warning(
            "%.0f chunks/s of responses read, %.0f allowed: reading %.3g %% of the responses, was %.3g %%",
            rate,
            self._limit,
            share * 100,
            self._share * 100,
        )
        self._share, self._changed_s = share, now_s
