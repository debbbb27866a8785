"""Let requests of the server wait for an engine: `epp.schedule.late_binding` on the event loop.

Owns the futures of those that wait, the timer of the queue, and what is told of it. A request that is let go
has its reservation at once, and its answer in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from epp.errors import NotAdmittedError
from epp.llmd.words import DROPPED
from epp.metrics.metrics import FAIRNESS_ID, PRIORITY, Capped
from epp.schedule.queue import Waiter
from epp.schedule.waiting import Wait

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from epp.clock import Clock
    from epp.metrics.metrics import Histogram, Metrics, Value
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
#: Characters by which flows are told apart.
_FLOW_CHARACTERS = 128
#: What a request that waits takes beside its body and its blocks, whose hashes take eight bytes each.
_WAITER_BYTES = 7_000

_FlowCounts = tuple[tuple[str, ...], "Histogram", "Value"]


class Queueing:
    """Decides requests, at once or after a wait.

    Args:
        binding: says which.
        longest_s: the longest wait, which the proxy is asked for.
        clock: the time.
        metrics: counted into.
        pool: name of the pool.
    """

    def __init__(
        self, binding: LateBinding, longest_s: float, clock: Clock, metrics: Metrics, pool: str
    ) -> None:
        self.binding, self._longest_s, self._clock = binding, longest_s, clock
        self._seconds = metrics.histogram("epp_queue_seconds")
        self._metrics, self._pool = metrics, pool
        self._hold((FAIRNESS_ID, PRIORITY, "", "", pool), 0, 0)  # there from the start
        self._waiting: dict[Waiter, tuple[asyncio.Future[bool], tuple[str, ...]]] = {}
        #: Labels of flows, and what counts their requests that are let go.
        self._flows: dict[tuple[str, int, str, str | None], _FlowCounts] = {}
        self._look_seconds = metrics.histogram("llm_d_epp_flow_control_dispatch_cycle_duration_seconds")
        self._timer: asyncio.TimerHandle | None = None
        binding.on_ready = self._wake

    def decide(
        self, request: RequestInfo, headers: Mapping[str, str], body_bytes: int
    ) -> Decision | Coroutine[Any, Any, Decision]:
        """Decide a request, or return what waits for room and holds nothing of the request as it came.

        Raises:
            NoEndpointError: nobody is eligible.
            NotAdmittedError: it found no room in time, or the queue is full.
        """
        blocks = len(request.blocks) + sum(map(len, request.engine_blocks.values()))
        held_bytes = body_bytes + _WAITER_BYTES + 8 * blocks
        flow = headers.get(FAIRNESS_HEADER, "")[:_FLOW_CHARACTERS]
        labels, seconds, dispatched = self._counts(request, flow)
        slo = headers.get(TTFT_SLO_HEADER)
        began_s = self._clock.mono_s()
        try:
            found = self.binding.decide(
                request,
                began_s,
                self._clock.wall_s(),
                flow=flow,
                ttft_slo_s=_seconds(slo) if slo else 0.0,
                held_bytes=held_bytes,
            )
        except NotAdmittedError as error:
            self._enqueued(labels, _outcome(error), began_s)
            self._count(labels, error, 0.0)
            raise
        if isinstance(found, Waiter):
            self._enqueued(labels, "NotYetFinalized", began_s)
            return self._settled(found, labels, held_bytes - body_bytes)
        self._metrics.requests.scheduled(found, self._clock.mono_s() - began_s)
        seconds.observe(0.0)
        dispatched.value += 1.0
        return found

    def _counts(self, request: RequestInfo, flow: str) -> _FlowCounts:
        key = flow, request.priority, request.model, request.rewritten_from
        if (found := self._flows.get(key)) is None:
            labels = *self._metrics.requests.flow_labels(request, flow), self._pool
            found = labels, *self._counters(labels, "Dispatched")
            if Capped.OTHER not in labels:  # of which there are few
                self._flows[key] = found
        return found

    async def _settled(self, waiter: Waiter, labels: tuple[str, ...], held_bytes: int) -> Decision:
        future = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = future, labels
        self._hold(labels, 1, waiter.held_bytes)
        self._set_timer()
        wait = Wait(
            lambda: future, partial(self._leave, waiter), held_bytes=held_bytes, longest_s=self._longest_s
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
        self._end(waiter)

    def _poll(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        began_s = self._clock.mono_s()
        try:
            settled = self.binding.poll(began_s, self._clock.wall_s())
        finally:
            self._set_timer()
        took_s = self._clock.mono_s() - began_s
        self._look_seconds.observe(took_s)
        decisions = [one.decision for one in settled if one.decision is not None]
        for decision in decisions:
            self._metrics.requests.scheduled(decision, took_s / len(decisions))
        self._settle(settled)

    def _settle(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            future = self._end(waiter)
            if future is not None and not future.done():
                future.set_result(True)

    def _end(self, waiter: Waiter) -> asyncio.Future[bool] | None:
        """Count the end of a wait, once; return what its request waits on."""
        future, labels = self._waiting.pop(waiter, (None, ()))
        if future is not None:
            waited_s = self._clock.mono_s() - waiter.came_s
            self._seconds.observe(waited_s)
            self._hold(labels, -1, -waiter.held_bytes)
            self._count(labels, waiter.refusal, waited_s)
        return future

    def _hold(self, labels: tuple[str, ...], requests: int, held_bytes: int) -> None:
        """Count requests that begin to wait, negative where they end."""
        self._metrics.value("llm_d_epp_flow_control_queue_size", *labels).value += requests
        self._metrics.value("llm_d_epp_flow_control_queue_bytes", *labels).value += held_bytes

    def _count(self, labels: tuple[str, ...], error: Exception | None, waited_s: float) -> None:
        """Count a request that is let go or dropped, as llm-d does: also those that did not wait."""
        seconds, total = self._counters(labels, _outcome(error))
        seconds.observe(waited_s)
        total.value += 1.0

    def _enqueued(self, labels: tuple[str, ...], outcome: str, began_s: float) -> None:
        name = "llm_d_epp_flow_control_request_enqueue_duration_seconds"
        self._metrics.histogram(name, *labels[:2], outcome).observe(self._clock.mono_s() - began_s)

    def _counters(self, labels: tuple[str, ...], outcome: str) -> tuple[Histogram, Value]:
        seconds = "llm_d_epp_flow_control_request_queue_duration_seconds"
        total = self._metrics.value("llm_d_epp_flow_control_requests_total", outcome, labels[1], self._pool)
        return self._metrics.histogram(seconds, *labels, outcome), total

    def _set_timer(self) -> None:
        """Look again when something is due, and soon in any case: requests that come do not put that off."""
        if (due_s := self.binding.due_s) == math.inf:
            return
        loop = asyncio.get_running_loop()
        in_s = max(due_s - self._clock.mono_s(), 0.0) + 0.001  # the loop's clock may be a little ahead
        at_s = loop.time() + min(in_s, LOOK_S)
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._poll)


def _seconds(text: str) -> float:
    """Read a header of milliseconds; 0 where it is none."""
    try:
        found = float(text) / 1e3
    except ValueError:
        return 0.0
    return found if 0.0 < found < math.inf else 0.0


def _outcome(error: Exception | None) -> str:
    """Name the end of a request in the queue as llm-d does."""
    return "Dispatched" if error is None else DROPPED.get(getattr(error, "rule", ""), DROPPED["other"])
