"""Steps of the wall clock, noticed by its parting from the monotonic one. Requests carry Unix times."""

from __future__ import annotations

#: Wall and monotonic time may part by so much between two looks; more is a step of the clock.
STEP_S = 2.0


class ClockSteps:
    """Compares the clocks from look to look.

    Args:
        now_s: monotonic time.
        now_wall_s: Unix time of the same moment.
    """

    def __init__(self, now_s: float, now_wall_s: float) -> None:
        self._now_s, self.wall_s = now_s, now_wall_s

    def look(self, now_s: float, now_wall_s: float) -> float:
        """By how much the wall clock has stepped since the last look; 0 where it went as it should."""
        stepped_s = (now_wall_s - self.wall_s) - (now_s - self._now_s)
        self._now_s, self.wall_s = now_s, now_wall_s
        return stepped_s if abs(stepped_s) > STEP_S else 0.0
