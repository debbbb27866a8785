"""Which of several processes of one host takes the next connection, and which connection moves to another.

Owns the memory in which each process tells its load, and what one has seen of its connections. Proxies keep
few connections for long, so connections are what is balanced: a new one goes to the process with the least
load, and one with too much asks a proxy to open one of its connections anew.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Time between two looks of a process at its load.
TICK_S = 1.0
#: Of a connection's calls a second, how much the last tick counts.
_NEWEST = 0.3
#: A connection moves where that takes so much of the mean load off the busier of the two.
_WORTH = 0.25
#: Ticks from one such connection to the next: a proxy opens the next one with its next request.
_REST_TICKS = 3

C = TypeVar("C")


class Board:
    """What each worker tells all: beats of its heart, calls a second, connections. In memory shared by fork.

    Args:
        count: number of workers.
    """

    _FIELDS = 3

    def __init__(self, count: int) -> None:
        self.count = count
        self._cells = memoryview(mmap.mmap(-1, count * self._FIELDS * 8)).cast("d")

    def beats(self, index: int) -> float:
        """Beats of a worker since it was ready; 0 before."""
        return self._cells[index * self._FIELDS]

    def load(self, index: int) -> tuple[float, float]:
        """Calls a second of a worker, and connections."""
        at = index * self._FIELDS
        return self._cells[at + 1], self._cells[at + 2]

    def beat(self, index: int) -> None:
        """Count a beat."""
        self._cells[index * self._FIELDS] += 1.0

    def tell(self, index: int, calls_per_s: float, connections: float) -> None:
        """Replace a worker's load."""
        at = index * self._FIELDS
        self._cells[at + 1], self._cells[at + 2] = calls_per_s, connections

    def clear(self, index: int) -> None:
        """Forget a worker that has ended."""
        self.tell(index, 0.0, 0.0)
        self._cells[index * self._FIELDS] = 0.0

    @property
    def ready(self) -> list[int]:
        """Workers that take connections."""
        return [index for index in range(self.count) if self.beats(index)]


class Seat:
    """One worker's part in the balance of connections.

    Args:
        board: of all workers.
        index: of this one.
    """

    def __init__(self, board: Board, index: int) -> None:
        self._board, self._index = board, index
        self._calls: dict[object, tuple[int, float]] = {}  # how many, and how many a second
        self._rest = 0

    @property
    def is_others_turn(self) -> bool:
        """Whether another worker has less load, and takes the next connection."""
        board = self._board
        own = board.load(self._index)
        return any(board.load(index) < own for index in board.ready)

    def took(self) -> None:
        """Count a connection, as one like the mean of all until it is known."""
        board = self._board
        loads = [board.load(index) for index in range(board.count)]
        all_calls, all_connections = (sum(column) for column in zip(*loads, strict=True))
        calls, connections = board.load(self._index)
        board.tell(self._index, calls + all_calls / max(all_connections, 1.0), connections + 1.0)

    def tick(self, calls: Mapping[C, int]) -> C | None:
        """Tell the load of the last second.

        Args:
            calls: of each open connection since it was opened.

        Returns:
            The connection that is to be opened anew elsewhere, if one is.
        """
        known, self._calls = self._calls, {}
        rates: dict[C, float] = {}
        for connection, count in calls.items():
            before, rate = known.get(connection, (0, count / TICK_S))
            rates[connection] = rate + _NEWEST * ((count - before) / TICK_S - rate)
            self._calls[connection] = (count, rates[connection])
        own = sum(rates.values())
        board = self._board
        board.tell(self._index, own, len(calls))
        loads = [board.load(index)[0] for index in board.ready] or [own]
        least, self._rest = min(loads), self._rest - 1

        def gain(connection: C) -> float:
            return own - max(own - rates[connection], least + rates[connection])

        best = max(rates, key=gain, default=None)
        if best is None or self._rest > 0 or gain(best) <= _WORTH * sum(loads) / len(loads):
            return None
        self._rest = _REST_TICKS
        return best
