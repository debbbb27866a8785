"""Yardsticks that only a simulator can have: policies that see what really is.

They decide greedily, one request at a time, and know nothing of the requests to come, so they are no bound: a
policy that keeps sessions together can beat them (source [P]). An oracle makes a policy of a fleet's true
state; there is no way to serve with one. What really is comes of engines forked and run ahead: a forecast
knows the engine's whole state, cache contents, output lengths and what is on its way there; it does not know
the requests still to come, nor the future of a replica that will die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from epp.lab.sim.job import FirstToken
from epp.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.lab.sim.engine import Engine
    from epp.lab.sim.fleet import FleetSim
    from epp.lab.sim.job import Job
    from epp.lab.sim.replica import Replica
    from epp.policies.base import Terms
    from epp.types import RequestInfo, Snapshot

# Of a replica that is down: worse than any that is up.
_DOWN_MS = 1e9


@dataclass(frozen=True, slots=True)
class Forecast:
    """What sending the request there now would lead to, if nothing else came.

    Attributes:
        ttft_ms: its time to first token.
        e2e_ms: its time to the last.
        inflicted_ms: how much later all others there would end, summed.
        cached_tokens: what it would find in the cache.
    """

    ttft_ms: float
    e2e_ms: float
    inflicted_ms: float
    cached_tokens: int


_NOWHERE = Forecast(_DOWN_MS, _DOWN_MS, 0.0, 0)


class Truth:
    """The state of a simulated fleet, asked for the request that is being decided.

    Attributes:
        index: that request's position in the load; set by the simulation before each pick.
    """

    def __init__(self, sim: FleetSim) -> None:
        self._sim = sim
        self.index = 0
        # By address: when everybody there ends if nothing else comes, as of so many changes of the replica.
        self._ends: dict[str, tuple[int, Mapping[int, float]]] = {}

    def forecast(self, address: str) -> Forecast:
        """Return everything that would follow if it were sent there now."""
        replica = self._sim.replicas[address]
        if not replica.up:
            return _NOWHERE
        others_end = self._others(replica)
        engine, job, _, down_ms = self._sent(replica)
        first_ms, cached = _DOWN_MS, 0
        ends: dict[int, float] = {}
        for event in engine.advance(inf):
            if not isinstance(event, FirstToken):
                ends[event.job_id] = event.at_ms
            elif event.job_id == job.job_id:
                first_ms, cached = event.at_ms, event.cached_tokens
        mine = job.job_id
        inflicted_ms = sum(at_ms - others_end[other] for other, at_ms in ends.items() if other != mine)
        away_ms = down_ms - self._sim.loop.now_ms
        return Forecast(first_ms + away_ms, ends.get(mine, _DOWN_MS) + away_ms, inflicted_ms, cached)

    def _others(self, replica: Replica) -> Mapping[int, float]:
        """Return when everybody ends who is there or on the way, if nothing else comes."""
        address = replica.spec.address
        known = self._ends.get(address)
        if known is None or known[0] != replica.changes:
            events = self._now(replica).advance(inf)
            ends = {event.job_id: event.at_ms for event in events if not isinstance(event, FirstToken)}
            known = self._ends[address] = (replica.changes, ends)
        return known[1]

    def _now(self, replica: Replica, *also: tuple[float, Job]) -> Engine:
        """Return a fork of the replica's engine to which all that is on its way has been submitted."""
        engine = replica.engine.fork()
        for arrives_ms, job in sorted((*replica.on_wire.values(), *also), key=lambda item: item[0]):
            engine.submit(job, arrives_ms)
        return engine

    def _sent(self, replica: Replica) -> tuple[Engine, Job, float, float]:
        """Return a fork with the request on its way too: engine, job, arrival, way back in ms."""
        sim, index = self._sim, self.index
        up_ms, down_ms = sim.ways(replica, index)
        round_trips = replica.connections.preview(sim.body_bytes(index), sim.loop.now_ms)
        arrives_ms = sim.loop.now_ms + up_ms + round_trips * replica.network.rtt_ms
        job = sim.job(replica, index)
        return self._now(replica, (arrives_ms, job)), job, arrives_ms, down_ms


Oracle: TypeAlias = Callable[[Truth], Policy]


class GreedyOracleTotal(Policy):
    """``cost = E2E that the request would have there + how much later the others there would end``, in ms.

    The sum over everybody's E2E that this one decision adds, if nothing else came.
    """

    name = "greedy-oracle-total"

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def terms(
        self,
        request: RequestInfo,  # noqa: ARG002 - the truth knows it better
        fleet: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
    ) -> Terms:
        """Forecast everybody on each endpoint."""
        forecasts = [self._truth.forecast(address) for address in fleet.endpoints]
        own = np.array([forecast.e2e_ms for forecast in forecasts])
        inflicted = np.array([forecast.inflicted_ms for forecast in forecasts])
        return {"e2e": own, "inflicted": inflicted}


#: Oracles by name, for those who list policies.
ORACLES: Mapping[str, type[GreedyOracleTotal]] = {GreedyOracleTotal.name: GreedyOracleTotal}
