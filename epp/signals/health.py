"""Which endpoints answer: failures in a row or a high rate of them eject, time and evidence bring back.

Owns one small state machine per slot::

    HEALTHY --failures in a row--> EJECTED --back-off over, not failing--> TRIAL --success--> HEALTHY
                                      ^                                      |
                                      +--------------- failure --------------+

An endpoint on trial takes requests again, few at first: slow start counts from the trial's begin. Probes and
requests are counted apart, so that an endpoint whose health page answers while its completions fail is still
ejected. Requests are counted over time as well: one that fails most of them is ejected, too. While probes of
an ejected endpoint keep failing its trial does not begin; without probes time alone begins it.

An endpoint has proof while a good probe or answer of it is younger than three probe intervals. One with proof
goes before one without. Above the panic share of ejected endpoints, where no other has proof, ejections are
ignored: then the fault is more likely here than there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.types import Flags, Floats

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
#: Share of ejected endpoints above which ejections are ignored, where no other has proof.
_PANIC_SHARE = 0.8
#: For how many probe intervals a good probe or answer is proof.
_PROOF_INTERVALS = 3.0


class HealthState(Enum):
    """Of an endpoint."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    TRIAL = "trial"


@dataclass(slots=True)
class Lately:
    """Requests of late: each counts less as time goes by."""

    failed: float = 0.0
    answered: float = 0.0
    counted_s: float = 0.0

    def count(self, now_s: float, *, failed: bool) -> None:
        """Count one more request."""
        left = math.exp(-max(now_s - self.counted_s, 0.0) / _WINDOW_S)
        self.failed = self.failed * left + failed
        self.answered = self.answered * left + (not failed)
        self.counted_s = now_s


@dataclass(slots=True)
class _Health:
    out: bool = False  # ejected, or on trial
    failures: dict[Kind, int] = field(default_factory=dict)
    cause: Kind = "probe"
    ejections: int = 0  # in a row
    back_off_until_s: float = -math.inf  # the trial never begins before
    lately: Lately = field(default_factory=Lately)

    @property
    def failing(self) -> bool:
        """Whether most requests of late failed."""
        lately = self.lately
        return lately.failed >= max(_ERRORS, _ERROR_SHARE * (lately.failed + lately.answered))


class Standing(Struct, frozen=True):
    """What is so of all endpoints at one moment; its masks are by slot and not to be written.

    Attributes:
        healthy: who is not ejected; None when nobody is kept out, because of panic or none is ejected.
        proven: who has proof; None when that is everybody, or nobody.
        panicking: whether ejections are being ignored.
        last_return_s: when the last trial began of those that are not ejected.
        until_s: when it is no longer so, unless somebody is heard of before.
    """

    healthy: Flags | None
    proven: Flags | None
    panicking: bool
    last_return_s: float
    until_s: float

    def serves(self, slot: int) -> bool:
        """Tell whether a slot gets requests where others like it have proof."""
        return all(mask is None or bool(mask[slot]) for mask in (self.healthy, self.proven))


class HealthTracker:
    """Health by slot. Reports on slots that were not admitted are ignored.

    Args:
        eject_s: length of the first ejection; doubles with each one that follows soon. Also how long a trial
            waits after the last failed probe.
        probe_interval_s: time between probes of an endpoint; 0 for no probes, then nobody has proof.
    """

    def __init__(self, eject_s: float = 5.0, probe_interval_s: float = 0.0) -> None:
        self._eject_s, self._proof_s = eject_s, _PROOF_INTERVALS * probe_interval_s
        self._slots: dict[int, _Health] = {}
        self._until_s = np.zeros(0)  # when the last ejection of each ends or ended; -inf for none
        self._proved_s = np.zeros(0)  # when each answered last
        self._standing: Standing | None = None  # kept until something changes it
        #: Since when a slot is out, or was last, and why, for people.
        self.reasons: dict[int, tuple[float, str]] = {}
        #: Called with a slot that is ejected here, and until when.
        self.on_eject: dict[str, Callable[[int, float], None]] = {}

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._until_s = grown(self._until_s, capacity, -math.inf)
        self._proved_s = grown(self._proved_s, capacity, -math.inf)
        self._standing = None

    def admit(self, slot: int) -> None:
        """Take a new endpoint: healthy until shown otherwise, and without proof."""
        self.forget(slot)
        self._slots[slot] = _Health()

    def forget(self, slot: int) -> None:
        """Forget an endpoint that left."""
        self._slots.pop(slot, None)
        self._until_s[slot] = self._proved_s[slot] = -math.inf
        self._standing = None

    def success(self, slot: int, now_s: float, kind: Kind = "probe") -> bool:
        """Note that the endpoint answered. Returns True when that ends a trial: it is back."""
        health = self._slots.get(slot)
        if health is None:
            return False
        if 0.0 < self._proof_s <= now_s - self._proved_s[slot]:
            self._standing = None
        self._proved_s[slot] = now_s
        if kind == "outcome":
            health.lately.count(now_s, failed=False)
        if health.failures:
            health.failures.pop(kind, None)
        if not health.out:
            return False
        if kind == health.cause == "probe" and now_s < self._until_s[slot]:
            self._until_s[slot] = max(health.back_off_until_s, now_s)
            self._standing = None
        if now_s < self._until_s[slot] or kind not in (health.cause, "outcome"):
            return False
        health.out = False
        return True

    def failure(self, slot: int, kind: Kind, now_s: float, why: str = "") -> bool:
        """Note no answer, or an error of the endpoint's own. Returns True when that ejects it."""
        health = self._slots.get(slot)
        if health is None:
            return False
        if health.out and now_s < self._until_s[slot]:
            if kind == health.cause == "probe":  # outcomes now are of requests sent before
                self._until_s[slot] = max(self._until_s[slot], now_s + self._eject_s)
            return False
        count = health.failures[kind] = health.failures.get(kind, 0) + 1
        if kind == "outcome":
            health.lately.count(now_s, failed=True)
        on_trial = health.out and kind in (health.cause, "outcome")
        in_a_row = count >= _FAILURES[kind]
        if on_trial or in_a_row or (kind == "outcome" and health.failing):
            if not health.out:
                self.reasons[slot] = now_s, why
            self._eject(slot, health, kind, now_s)
            return True
        return False

    def eject_until(self, slot: int, until_s: float, now_s: float) -> None:
        """Eject an endpoint that another picker has ejected; it is tried again as any other."""
        health = self._slots.get(slot)
        if health is not None and self.state(slot, now_s) is not HealthState.EJECTED:
            self.reasons[slot] = now_s, "another picker ejected it"
            self._keep_out(slot, health, "probe", until_s)

    def standing(self, now_s: float) -> Standing:
        """Return who may serve now, and who has proof."""
        standing = self._standing
        if standing is None or now_s >= standing.until_s:
            standing = self._standing = self._stand(now_s)
        return standing

    def state(self, slot: int, now_s: float) -> HealthState:
        """Return the state of an admitted slot."""
        if not self._slots[slot].out:
            return HealthState.HEALTHY
        return HealthState.EJECTED if now_s < self._until_s[slot] else HealthState.TRIAL

    def returned_at_s(self, now_s: float) -> Floats:
        """Return when the last trial of each slot began, minus infinity for none and for the ejected."""
        return np.where(self._until_s <= now_s, self._until_s, -math.inf)

    def _stand(self, now_s: float) -> Standing:
        ejected, proven = self._until_s > now_s, now_s - self._proved_s < self._proof_s
        slots = np.array(list(self._slots), np.intp)
        out, proof, until_s = ejected[slots], proven[slots], self._until_s[slots]
        count = int(out.sum())
        most = count > 0 and (count == len(slots) or count > _PANIC_SHARE * len(slots))
        panicking = most and not (proof & ~out).any()
        lapses_s = self._proved_s[slots[proof]] + self._proof_s
        return Standing(
            healthy=None if panicking or not count else ~ejected,
            proven=proven if 0 < proof.sum() < len(slots) else None,
            panicking=panicking,
            last_return_s=float(until_s[~out].max(initial=-math.inf)),
            until_s=float(np.concatenate((until_s[out], lapses_s)).min(initial=math.inf)),
        )

    def _eject(self, slot: int, health: _Health, kind: Kind, now_s: float) -> None:
        longest_s = _LONGEST * self._eject_s
        if now_s - self._until_s[slot] > longest_s:
            health.ejections = 0
        # The exponent is capped: two to the power of a large count is no float.
        length_s = min(self._eject_s * 2.0 ** min(health.ejections, 32), longest_s)
        health.ejections += 1
        health.failures.clear()
        health.lately = Lately()
        self._keep_out(slot, health, kind, now_s + length_s)
        for listener in self.on_eject.values():
            listener(slot, now_s + length_s)

    def _keep_out(self, slot: int, health: _Health, cause: Kind, until_s: float) -> None:
        health.out, health.cause = True, cause
        health.back_off_until_s = self._until_s[slot] = until_s
        self._standing = None
