"""Endpoints that asked to be left alone: answers of 429 or 503 with ``Retry-After``.

Owns one pause per slot: when it ends, and the request that tries the endpoint after that. Only one request
tries, so that an endpoint that still refuses fails one request per pause and not all that arrive until its
answer is known; the pause goes on meanwhile, and an answer to that request ends it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Statuses whose ``Retry-After`` counts (RFC 9110, 10.2.3; RFC 6585, 4), and Anthropic's for overload.
STATUSES = frozenset({429, 503, 529})
#: Longest pause, jitter included: an endpoint that asks for an hour is tried every minute.
MAX_PAUSE_S = 60.0
#: Pause of a peer region that could not be reached, or did not serve a request. It is not ejected: one engine
#: of many may have failed, and where nobody else may serve a request it is tried all the same.
PEER_PAUSE_S = 1.0
#: A pause is longer than asked by up to this share, so that many pickers do not return at one moment.
_JITTER = 0.2


def retry_after_s(value: str, wall_s: float) -> float:
    """Read a ``Retry-After`` header: seconds from now, 0 where it asks for none or is unreadable.

    Args:
        value: a number of seconds or an HTTP date.
        wall_s: Unix time.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - wall_s)
    except (ValueError, TypeError, OverflowError):
        return 0.0


@dataclass(slots=True)
class _Pause:
    until_s: float
    length_s: float
    trial_id: str = ""
    trial_until_s: float = -math.inf

    def in_force(self, now_s: float) -> bool:
        return now_s < self.until_s or now_s < self.trial_until_s


class RetryAfter:
    """Pauses by slot."""

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}
        #: Since when a slot is left alone, or was last, and why, for people.
        self.reasons: dict[int, tuple[float, str]] = {}
        #: Called with a slot that is left alone from now on, and for how many seconds.
        self.on_pause: dict[str, Callable[[int, float], None]] = {}

    def pause(self, slot: int, asked_s: float, decision_id: str, now_s: float, why: str = "") -> bool:
        """Leave an endpoint alone; a pause that ends later stays. True when it was in use until now.

        Args:
            slot: the endpoint's.
            asked_s: seconds that it asked for, above 0.
            decision_id: request that it refused, the key of the jitter.
            now_s: the time.
            why: for people.
        """
        length_s = min(asked_s, MAX_PAUSE_S / (1.0 + _JITTER))
        length_s *= 1.0 + _JITTER * keyed_uniform(0, decision_id, "retry-after")
        was_in_use = slot not in self._pauses
        if self.pause_for(slot, length_s, now_s, why):
            for listener in self.on_pause.values():
                listener(slot, length_s)
        return was_in_use

    def pause_for(self, slot: int, length_s: float, now_s: float, why: str = "") -> bool:
        """Leave an endpoint alone for so long, jitter included; False where an earlier pause ends later."""
        known = self._pauses.get(slot)
        if known is not None and known.until_s >= now_s + length_s:
            return False
        if known is None:
            self.reasons[slot] = now_s, why
        self._pauses[slot] = _Pause(now_s + length_s, length_s)
        return True

    def sent(self, slot: int, decision_id: str, now_s: float) -> None:
        """Note a decision: the first after a pause has ended tries the endpoint, and the pause goes on."""
        pause = self._pauses.get(slot)
        if pause is not None and not pause.in_force(now_s):
            pause.trial_id, pause.trial_until_s = decision_id, now_s + pause.length_s

    def answered(self, decision_id: str) -> None:
        """Note a good answer: to a request that tries an endpoint it ends the pause."""
        for slot, pause in self._pauses.items():
            if pause.trial_id == decision_id:
                del self._pauses[slot]
                return

    def forget(self, slot: int) -> None:
        """Another process, or none, is behind the slot."""
        self._pauses.pop(slot, None)

    def until_s(self, now_s: float) -> Mapping[int, float] | None:
        """Return when each pause in force ends or ended, by slot; None when there is none.

        The earliest is the endpoint to use where all of them are left alone.
        """
        if not self._pauses:
            return None
        paused = {slot: pause.until_s for slot, pause in self._pauses.items() if pause.in_force(now_s)}
        return paused or None

    def left_s(self, slot: int, now_s: float) -> float:
        """Seconds until the slot's pause ends, 0 without one."""
        pause = self._pauses.get(slot)
        return 0.0 if pause is None else max(0.0, pause.until_s - now_s, pause.trial_until_s - now_s)
