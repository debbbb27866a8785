"""The seam to time. Pure code takes ``now_s`` (monotonic seconds) and never asks for it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What the I/O layers ask for the time."""

    def mono_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for records."""
        ...


class ManualClock:
    """A clock that a test or a simulator moves by hand."""

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
        """Move forward and return the new monotonic time.

        Raises:
            ValueError: on an attempt to move backwards.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._mono_s += seconds
        return self._mono_s
