"""Time under a test's control."""

from __future__ import annotations


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, mono_s: float = 0.0, wall_s: float = 1_700_000_000.0) -> None:
        self._mono_s = mono_s
        self._offset_s = wall_s - mono_s

    def mono_s(self) -> float:
        """Monotonic seconds as last set."""
        return self._mono_s

    def wall_s(self) -> float:
        """Unix time that moves with the monotonic one."""
        return self._mono_s + self._offset_s

    def advance(self, seconds: float) -> float:
        """Move forward and return the new monotonic time."""
        self._mono_s += seconds
        return self._mono_s
