"""What really is, for yardsticks: engines forked and run ahead, as no picker can.

Owns the what-if. A forecast knows the engine's whole state, cache contents, output lengths and what is on its
way there; it does not know the requests still to come, nor the future of a replica that will die.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from epp.lab.sim.job import FirstToken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.lab.sim.engine import Engine
    from epp.lab.sim.fleet import FleetSim
    from epp.lab.sim.job import Job
    from epp.lab.sim.replica import Replica

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
        # By address: the same if the request asked about last is sent: its id, its arrival, the ends.
        self._tried: dict[str, tuple[int, tuple[int, float], Mapping[int, float]]] = {}

    def ttft_ms(self, address: str) -> float:
        """The request's time to first token if it were sent there now."""
        replica = self._sim.replicas[address]
        if not replica.up:
            return _DOWN_MS
        engine, job, arrives_ms, down_ms = self._sent(replica)
        while (due_ms := engine.next_event_ms()) is not None:
            for event in engine.advance(max(due_ms, arrives_ms)):
                if isinstance(event, FirstToken) and event.job_id == job.job_id:
                    return event.at_ms + down_ms - self._sim.loop.now_ms
        return _DOWN_MS

    def forecast(self, address: str) -> Forecast:
        """Everything that would follow if it were sent there now."""
        replica = self._sim.replicas[address]
        if not replica.up:
            return _NOWHERE
        others_end = self._others(replica)
        engine, job, arrives_ms, down_ms = self._sent(replica)
        first_ms, cached = _DOWN_MS, 0
        ends: dict[int, float] = {}
        for event in engine.advance(inf):
            if not isinstance(event, FirstToken):
                ends[event.job_id] = event.at_ms
            elif event.job_id == job.job_id:
                first_ms, cached = event.at_ms, event.cached_tokens
        self._tried[address] = (replica.changes, (job.job_id, arrives_ms), ends)
        mine = job.job_id
        inflicted_ms = sum(at_ms - others_end[other] for other, at_ms in ends.items() if other != mine)
        away_ms = down_ms - self._sim.loop.now_ms
        return Forecast(first_ms + away_ms, ends.get(mine, _DOWN_MS) + away_ms, inflicted_ms, cached)

    def _others(self, replica: Replica) -> Mapping[int, float]:
        """When everybody ends who is there or on the way, if nothing else comes."""
        address = replica.spec.address
        tried = self._tried.get(address)
        if tried is not None and (replica.changes, replica.latest) == (tried[0] + 1, tried[1]):
            # All that has changed is that the request asked about was sent, as supposed.
            self._ends[address] = (replica.changes, tried[2])
        known = self._ends.get(address)
        if known is None or known[0] != replica.changes:
            events = self._now(replica).advance(inf)
            ends = {event.job_id: event.at_ms for event in events if not isinstance(event, FirstToken)}
            known = self._ends[address] = (replica.changes, ends)
        return known[1]

    def _now(self, replica: Replica, *also: tuple[float, Job]) -> Engine:
        """A fork of the replica's engine to which all that is on its way has been submitted."""
        engine = replica.engine.fork()
        for arrives_ms, job in sorted((*replica.on_wire.values(), *also), key=lambda item: item[0]):
            engine.submit(job, arrives_ms)
        return engine

    def _sent(self, replica: Replica) -> tuple[Engine, Job, float, float]:
        """A fork with the request on its way too: engine, job, arrival, way back in ms."""
        sim, index = self._sim, self.index
        up_ms, down_ms = sim.ways(replica, index)
        round_trips = replica.connections.preview(sim.body_bytes(index), sim.loop.now_ms)
        arrives_ms = sim.loop.now_ms + up_ms + round_trips * replica.spec.network.rtt_ms
        job = sim.job(replica, index)
        return self._now(replica, (arrives_ms, job)), job, arrives_ms, down_ms
