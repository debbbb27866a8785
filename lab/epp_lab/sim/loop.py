"""Virtual time: actions in order of time, rank and insertion.

Owns the clock of a simulation. Must not know what the actions do. The order is total, so that equal
simulations take equal steps whatever the hash seed of the process.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Rank(IntEnum):
    """What goes first among things at the same moment: causes before those who look at them."""

    FLEET = 0  # a replica dies, joins, slows down
    ENGINE = 1  # a replica's batch changes
    REPORT = 2  # the picker and the client hear of it
    SIGNAL = 3  # a probe or a scrape
    ARRIVAL = 4  # a request is sent


class Loop:
    """Runs actions at their times. Times are milliseconds, starting at 0."""

    __slots__ = ("_heap", "_seq", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._seq = 0
        self._heap: list[tuple[float, int, int, Callable[..., None], tuple[object, ...]]] = []

    def at(self, at_ms: float, rank: Rank, action: Callable[..., None], *args: object) -> None:
        """Run ``action(*args)`` at a time that is not over."""
        self._seq += 1
        heapq.heappush(self._heap, (at_ms, rank, self._seq, action, args))

    def run(self, unfinished: Callable[[], bool]) -> None:
        """Run until nothing is left to do, or the work is finished though signals go on for ever."""
        heap, pop = self._heap, heapq.heappop
        while heap and unfinished():
            self.now_ms, _, _, action, args = pop(heap)
            action(*args)
