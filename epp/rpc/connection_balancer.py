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

#: Cells of a worker.
BEATS, READY, IN_FLIGHT, CALLS, CONNECTIONS = range(5)

C = TypeVar("C")


class WorkerBoard:
    """What each worker tells all, in memory shared by fork.

    Beats of its heart since it serves, whether it is ready, requests in flight, calls a second, connections.

    Args:
        count: number of workers.
    """

    _FIELDS = 5

    def __init__(self, count: int) -> None:
        self.count = count
        self._cells = memoryview(mmap.mmap(-1, count * self._FIELDS * 8)).cast("d")

    def __getitem__(self, index: int) -> memoryview[float]:
        """The cells of a worker."""
        return self._cells[index * self._FIELDS : (index + 1) * self._FIELDS]

    def load(self, index: int) -> tuple[float, float]:
        """Calls a second of a worker, and connections."""
        calls_per_s, connections = self[index][CALLS:]
        return calls_per_s, connections

    def clear(self, index: int) -> None:
        """Forget a worker that has ended."""
        for cell in range(self._FIELDS):
            self[index][cell] = 0.0

    def having(self, cell: int) -> list[int]:
        """Workers of which a cell is not 0."""
        return [index for index in range(self.count) if self[index][cell]]


class ConnectionBalancer:
    """One worker's part in the balance of connections.

    Args:
        board: of all workers.
        index: of this one.
    """

    def __init__(self, board: WorkerBoard, index: int) -> None:
        self._board, self._index, self._own = board, index, board[index]
        self._calls: dict[object, tuple[int, float]] = {}  # how many, and how many a second
        self._rest = 0

    @property
    def is_ready(self) -> bool:
        """Whether requests may come here: this worker is ready, or none is."""
        return bool(self._own[READY]) or not self._board.having(READY)

    @property
    def is_others_turn(self) -> bool:
        """Whether another worker takes the next connection: it has less load, or this one is not ready."""
        board, own = self._board, self._board.load(self._index)
        return not self.is_ready or any(board.load(index) < own for index in board.having(READY))

    def beat(self, *, ready: bool) -> bool:
        """Show that this worker goes on; whether another one is ready."""
        self._own[BEATS] += 1.0
        self._own[READY] = float(ready)
        return any(index != self._index for index in self._board.having(READY))

    def in_flight(self, own: int) -> float:
        """Tell the requests in flight of this worker; those of all."""
        self._own[IN_FLIGHT] = own
        return sum(self._board[index][IN_FLIGHT] for index in range(self._board.count))

    def took(self) -> None:
        """Count a connection, as one like the mean of all until it is known."""
        board = self._board
        loads = [board.load(index) for index in range(board.count)]
        all_calls, all_connections = (sum(column) for column in zip(*loads, strict=True))
        calls, connections = board.load(self._index)
        self._own[CALLS] = calls + all_calls / max(all_connections, 1.0)
        self._own[CONNECTIONS] = connections + 1.0

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
        self._own[CALLS], self._own[CONNECTIONS] = own, len(calls)
        loads = [self._board[index][CALLS] for index in self._board.having(READY)] or [own]
        least, self._rest = min(loads), self._rest - 1

        def gain(connection: C) -> float:
            return own - max(own - rates[connection], least + rates[connection])

        best = max(rates, key=gain, default=None)
        if best is None or self._rest > 0 or gain(best) <= _WORTH * sum(loads) / len(loads):
            return None
        self._rest = _REST_TICKS
        return best
