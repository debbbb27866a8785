"""How sidecars that look at files run and stop, and how a file in their way is reported.

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
    from collections.abc import Callable, Iterator


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


def run_until_stopped(tick: Callable[[], None], every_s: float) -> None:
    """Look every so many seconds until a signal comes; one before this call ends the process at once."""
    stop = StopSignals()
    while not stop.wait(every_s):
        tick()


@contextlib.contextmanager
def reported_files() -> Iterator[None]:
    """Report a file that is in the way of beginning in a sentence.

    Raises:
        EppError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        why = f"{place}{error.strerror or error}"
        raise EppError(f"{why}; this process must be able to read and write there") from error
