"""The clients of a simulated load: who is sent when.

Owns the send order, the places of a limited client and the think times. Must not know picker or replicas.
Roots go at their own times whatever the fleet does, followers after the answer they wait for and their think
time; a failed answer counts as one, so that the load stays the same. What finds no place waits for one in
order of its intended time, and that wait is the client's lag.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from epp_lab.sim.loop import Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.loop import Loop
    from epp_lab.sim.scenario import WindowOptions


class Client:
    """Sends a load.

    Args:
        requests: the load, in time order, ``after`` pointing backwards.
        options: limits and pace.
        loop: virtual time.
        start_ms: the window's start on it.
        send: called with each request's index and intended time when it is sent.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        options: WindowOptions,
        *,
        loop: Loop,
        start_ms: float,
        send: Callable[[int, float], None],
    ) -> None:
        self._requests, self._loop, self._send = requests, loop, send
        self._start_ms, self._scale = start_ms, options.time_scale
        self._places = options.max_in_flight
        self._in_flight = 0
        self._queue: deque[tuple[int, float]] = deque()  # has no place: index, intended time
        self._thinking = 0
        self._followers: dict[int, list[int]] = defaultdict(list)
        roots = []
        for index, request in enumerate(requests):
            if request.after is None or not options.closed_loop:
                roots.append(index)
            else:
                self._followers[request.after].append(index)
        roots.sort(key=lambda index: requests[index].at_ms)
        self._roots = deque(roots)
        self._schedule_root()

    @property
    def unfinished(self) -> bool:
        """Whether something is under way or still to be sent."""
        return bool(self._roots or self._in_flight or self._thinking or self._queue)

    def answered(self, index: int) -> None:
        """Free the place of a request that is over; its followers begin to think."""
        self._in_flight -= 1
        now_ms = self._loop.now_ms
        for follower in self._followers.pop(index, ()):
            self._thinking += 1
            due_ms = now_ms + self._requests[follower].think_ms * self._scale
            self._loop.at(due_ms, Rank.ARRIVAL, self._thought, follower)
        if self._queue:
            self._take_place(*self._queue.popleft())

    def _schedule_root(self) -> None:
        if self._roots:
            due_ms = self._start_ms + self._requests[self._roots[0]].at_ms * self._scale
            self._loop.at(max(due_ms, self._loop.now_ms), Rank.ARRIVAL, self._root)

    def _root(self) -> None:
        index = self._roots.popleft()
        self._schedule_root()
        self._due(index)

    def _thought(self, index: int) -> None:
        self._thinking -= 1
        self._due(index)

    def _due(self, index: int) -> None:
        intended_ms = self._loop.now_ms
        if self._places is not None and self._in_flight >= self._places:
            self._queue.append((index, intended_ms))
        else:
            self._take_place(index, intended_ms)

    def _take_place(self, index: int, intended_ms: float) -> None:
        self._in_flight += 1
        self._send(index, intended_ms)
