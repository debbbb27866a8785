"""A run of decode steps of one length, in closed form: which step ends when.

Owns the arithmetic. Division rounds: a boundary must be the one that multiplication, which moves time, agrees
with, so every question is answered by multiplication in the end.
"""

from __future__ import annotations

from math import ceil


class DecodeRun:
    """Steps of ``step_ms`` from ``start_ms`` on: so many planned, so many done."""

    __slots__ = ("done", "planned", "start_ms", "step_ms")

    def __init__(self, start_ms: float, step_ms: float) -> None:
        self.start_ms, self.step_ms = start_ms, step_ms
        self.planned = self.done = 0

    @property
    def end_ms(self) -> float:
        """End of the last planned step."""
        return self.start_ms + self.planned * self.step_ms

    @property
    def next_ms(self) -> float:
        """End of the step under way."""
        return self.start_ms + (self.done + 1) * self.step_ms

    def steps_until(self, at_ms: float) -> int:
        """Steps whose end is the first boundary at or after ``at_ms``."""
        start_ms, step_ms = self.start_ms, self.step_ms
        steps = max(0, ceil((at_ms - start_ms) / step_ms))
        while steps > 0 and start_ms + (steps - 1) * step_ms >= at_ms:
            steps -= 1
        while start_ms + steps * step_ms < at_ms:
            steps += 1
        return steps

    def take(self, now_ms: float) -> int:
        """The planned steps that have ended by ``now_ms`` since the last call."""
        if now_ms >= self.end_ms:
            ended = self.planned
        else:
            ended = self.steps_until(now_ms)
            if self.start_ms + ended * self.step_ms > now_ms:
                ended -= 1
            ended = min(ended, self.planned)
        new = max(0, ended - self.done)
        self.done += new
        return new

    def copy(self) -> DecodeRun:
        """An independent copy."""
        twin = DecodeRun(self.start_ms, self.step_ms)
        twin.planned, twin.done = self.planned, self.done
        return twin
