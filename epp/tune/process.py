"""What sidecars that look at files have in common: how they stop, what a killed one left, files in the way.

Owns signals of the process. What is done at each look is the caller's.
"""

from __future__ import annotations

import contextlib
import signal
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.server.stopping import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StopSignals:
    """SIGTERM, SIGINT and SIGHUP from here on: heard, and acted on between two looks.

    Not `threading.Event`: its lock cannot be taken twice, and a signal that comes while the main thread holds
    it, on its way into a wait, stops the process for good. `SimpleQueue.put` may interrupt itself.
    """

    def __init__(self) -> None:
        heard: SimpleQueue[int] = SimpleQueue()
        for number in stop_signals():
            signal.signal(number, lambda given, _: heard.put(given))
        self._heard = heard

    def wait(self, seconds: float) -> bool:
        """Whether one has come, waited for so long."""
        try:
            self._heard.get(timeout=seconds)
        except Empty:
            return False
        return True


def tidy(path: Path, *, spared: Path | None = None) -> None:
    """Remove what a killed process had begun to write beside a file; call it with the lock held.

    Args:
        path: the file; what belongs to it has its name up to the ending.
        spared: a file beside it that others write too.
    """
    for left in path.parent.glob(f".{path.stem}.*.tmp"):
        if spared is None or not left.name.startswith(f".{spared.name}."):
            with contextlib.suppress(OSError):
                left.unlink()


@contextlib.contextmanager
def told_files() -> Iterator[None]:
    """A file that is in the way of beginning is told in a sentence.

    Raises:
        EppError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        why = f"{place}{error.strerror or error}"
        raise EppError(f"{why}; this process must be able to read and write there") from error
