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
