"""When locks were beaten, and work that takes virtual time, for tests."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from epp.tune.lock import TunerLock

if TYPE_CHECKING:
    import pytest

    from epp.clock import ManualClock


class Beats:
    """Notes every beat of every lock by the name of its file, and makes work last.

    Args:
        patch: what is patched until the test ends.
        clock: what the work takes its time from.
    """

    def __init__(self, patch: pytest.MonkeyPatch, clock: ManualClock) -> None:
        self._patch, self._clock = patch, clock
        self._at_s: dict[str, list[float]] = defaultdict(list)
        beat = TunerLock.beat

        def noted(lock: TunerLock) -> None:
            self._at_s[lock._path.name].append(clock.mono_s())
            beat(lock)

        patch.setattr(TunerLock, "beat", noted)

    def slow(self, owner: object, name: str, seconds: float) -> None:
        """Make each call of a function take so long."""
        work = getattr(owner, name)

        def lasting(*given: Any, **named: Any) -> Any:
            self._clock.advance(seconds)
            return work(*given, **named)

        self._patch.setattr(owner, name, lasting)

    def longest_silence_s(self, lock: str, since_s: float) -> float:
        """Between two beats, from a moment until now."""
        times = [since_s, *(at_s for at_s in self._at_s[lock] if at_s >= since_s), self._clock.mono_s()]
        return max(later - earlier for earlier, later in pairwise(times))
