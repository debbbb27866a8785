"""Which responses are read.

The draw is keyed by the decision's id, so that a record shows whether it was in the sample. Above
``max_chunks_per_s`` the share falls in proportion; it rises again in steps when there is room for a step.
Streams that are being read are read to their end, so the rate follows the share with the length of an answer,
and the share is left alone for a while after each change. A request in full duplex that only the limit leaves
unread is carried: its stream can end with its decision only by a replacement of its body, which is the
operator's choice to make.
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
        clock: the time.

    Attributes:
        now_s: the monotonic time.
        share: the share in force.
        counts: responses by what became of them.
        may_end_streams: whether any stream may end with its decision.
    """

    def __init__(self, settings: ObserveSection, clock: Clock) -> None:
        self.now_s = clock.mono_s
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
            drawn = keyed_uniform(0, decision_id, SALT)
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
