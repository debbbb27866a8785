"""One request between its client and its answer: attempts, the way there and back, what is reported when.

Owns a request's progress. Rules: a refused connection is known a round trip later and the next picked
endpoint is tried; a reset after the request was sent is the client's to see; tokens take half a round trip
back, and reports to the picker a little more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.apis.usage import Usage
from epp.lab.sim.loop import Rank
from epp.lab.sim.results import SimResult
from epp.signals.paths import ConnectionTiming

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.lab.sim.fleet import FleetSim
    from epp.lab.sim.job import Finished, FirstToken
    from epp.lab.sim.network import Connection
    from epp.lab.sim.replica import Replica
    from epp.schedule.decision import Decision


#: Further picked endpoints that are tried when a connection is refused (Envoy's ``connect-failure``).
_RETRIES = 2


class Flight:
    """A request under way; hears from its replica what becomes of its job.

    Args:
        sim: whose request it is.
        index: position in the load.
        intended_ms: when it should have been sent.
    """

    def __init__(self, sim: FleetSim, index: int, intended_ms: float) -> None:
        self._sim, self._index, self._intended_ms = sim, index, intended_ms
        request, now_ms = sim.requests[index], sim.loop.now_ms
        self._result = SimResult(
            index=index,
            session=request.session,
            user=request.user,
            intended_ms=intended_ms - sim.start_ms,
            slip_ms=now_ms - intended_ms,
            prompt_tokens=request.prompt_tokens,
        )
        self._targets: list[str] = []  # endpoints still to try
        self._replica: Replica | None = None
        self._connection: Connection | None = None
        self._down_ms = self._opened_ms = self._early_ms = 0.0
        self._tries = 0

    def refused(self, rule: str) -> None:
        """End without an endpoint."""
        self._end(f"no endpoint: {rule}", 0)

    def start(self, decision: Decision) -> None:
        """Go to the picked endpoint."""
        self._result.decision_id = decision.id
        self._result.believed_cached_tokens = round(float(decision.fleet.cached_tokens[decision.chosen]))
        names = decision.fleet.endpoints
        self._targets = [names[index] for index in (decision.chosen, *decision.fallbacks[:_RETRIES])]
        self._attempt()

    def on_first_token(self, event: FirstToken) -> None:
        """Send the first token on its way back."""
        self._result.cached_tokens, self._result.waited_ms = event.cached_tokens, event.waited_ms
        self._send_back(self._first_token)

    def on_finished(self, event: Finished) -> None:
        """Send the last token on its way back."""
        self._send_back(self._completed, event.generated_tokens)

    def on_broken(self, problem: str) -> None:
        """Send the news on its way back."""
        self._send_back(self._failed, problem)

    def _send_back(self, action: Callable[..., None], *args: object) -> None:
        loop = self._sim.loop
        loop.at(loop.now_ms + self._down_ms, Rank.REPORT, action, *args)

    def _attempt(self) -> None:
        sim, index = self._sim, self._index
        loop = sim.loop
        replica = self._replica = sim.replicas[self._targets.pop(0)]
        self._tries += 1
        up_ms, self._down_ms = sim.ways(replica, index)
        if not replica.up:
            loop.at(loop.now_ms + up_ms + self._down_ms, Rank.REPORT, self._not_connected)
            return
        self._connection, round_trips = replica.connections.take(sim.body_bytes(index), loop.now_ms)
        arrives_ms = loop.now_ms + up_ms + round_trips * replica.network.rtt_ms
        self._result.network_ms = arrives_ms - loop.now_ms
        self._opened_ms = replica.network.rtt_ms if self._connection.is_new else 0.0
        self._early_ms = arrives_ms + self._down_ms - (loop.now_ms + self._opened_ms)
        replica.expect(sim.job(replica, index), arrives_ms, self)

    def _not_connected(self) -> None:
        if self._targets:
            self._attempt()
        else:
            self._failed("connection refused")

    def _first_token(self) -> None:
        sim = self._sim
        self._result.ttft_ms = sim.loop.now_ms - self._intended_ms
        due_ms = sim.loop.now_ms + sim.options.report_delay_ms
        sim.loop.at(due_ms, Rank.REPORT, sim.report_first_token, self._result.decision_id)

    def _completed(self, tokens: int) -> None:
        replica, now_ms = self._replica, self._sim.loop.now_ms
        if replica is not None and self._connection is not None and replica.up:
            replica.connections.release(self._connection, now_ms)
        options = self._sim.options
        cached = self._result.cached_tokens if options.report_cached_tokens else None
        usage = Usage(self._result.prompt_tokens, tokens, cached) if options.report_usage else None
        self._report_end("completed", usage)
        self._end("", tokens)

    def _failed(self, problem: str) -> None:
        self._report_end("client-gone")
        self._end(problem, 0)

    def _report_end(self, cause: str, usage: Usage | None = None) -> None:
        sim = self._sim
        due_ms = sim.loop.now_ms + sim.options.report_delay_ms
        travelled = self._travelled() if cause == "completed" else None
        sim.loop.at(due_ms, Rank.REPORT, sim.report_end, self._result.decision_id, cause, usage, travelled)

    def _travelled(self) -> ConnectionTiming | None:
        """Return what a proxy's log would tell; of several tries nobody knows which one it was of."""
        if not self._sim.options.report_connections or self._connection is None or self._tries > 1:
            return None
        is_new = self._connection.is_new
        return ConnectionTiming(is_new, self._opened_ms if is_new else math.nan, self._early_ms)

    def _end(self, error: str, tokens: int) -> None:
        result = self._result
        result.e2e_ms = self._sim.loop.now_ms - self._intended_ms
        result.error, result.completion_tokens = error, tokens
        if not error and result.ttft_ms is not None and tokens > 1:
            result.itl_ms = (result.e2e_ms - result.ttft_ms) / (tokens - 1)
        if self._replica is not None:
            result.endpoint = self._replica.spec.address
        self._sim.over(result)
