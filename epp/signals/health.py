"""Which endpoints answer: failures in a row or a high rate of them eject, time and evidence bring back.

Owns one small state machine per slot::

    HEALTHY --failures in a row--> EJECTED --back-off over, not failing--> TRIAL --success--> HEALTHY
                                      ^                                      |
                                      +--------------- failure --------------+

An endpoint on trial takes requests again, few at first: slow start counts from `returned_at_s`. Probes and
requests are counted apart, so that an endpoint whose health page answers while its completions fail is still
ejected. Requests are counted over time as well: one that fails most of them is ejected, too. While probes of
an ejected endpoint keep failing its trial does not begin; without probes time alone begins it. Above the
panic share ejections are ignored: then the fault is more likely here than there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.types import Flags

#: Where a report comes from: an active probe, or a request of a client.
Kind = Literal["probe", "outcome"]

#: Failures in a row that eject (Envoy's outlier detection counts 5 requests too).
_FAILURES: dict[Kind, int] = {"probe": 3, "outcome": 5}
#: Share of failed requests of late that ejects, and the failures that there must be for that.
_ERROR_SHARE, _ERRORS = 0.5, 5.0
#: How long a request counts; it fades exponentially.
_WINDOW_S = 15.0
#: The longest ejection is as many times the first; healthy for so long, an endpoint starts from the first.
_LONGEST = 10.0
#: Share of ejected endpoints above which ejections are ignored.
_PANIC_SHARE = 0.8


class State(Enum):
    """Of an endpoint."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    TRIAL = "trial"


@dataclass(slots=True)
class _Health:
    state: State = State.HEALTHY
    failures: dict[Kind, int] = field(default_factory=dict)
    cause: Kind = "probe"
    ejections: int = 0  # in a row
    back_off_until_s: float = -math.inf
    until_s: float = -math.inf  # the trial begins; never before the back-off is over
    returned_at_s: float = -math.inf
    failed: float = 0.0  # requests of late, fading
    answered: float = 0.0
    counted_s: float = 0.0

    def count(self, now_s: float, *, failed: bool) -> None:
        """Count one more request."""
        left = math.exp(-max(now_s - self.counted_s, 0.0) / _WINDOW_S)
        self.failed = self.failed * left + failed
        self.answered = self.answered * left + (not failed)
        self.counted_s = now_s

    @property
    def failing(self) -> bool:
        """Whether most requests of late failed."""
        return self.failed >= max(_ERRORS, _ERROR_SHARE * (self.failed + self.answered))


class HealthTracker:
    """Health by slot. Reports on slots that were not admitted are ignored.

    Args:
        eject_s: length of the first ejection; doubles with each one that follows soon. Also how long a trial
            waits after the last failed probe.
    """

    def __init__(self, eject_s: float = 5.0) -> None:
        self._eject_s = eject_s
        self._slots: dict[int, _Health] = {}
        self._ejected: set[int] = set()
        self._next_trial_s = math.inf
        self._mask: Flags = np.ones(0, np.bool_)
        #: Called with a slot that is ejected here, and until when; None for nobody.
        self.on_eject: Callable[[int, float], None] | None = None
        #: Whether ejections are being ignored.
        self.panicking = False
        #: When the last trial of any endpoint began.
        self.last_return_s = -math.inf

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._mask = grown(self._mask, capacity, True)

    def admit(self, slot: int) -> None:
        """Take a new endpoint: healthy until shown otherwise."""
        self._slots[slot] = _Health()
        self._set_ejected(slot, False)

    def forget(self, slot: int) -> None:
        """Forget an endpoint that left."""
        self._slots.pop(slot, None)
        self._set_ejected(slot, False)

    def success(self, slot: int, now_s: float, kind: Kind = "probe") -> bool:
        """Note that the endpoint answered. Returns True when that ends a trial: it is back."""
        health = self._slots.get(slot)
        if health is None:
            return False
        if kind == "outcome":
            health.count(now_s, failed=False)
        if health.failures:
            health.failures.pop(kind, None)
        if health.state is State.HEALTHY:
            return False
        if health.state is State.EJECTED:
            if kind == health.cause == "probe":
                health.until_s = health.back_off_until_s
                self._next_trial_s = min(self._next_trial_s, health.until_s)
            if now_s < health.until_s:
                return False
            self._begin_trial(slot, health, now_s)
        if kind not in (health.cause, "outcome"):
            return False
        health.state = State.HEALTHY
        return True

    def failure(self, slot: int, kind: Kind, now_s: float) -> bool:
        """Note no answer, or an error of the endpoint's own. Returns True when that ejects it."""
        health = self._slots.get(slot)
        if health is None:
            return False
        if health.state is State.EJECTED and now_s >= health.until_s:
            self._begin_trial(slot, health, now_s)
        if health.state is State.EJECTED:
            if kind == health.cause == "probe":  # outcomes now are of requests sent before
                health.until_s = max(health.until_s, now_s + self._eject_s)
            return False
        count = health.failures[kind] = health.failures.get(kind, 0) + 1
        if kind == "outcome":
            health.count(now_s, failed=True)
        on_trial = health.state is State.TRIAL and kind in (health.cause, "outcome")
        in_a_row = count >= _FAILURES[kind]
        if on_trial or in_a_row or (kind == "outcome" and health.failing):
            self._eject(slot, health, kind, now_s)
            return True
        return False

    def eject_until(self, slot: int, until_s: float) -> None:
        """Eject an endpoint that another picker has ejected; it is tried again as any other."""
        health = self._slots.get(slot)
        if health is not None and health.state is not State.EJECTED:
            self._keep_out(slot, health, "probe", until_s)

    def eligible(self, now_s: float) -> Flags | None:
        """Return a mask by slot, None when nobody is kept out (or panic lets everybody in).

        Not to be written; valid until the next call.
        """
        if not self._ejected:
            return None
        if now_s >= self._next_trial_s:
            for slot in sorted(self._ejected):
                if now_s >= self._slots[slot].until_s:
                    self._begin_trial(slot, self._slots[slot], now_s)
            self._next_trial_s = min((self._slots[slot].until_s for slot in self._ejected), default=math.inf)
        return self._mask if self._ejected and not self.panicking else None

    def state(self, slot: int) -> State:
        """Return the state of an admitted slot."""
        return self._slots[slot].state

    def returned_at_s(self, slot: int) -> float:
        """Return when an admitted slot's last trial began, minus infinity when it never was ejected."""
        return self._slots[slot].returned_at_s

    def _eject(self, slot: int, health: _Health, kind: Kind, now_s: float) -> None:
        longest_s = _LONGEST * self._eject_s
        if now_s - health.returned_at_s > longest_s:
            health.ejections = 0
        # The exponent is capped: two to the power of a large count is no float.
        length_s = min(self._eject_s * 2.0 ** min(health.ejections, 32), longest_s)
        health.ejections += 1
        health.failures.clear()
        health.failed = health.answered = 0.0
        self._keep_out(slot, health, kind, now_s + length_s)
        if self.on_eject is not None:
            self.on_eject(slot, health.until_s)

    def _keep_out(self, slot: int, health: _Health, cause: Kind, until_s: float) -> None:
        health.state, health.cause = State.EJECTED, cause
        health.back_off_until_s = health.until_s = until_s
        self._next_trial_s = min(self._next_trial_s, until_s)
        self._set_ejected(slot, True)

    def _begin_trial(self, slot: int, health: _Health, now_s: float) -> None:
        health.state = State.TRIAL
        health.returned_at_s = self.last_return_s = now_s
        self._set_ejected(slot, False)

    def _set_ejected(self, slot: int, ejected: bool) -> None:
        self._mask[slot] = not ejected
        (self._ejected.add if ejected else self._ejected.discard)(slot)
        out, members = len(self._ejected), len(self._slots)
        self.panicking = out > 0 and (out >= members or out > _PANIC_SHARE * members)
