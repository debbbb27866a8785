"""Which endpoints answer: failures in a row or a high rate of them eject, time and evidence bring back.

Owns one small state machine per slot::

    HEALTHY --failures in a row--> EJECTED --back-off over, not failing--> TRIAL --success--> HEALTHY
                                      ^                                      |
                                      +--------------- failure --------------+

An endpoint on trial takes requests again, few at first: slow start counts from `returned_at_s`. Failures are
counted per kind, so that an endpoint whose health page answers while its completions fail is still ejected.
Requests are counted over time as well: one that fails most of them, with a success now and then, is no good.
While probes of an ejected endpoint keep failing its trial does not begin; without probes time alone begins
it. Ejection never empties the pool: above the panic share everybody counts as eligible, because then the
fault is more likely here than there, and the few that are left would drown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Where a report comes from: an active probe, a metrics scrape, a request of a client.
Kind = Literal["probe", "scrape", "outcome"]


class State(Enum):
    """Of an endpoint."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Constants.

    Attributes:
        probe_failures: failed probes in a row that eject; 0 for never.
        scrape_failures: failed scrapes in a row that eject; never by default, since an engine without
            metrics serves all the same.
        outcome_failures: failed requests in a row that eject (Envoy's outlier detection counts 5 too).
        outcome_error_share: share of failed requests, over the last seconds, that ejects.
        outcome_errors: failures there must be of late for that.
        outcome_window_s: how long a request counts in full; it fades exponentially.
        eject_s: length of the first ejection; doubles with each one that follows soon. Also how long a
            trial waits after the last failed probe.
        max_eject_s: longest ejection. Healthy for so long, an endpoint starts from the first again.
        panic_share: share of ejected endpoints above which ejections are ignored.
    """

    probe_failures: int = 3
    scrape_failures: int = 0
    outcome_failures: int = 5
    outcome_error_share: float = 0.5
    outcome_errors: float = 5.0
    outcome_window_s: float = 15.0
    eject_s: float = 5.0
    max_eject_s: float = 50.0
    panic_share: float = 0.8


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

    def count(self, now_s: float, window_s: float, *, failed: bool) -> None:
        """One more request."""
        left = math.exp(-max(now_s - self.counted_s, 0.0) / window_s)
        self.failed = self.failed * left + failed
        self.answered = self.answered * left + (not failed)
        self.counted_s = now_s


class HealthTracker:
    """Health by slot. Reports on slots that were not admitted are ignored."""

    def __init__(self, settings: HealthSettings | None = None) -> None:
        self._settings = settings = settings or HealthSettings()
        self._thresholds: dict[Kind, int] = {
            "probe": settings.probe_failures,
            "scrape": settings.scrape_failures,
            "outcome": settings.outcome_failures,
        }
        self._slots: dict[int, _Health] = {}
        self._ejected: set[int] = set()
        self._next_trial_s = math.inf
        self._mask: NDArray[np.bool_] = np.ones(0, np.bool_)
        self._panicking = False
        #: Ejections so far, those after a failed trial included.
        self.ejections = 0
        #: Times that ejections began to be ignored.
        self.panics = 0
        #: When the last trial of any endpoint began.
        self.last_return_s = -math.inf

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        mask = np.ones(capacity, np.bool_)
        mask[: len(self._mask)] = self._mask
        self._mask = mask

    def admit(self, slot: int) -> None:
        """A new endpoint: healthy until shown otherwise."""
        self._slots[slot] = _Health()
        self._set_ejected(slot, False)

    def forget(self, slot: int) -> None:
        """The endpoint left."""
        self._slots.pop(slot, None)
        self._set_ejected(slot, False)

    def success(self, slot: int, now_s: float, kind: Kind = "probe") -> bool:
        """The endpoint answered. Returns True when that ends a trial: it is back."""
        health = self._slots.get(slot)
        if health is None:
            return False
        if kind == "outcome":
            health.count(now_s, self._settings.outcome_window_s, failed=False)
        if health.failures:
            health.failures.pop(kind, None)
        if health.state is State.HEALTHY:
            return False
        if health.state is State.EJECTED:
            if kind == health.cause != "outcome":
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
        """The endpoint did not answer, or with an error of its own. Returns True when that ejects it."""
        health = self._slots.get(slot)
        if health is None:
            return False
        if health.state is State.EJECTED and now_s >= health.until_s:
            self._begin_trial(slot, health, now_s)
        if health.state is State.EJECTED:
            if kind == health.cause != "outcome":  # outcomes now are of requests sent before
                health.until_s = max(health.until_s, now_s + self._settings.eject_s)
            return False
        count = health.failures[kind] = health.failures.get(kind, 0) + 1
        if kind == "outcome":
            health.count(now_s, self._settings.outcome_window_s, failed=True)
        on_trial = health.state is State.TRIAL and kind in (health.cause, "outcome")
        in_a_row = 0 < self._thresholds[kind] <= count
        if not on_trial and not in_a_row and not (kind == "outcome" and self._failing(health)):
            return False
        self._eject(slot, health, kind, now_s)
        return True

    def error_share(self, slot: int) -> float:
        """Share of the slot's requests of late that failed, NaN without any.

        Raises:
            KeyError: not admitted.
        """
        health = self._slots[slot]
        total = health.failed + health.answered
        return health.failed / total if total > 0.0 else math.nan

    def _failing(self, health: _Health) -> bool:
        settings = self._settings
        total = health.failed + health.answered
        enough = health.failed >= settings.outcome_errors > 0
        return enough and health.failed >= settings.outcome_error_share * total

    def eligible(self, now_s: float) -> NDArray[np.bool_] | None:
        """Mask by slot, None when nobody is kept out (or panic lets everybody in).

        Not to be written; valid until the next call.
        """
        if not self._ejected:
            return None
        if now_s >= self._next_trial_s:
            self._begin_trials(now_s)
        return self._mask if self._ejected and not self._panicking else None

    def state(self, slot: int) -> State:
        """State of an admitted slot.

        Raises:
            KeyError: not admitted.
        """
        return self._slots[slot].state

    def returned_at_s(self, slot: int) -> float:
        """When its last trial began, minus infinity when it never was ejected.

        Raises:
            KeyError: not admitted.
        """
        return self._slots[slot].returned_at_s

    @property
    def panicking(self) -> bool:
        """Whether ejections are being ignored."""
        return self._panicking

    def _eject(self, slot: int, health: _Health, kind: Kind, now_s: float) -> None:
        settings = self._settings
        if now_s - health.returned_at_s > settings.max_eject_s:
            health.ejections = 0
        # The exponent is capped: two to the power of a large count is no float.
        length_s = min(settings.eject_s * 2.0 ** min(health.ejections, 32), settings.max_eject_s)
        health.state, health.cause = State.EJECTED, kind
        health.ejections += 1
        health.back_off_until_s = health.until_s = now_s + length_s
        health.failures.clear()
        health.failed = health.answered = 0.0
        self.ejections += 1
        self._next_trial_s = min(self._next_trial_s, health.until_s)
        self._set_ejected(slot, True)

    def _begin_trial(self, slot: int, health: _Health, now_s: float) -> None:
        health.state = State.TRIAL
        health.returned_at_s = self.last_return_s = now_s
        self._set_ejected(slot, False)

    def _begin_trials(self, now_s: float) -> None:
        for slot in sorted(self._ejected):
            health = self._slots[slot]
            if now_s >= health.until_s:
                self._begin_trial(slot, health, now_s)
        self._next_trial_s = min((self._slots[slot].until_s for slot in self._ejected), default=math.inf)

    def _set_ejected(self, slot: int, ejected: bool) -> None:
        self._mask[slot] = not ejected
        (self._ejected.add if ejected else self._ejected.discard)(slot)
        out, members = len(self._ejected), len(self._slots)
        panicking = out > 0 and (out >= members or out > self._settings.panic_share * members)
        self.panics += panicking and not self._panicking
        self._panicking = panicking
