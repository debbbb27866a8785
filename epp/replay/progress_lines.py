"""Progress in lines, for whoever watches a file or a pipe and not a terminal.

Owns the words and the thread that says them every so often. A line is written when time has passed, not when
something is done: one long run must not look like a program that hangs.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

EVERY_S = 30.0


class ProgressLines:
    """A line every so often, while inside of ``with``; called with what is going on.

    Args:
        write: takes a line.
        every_s: time between two.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._clock = write, every_s, clock
        self._title, self._done, self._total = "", 0, 0
        self._began_s = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="progress", daemon=True)

    def __call__(self, title: str, done: int, total: int) -> None:
        """So much of so much is done; another title begins anew."""
        if title != self._title:
            self._began_s = self._clock()
        self._title, self._done, self._total = title, done, total

    def line(self) -> str:
        """What there is to say now."""
        gone_s = self._clock() - self._began_s
        if not self._total:
            return f"{_time(gone_s)} so far"
        left = ""
        if 0 < self._done < self._total:
            left = f", about {_time(gone_s / self._done * (self._total - self._done))} left"
        return f"{self._title}: {self._done} of {self._total} done after {_time(gone_s)}{left}"

    def __enter__(self) -> Self:
        """Begin to speak."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say no more."""
        self._over.set()
        self._thread.join()

    def _speak(self) -> None:
        while not self._over.wait(self._every_s):
            self._write(self.line())


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
