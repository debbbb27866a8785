"""Lines of the log that a peer can cause by the thousand: the first at once, then one every few seconds.

Owns how often they are written. What they tell of is counted by a metric where all of it matters.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Time between two lines of one kind.
EVERY_S = 5.0


@dataclass(slots=True)
class _Kind:
    written_s: float
    left_out: int = 0


class SparseLog:
    """Writes lines, of each kind at most one every `EVERY_S`, which tells how many were left out before it.

    The words of a line are its kind: constants of the code, with places for the values.

    Args:
        log: where the lines go.
        time_s: the time, in monotonic seconds.
    """

    def __init__(self, log: logging.Logger, time_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._time_s = log, time_s
        self._kinds: dict[str, _Kind] = {}

    def info(self, words: str, *values: object) -> None:
        """What is worth knowing."""
        self._write(logging.INFO, words, values)

    def warning(self, words: str, *values: object) -> None:
        """What another does wrong."""
        self._write(logging.WARNING, words, values)

    def exception(self, words: str, *values: object) -> None:
        """A fault, with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, words, values, traceback=True)

    def _write(self, level: int, words: str, values: tuple[object, ...], *, traceback: bool = False) -> None:
        now_s = self._time_s()
        kind = self._kinds.get(words)
        if kind is not None and now_s - kind.written_s < EVERY_S:
            kind.left_out += 1
            return
        left_out = kind.left_out if kind is not None else 0
        self._kinds[words] = _Kind(now_s)
        if left_out:
            words += f" ({left_out} more like this were left out before)"
        self._log.log(level, words, *values, exc_info=traceback)
