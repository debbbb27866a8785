"""Let requests of the server wait for an engine: `epp.schedule.late_binding` on the event loop.

Owns the futures of those that wait, the timer of the queue, and what is told of it. A request that is let go
has its reservation at once, and its answer in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING

from epp.schedule.queue import Waiter
from epp.schedule.waiting import Wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.clock import Clock
    from epp.metrics.metrics import Metrics
    from epp.schedule.decision import Decision
    from epp.schedule.late_binding import LateBinding
    from epp.types import RequestInfo

#: Header that names a request's flow; those of a priority share fairly. As llm-d has it, as the next.
FAIRNESS_HEADER = "x-llm-d-inference-fairness-id"
#: Header with the time to first token that a request asks for, in ms; it is dropped when that is past.
TTFT_SLO_HEADER = "x-llm-d-slo-ttft-ms"
#: While something waits, room is looked for so often, for what no change here tells: pauses that end,
#: scrapes, what other pickers sent.
LOOK_S = 0.25
#: What a request that waits takes beside its body and its blocks, whose hashes take eight bytes each.
_WAITER_BYTES = 6_000


class Queueing:
    """Decides requests, at once or after a wait.

    Args:
        binding: says which.
        ttl_s: the longest wait, which the proxy is asked for.
        hold_s: the same of an agent's turn that is held.
        clock: the time.
        metrics: counted into.
    """

    def __init__(
        self, binding: LateBinding, ttl_s: float, hold_s: float, clock: Clock, metrics: Metrics
    ) -> None:
        self.binding, self._ttl_s, self._hold_s, self._clock = binding, ttl_s, hold_s, clock
        self._seconds = metrics.histogram("epp_queue_seconds")
        self._futures: dict[Waiter, asyncio.Future[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None
        binding.on_ready = self._wake

    async def decide(self, request: RequestInfo, headers: Mapping[str, str], body_bytes: int) -> Decision:
        """Decide a request; waits where there is no room.

        Raises:
            NoEndpointError: nobody is eligible.
            NotAdmittedError: it found no room in time, or the queue is full.
        """
        held_bytes = body_bytes + _WAITER_BYTES + 8 * len(request.blocks)
        found = self.binding.decide(
            request,
            self._clock.mono_s(),
            self._clock.wall_s(),
            flow=headers.get(FAIRNESS_HEADER, ""),
            ttft_slo_s=_seconds(headers.get(TTFT_SLO_HEADER, "")),
            held_bytes=held_bytes,
        )
        return await self._settled(found, held_bytes - body_bytes) if isinstance(found, Waiter) else found

    async def _settled(self, waiter: Waiter, held_bytes: int) -> Decision:
        future = self._futures[waiter] = asyncio.get_running_loop().create_future()
        self._set_timer()
        wait = Wait(
            lambda: future,
            partial(self._leave, waiter),
            held_bytes=held_bytes,
            longest_s=self._hold_s if waiter.held else self._ttl_s,
        )
        if await wait is None:  # nobody waits for an answer, or there is no memory to wait in
            return self.binding.decide_now(waiter.request, self._clock.mono_s(), self._clock.wall_s())
        if waiter.decision is None:
            assert waiter.refusal is not None  # noqa: S101  # it is settled
            raise waiter.refusal
        return waiter.decision

    def shut(self) -> None:
        """Refuse all that wait."""
        self._settle(self.binding.shut())

    def _wake(self) -> None:
        asyncio.get_running_loop().call_soon(self._poll)

    def _leave(self, waiter: Waiter) -> None:
        self.binding.leave(waiter, self._clock.mono_s())
        waiter.decision = None
        self._futures.pop(waiter, None)

    def _poll(self) -> None:
        self._settle(self.binding.poll(self._clock.mono_s(), self._clock.wall_s()))
        self._set_timer()

    def _settle(self, waiters: list[Waiter]) -> None:
        now_s = self._clock.mono_s()
        for waiter in waiters:
            self._seconds.observe(now_s - waiter.came_s)
            future = self._futures.pop(waiter, None)
            if future is not None and not future.done():
                future.set_result(True)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due_s := self.binding.due_s) < math.inf:
            in_s = max(due_s - self._clock.mono_s(), 0.0) + 0.001  # the loop's clock may be a little ahead
            in_s = min(in_s, LOOK_S)
            self._timer = asyncio.get_running_loop().call_later(in_s, self._poll)


def _seconds(text: str) -> float:
    """Read a header of milliseconds; 0 where it is none."""
    try:
        found = float(text) / 1e3
    except ValueError:
        return 0.0
    return found if 0.0 < found < math.inf else 0.0
