"""A simulated fleet: replicas, the picker that serves it, the signals and the clients, on one virtual clock.

Owns their composition and the schedule of what happens to replicas. The picker is the production object: it
is built as the server builds it, gets the same calls in the same order, and hears only what it would hear
live, as late as it would. Nothing here decides anything.

A `Replica` owns what is under way at its engine, a `Flight` one request's progress between its client and its
answer, and `Truth` what only a simulator can know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from epp.apis.usage import Usage
from epp.config.pool import ROLE_LABELS
from epp.errors import NoEndpointError, NotAdmittedError
from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Policy
from epp.policies.registry import create
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.state_slots import StateSlots
from epp.schedule.admission import AdmissionController
from epp.schedule.late_binding import LateBinding
from epp.schedule.queue import Waiter
from epp.schedule.scheduler import Scheduler, SchedulerSettings, datastore_of
from epp.schedule.weights import WeightBook
from epp.signals.links import token_ms
from epp.signals.metrics_text import EngineSample
from epp.signals.paths import ConnectionTiming
from epp.types import Endpoint, Role
from epp_lab.sim.client import Client
from epp_lab.sim.engine import Engine
from epp_lab.sim.handover import Handover, Interface
from epp_lab.sim.job import Counters, FirstToken
from epp_lab.sim.kv_events import EventFeed, KvPublisher
from epp_lab.sim.loop import Loop, Rank
from epp_lab.sim.network import Connections
from epp_lab.sim.pickers import PickerGroup
from epp_lab.sim.prompts import Prompts
from epp_lab.sim.results import SimResult, WindowResult
from epp_lab.sim.scenario import Happening
from epp_lab.sim.signals import SignalFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.schedule.decision import Decision, Outcome
    from epp.types import RequestInfo
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.handover import Listener
    from epp_lab.sim.job import Finished, Job
    from epp_lab.sim.network import Connection
    from epp_lab.sim.scenario import Event, EventOptions, FleetSpec, ReplicaSpec, WindowOptions

# Metrics read seldom are good for longer: as many scrapes as may be missed.
_SCRAPES_MISSED = 3.0
# Probes and scrapes begin before the window does: a picker that just started knows nothing.
_LEAD_MS: Final = 5_000.0
#: Unix time of the virtual clock's zero.
ZERO_WALL_S: Final = 1_700_000_000.0
_EXPIRE_EVERY_MS: Final = 10_000.0
#: What clients call the model where replicas serve different ones.
PUBLIC_MODEL: Final = "chat"
# What a chat body holds beside its text: model, roles, options.
_BODY_OVERHEAD_BYTES: Final = 300
_BYTES_PER_TOKEN: Final = 4.5
#: Further chosen endpoints that are tried when a connection is refused (Envoy's ``connect-failure``).
_RETRIES = 2
#: Of a replica that is down: worse than any that is up.
_DOWN_MS = 1e9


class Replica:
    """A replica on the loop: its engine, its connections, its lives.

    Must not know picker or client: whoever sends gives a `Flight`, which hears. A replica that dies takes its
    engine with it; one that revives has a new one, cold, and a new start time.

    Args:
        spec: what it is.
        block_tokens: tokens per block of the jobs' hashes.
        loop: virtual time.

    Attributes:
        network: the way there as it is now.
        changes: number of times that anything came from outside: a job, a cancellation, an event. While it
            stays the same, what was forecast of the engine comes true.
    """

    def __init__(self, spec: ReplicaSpec, block_tokens: int, loop: Loop) -> None:
        self.spec, self._block_tokens, self._loop = spec, block_tokens, loop
        self.network = spec.network
        self.connections = Connections(spec.network)
        self.up = not spec.absent
        self.engine = Engine(spec.engine_class, block_tokens)
        self.on_wire: dict[int, tuple[float, Job]] = {}  # sent, not arrived: by job id
        self.interface = Interface(spec.link_gbps)
        self._flights: dict[int, Listener] = {}
        self._started_s = ZERO_WALL_S
        self._slowdown = 1.0
        self._wake_ms = inf
        self._past = Counters()  # of its earlier lives
        self.changes = 0
        self._publisher: KvPublisher | None = None

    def publish(self, publisher: KvPublisher) -> None:
        """Publish what happens to the cache from now on."""
        self._publisher = publisher
        self.engine.tell_changes(publisher.changes.append)

    def announce(self, job_id: int, listener: Listener) -> None:
        """Expect a job whose time is not known; its listener hears if the worker dies before."""
        self._flights[job_id] = listener

    def awaits(self, job_id: int) -> bool:
        """Tell whether that job is still expected or under way."""
        return job_id in self._flights

    def kv_bytes_missing(self, job: Job) -> float:
        """Return the size of those of a prompt's KV blocks that it does not hold."""
        self._run()
        return float(self.engine.missing_tokens(job) * self.spec.engine_class.kv_bytes_per_token)

    def forget(self, job_id: int) -> None:
        """Expect that job no more."""
        del self._flights[job_id]

    def expect(self, job: Job, arrives_ms: float, listener: Listener) -> None:
        """Expect a job that is on its way."""
        self.changes += 1
        self.on_wire[job.job_id] = (arrives_ms, job)
        self._flights[job.job_id] = listener
        self._loop.at(arrives_ms, Rank.REPORT, self._arrived, job.job_id)

    def die(self) -> None:
        """End the process, and with it everything that is there or on its way."""
        if not self.up:
            return
        self.changes += 1
        self._run()
        self._past = self.counters()
        self.up = False
        self.engine = Engine(self.spec.engine_class, self._block_tokens)
        if self._publisher is not None:
            self._publisher.begin_anew()
            self.publish(self._publisher)
        self.connections.close()
        self._wake_ms = inf
        self.on_wire.clear()
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            flight.on_broken("connection reset")

    def start(self) -> None:
        """Let a new, cold process listen at the address."""
        if self.up:
            return
        self.changes += 1
        self.up = True
        self._started_s = ZERO_WALL_S + self._loop.now_ms / 1e3
        self.engine.set_slowdown(self._slowdown, self._loop.now_ms)

    def set_slowdown(self, factor: float) -> None:
        """See `Engine.set_slowdown`; the hardware keeps it over restarts."""
        self.changes += 1
        self._slowdown = factor
        if self.up:
            self.engine.set_slowdown(factor, self._loop.now_ms)
            self._run()

    def clear_cache(self) -> None:
        """Drop what is cached and no request holds."""
        self.changes += 1
        if self.up:
            self.engine.clear_cache(self._loop.now_ms)
            self._run()

    def reroute(self, factor: float) -> None:
        """Let round trips take ``factor`` times as long as the spec's, for what is sent from now on."""
        self.changes += 1
        self.network = replace(self.spec.network, rtt_ms=factor * self.spec.network.rtt_ms)
        self.connections.reroute(self.network)

    def sample(self) -> EngineSample:
        """Return what a scrape would find at this moment."""
        self._run()
        snapshot = self.engine.snapshot()
        counters = snapshot.counters
        return EngineSample(
            engine="vllm",
            running=float(snapshot.running),
            waiting=float(snapshot.arriving + snapshot.waiting),
            kv_usage=snapshot.kv_usage,
            kv_capacity_tokens=round(snapshot.capacity_tokens * self.spec.kv_report_factor),
            process_start_time_s=self._started_s,
            prompt_tokens_total=float(counters.prompt_tokens),
            generation_tokens_total=float(counters.generated_tokens),
            transfer_s_total=self.interface.transfer_s or None,
            transfers_total=self.interface.transfers or None,
        )

    def counters(self) -> Counters:
        """Of all its lives."""
        now, past = self.engine.snapshot().counters, self._past
        if not self.up:
            return past
        return Counters(
            **{field.name: getattr(past, field.name) + getattr(now, field.name) for field in fields(Counters)}
        )

    def _arrived(self, job_id: int) -> None:
        found = self.on_wire.pop(job_id, None)
        if found is None:
            return  # lost with an earlier life
        try:
            self.engine.submit(found[1], self._loop.now_ms)
        except ValueError as error:
            self._flights.pop(job_id).on_broken(str(error))
        self._run()

    def _wake(self, due_ms: float) -> None:
        if due_ms == self._wake_ms:  # otherwise something nearer came in between
            self._wake_ms = inf
            self._run()

    def _run(self) -> None:
        """Let the engine come up to now, tell what happened, and see when it wants to be woken."""
        if not self.up:
            return
        engine = self.engine
        for event in engine.advance(self._loop.now_ms):
            if isinstance(event, FirstToken):
                flight = self._flights.get(event.job_id)
                if flight is not None:
                    flight.on_first_token(event)
            else:
                flight = self._flights.pop(event.job_id, None)
                if flight is not None:
                    flight.on_finished(event)
        if self._publisher is not None:
            self._publisher.publish()
        due_ms = engine.next_event_ms()
        if due_ms is not None and due_ms < self._wake_ms:
            self._wake_ms = due_ms
            self._loop.at(due_ms, Rank.ENGINE, self._wake, due_ms)


class Flight:
    """A request under way; hears from its replica what becomes of its job.

    A refused connection is known a round trip later and the next chosen endpoint is tried; a reset after the
    request was sent is the client's to see; tokens take half a round trip back, and reports to the picker a
    little more.

    Args:
        sim: whose request it is.
        index: position in the load.
        intended_ms: when it should have been sent.
    """

    def __init__(self, sim: FleetSim, index: int, intended_ms: float) -> None:
        self._sim, self._index, self._intended_ms = sim, index, intended_ms
        self.index = index
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
        self._prefiller: Replica | None = None
        self._connection: Connection | None = None
        self._down_ms = self._opened_ms = self._early_ms = 0.0
        self._tries = 0

    def refused(self, rule: str) -> None:
        """End without an endpoint."""
        self._end(f"no endpoint: {rule}", 0)

    def start(self, decision: Decision) -> None:
        """Go to the chosen endpoint."""
        self._result.queued_ms = self._sim.loop.now_ms - self._intended_ms - self._result.slip_ms
        self._result.decision_id = decision.id
        self._result.believed_cached_tokens = round(float(decision.snapshot.cached_tokens[decision.chosen]))
        names = decision.snapshot.endpoints
        self._targets = [names[index] for index in (decision.chosen, *decision.fallbacks[:_RETRIES])]
        for leg in decision.legs[:-1]:
            if leg.role is Role.PREFILL:
                self._result.prefilled_at = decision.address(leg)
                self._prefiller = self._sim.replicas[self._result.prefilled_at]
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
        job = sim.job(replica, index)
        if self._prefiller is None:
            replica.expect(job, arrives_ms, self)
        else:
            Handover(job, self._prefiller, replica, self, loop).start(arrives_ms)

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


class Pickers(Protocol):
    """Who decides: `PickerGroup`, or a picker for each region."""

    @property
    def all(self) -> Sequence[Scheduler]:
        """Every picker."""
        ...

    @property
    def sent(self) -> tuple[int, int]:
        """Messages that they sent each other, and their bytes."""
        ...

    def of(self, decision_id: str) -> Scheduler:
        """Return the picker of a decision."""
        ...


class Sender(Protocol):
    """Whoever sends the load: `Client`, or one that decides by what came back."""

    @property
    def unfinished(self) -> bool:
        """Whether something is under way or still to be sent."""
        ...

    def answered(self, index: int) -> None:
        """Go on after a request that is over."""


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

    What really is comes of engines forked and run ahead: a forecast knows the engine's whole state, cache
    contents, output lengths and what is on its way there; it does not know the requests still to come, nor
    the future of a replica that will die.

    Attributes:
        index: that request's position in the load; set by the simulation before each decision.
    """

    def __init__(self, sim: FleetSim) -> None:
        self._sim = sim
        self.index = 0
        # By address: when everybody there ends if nothing else comes, as of so many changes of the replica.
        self._ends: dict[str, tuple[int, Mapping[int, float]]] = {}

    def answer_tokens(self) -> int:
        """Return the length that the answer will have."""
        return self._sim.requests[self.index].output_tokens

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


#: Makes a policy that sees what really is.
Oracle: TypeAlias = "Callable[[Truth], Policy]"


class FleetSim:
    """One window in virtual time; see `epp_lab.sim.run.run_window`.

    Args:
        requests: the load.
        spec: the fleet.
        policy: prices endpoints, or an oracle, which is shown the truth.
        weights: the policy's weights that differ from their defaults.
        seed: of network, decisions and faults.
        options: how the load is sent.

    Raises:
        ValueError: the load cannot be simulated.
        ConfigError: a weight is unknown or out of bounds.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        spec: FleetSpec,
        policy: Policy | Oracle,
        *,
        weights: Mapping[str, float],
        seed: int,
        options: WindowOptions,
    ) -> None:
        self.requests, self.seed, self.start_ms = requests, seed, _LEAD_MS
        self.options = _with_scrapes(options, spec.scrape_interval_s)
        self.loop = Loop()
        self.prompts = Prompts(requests)
        self.replicas = {
            replica.address: Replica(replica, self.prompts.block_tokens, self.loop)
            for replica in spec.replicas
        }
        hosts: dict[str, Interface] = {}
        for address, replica in self.replicas.items():  # data-parallel ranks of a pod share its interface
            replica.interface = hosts.setdefault(address.rpartition(":")[0], replica.interface)
        self._truth = Truth(self)
        self._policy = policy if isinstance(policy, Policy) else policy(self._truth)
        self._next_id = ""
        self._pickers = self._build_pickers(weights)
        #: The only one where there are not several.
        self._scheduler = self._pickers.all[0]
        self._signals = [
            SignalFeed(scheduler.datastore, self.options.config, self.loop, seed + number)
            for number, scheduler in enumerate(self._pickers.all)
        ]
        if self.options.events is not None:
            self._listen(self.options.events)
        self._results: list[SimResult] = []
        #: Bytes that left each region, of a fleet that has any.
        self.egress: dict[str, float] = {}
        self._pool = {replica.address: _endpoint(replica) for replica in spec.replicas if not replica.absent}
        self._apply_pool()
        for address in self._pool:
            self._watch(self.replicas[address])
        for event in sorted(spec.events, key=lambda event: event.at_s):
            self.loop.at(self.start_ms + event.at_s * 1e3, Rank.FLEET, self._happen, event)
        self.loop.at(_EXPIRE_EVERY_MS, Rank.SIGNAL, self._expire)
        self._queues = [self._build_queue(scheduler) for scheduler in self._pickers.all]
        if isinstance(self._pickers, PickerGroup):
            self._pickers.share_queues(self._queues)
        self._in_queue: dict[int, Flight] = {}
        self._due_ms: dict[LateBinding, float] = {}
        self._client = self._build_client()

    def run(self) -> WindowResult:
        """Everything, to the last answer."""
        self.loop.run(lambda: self._client.unfinished)
        self._results.sort(key=lambda result: result.index)
        return WindowResult(
            policy=self._policy.name,
            seed=self.seed,
            requests=tuple(self._results),
            endpoints=tuple(self.replicas),
            counters=tuple(replica.counters() for replica in self.replicas.values()),
            duration_ms=self.loop.now_ms - self.start_ms,
            messages=self._pickers.sent,
            egress=self.egress,
        )

    def body_bytes(self, index: int) -> int:
        """Return the size of a request's body."""
        tokens = self.requests[index].prompt_tokens
        return _BODY_OVERHEAD_BYTES + int(tokens * _BYTES_PER_TOKEN)

    def ways(self, replica: Replica, index: int) -> tuple[float, float]:
        """One-way delays of a request to a replica and back, in ms; the same while the way there is."""
        network, key = replica.network, f"{index} {replica.spec.address}"
        return network.one_way_ms(self.seed, key, "up"), network.one_way_ms(self.seed, key, "down")

    def job(self, replica: Replica, index: int) -> Job:
        """Return a request as that replica's engine would see it."""
        lost = replica.spec.lost_hit_share
        key = f"{index} {replica.spec.address}"
        return self.prompts.job(index, miss=lost > 0.0 and keyed_uniform(self.seed, key, "lost hit") < lost)

    def over(self, result: SimResult) -> None:
        """Keep the result of a request."""
        self._results.append(result)
        self._client.answered(result.index)

    def report_first_token(self, decision_id: str) -> None:
        """Report a first token to the picker."""
        self._pickers.of(decision_id).first_token(decision_id, self.loop.now_ms / 1e3)

    def report_end(
        self, decision_id: str, cause: str, usage: Usage | None, travelled: ConnectionTiming | None
    ) -> None:
        """Report an end to the picker."""
        scheduler = self._pickers.of(decision_id)
        if travelled is not None:
            scheduler.connection(decision_id, travelled)
        if usage is not None:
            scheduler.usage(decision_id, usage)
        outcome = scheduler.end(decision_id, cause, self.loop.now_ms / 1e3)
        if outcome is not None:
            self.ended(outcome)

    def decided(self, decision: Decision) -> None:
        """Look at a decision, as the flight recorder would have it; for subclasses."""

    def ended(self, outcome: Outcome) -> None:
        """Look at an outcome, as the flight recorder would have it; for subclasses."""

    def _listen(self, events: EventOptions) -> None:
        """Let pickers hear of engines' KV caches."""
        parents = self.prompts.parents()
        publishers = {name: KvPublisher(self.prompts.block_tokens, parents) for name in self.replicas}
        for name, publisher in publishers.items():
            self.replicas[name].publish(publisher)
        past = bool(self.options.pickers.past)
        for number, scheduler in enumerate(self._pickers.all[: len(self._pickers.all) - past]):
            EventFeed(publishers, scheduler.datastore, events, self.loop, self.seed + number)

    def _build_client(self) -> Sender:
        return Client(self.requests, self.options, loop=self.loop, start_ms=self.start_ms, send=self._send)

    def _info(self, index: int) -> RequestInfo:
        """Describe a request to the picker."""
        request = self.requests[index]
        return msgspec.structs.replace(
            self.prompts.measured(index),
            body_bytes=self.body_bytes(index),
            max_output_tokens=request.max_output_tokens,
            affinity_key=request.session,
            session=request.session,
            program=request.session,
            api="simulated",
            stream=True,
        )

    def _build_pickers(self, weights: Mapping[str, float]) -> Pickers:
        options = self.options.pickers
        pickers = [self._build_scheduler(weights) for _ in range(options.count + bool(options.past))]
        return PickerGroup(pickers, options, self.loop, self.seed)

    def _build_scheduler(self, weights: Mapping[str, float]) -> Scheduler:
        config, policy = self.options.config, self._policy
        index = PrefixIndex(
            capacity_tokens=config.prefix.capacity_tokens,
            states=StateSlots.of(config.prefix.state_slots, config.prefix.chunk_tokens),
        )
        book = WeightBook(
            policy=policy.name,
            specs=policy.weight_specs,
            configured=weights,
            bounds={},
            source="simulation",
        )
        datastore = datastore_of(config, index)
        workers = [replica.spec for replica in self.replicas.values() if replica.spec.role is not Role.WHOLE]
        if workers:  # as its operator tells it: the slowest link, and the largest token
            datastore.links.token_ms = max(
                token_ms(one.engine_class.kv_bytes_per_token, one.link_gbps) for one in workers
            )
        return Scheduler(
            datastore=datastore,
            policy=policy,
            balance=create("least-request"),
            weights=book,
            settings=SchedulerSettings(
                tolerance=config.policy.tolerance,
                seed=self.seed,
                fallbacks=config.policy.fallbacks,
                warmup_s=config.pool.warmup_s,
            ),
            new_id=lambda: self._next_id,
        )

    def _send(self, index: int, intended_ms: float) -> None:
        self._truth.index = index
        # The same request draws the same numbers under every policy.
        self._submit(f"r{index}", self._info(index), Flight(self, index, intended_ms))

    def _submit(self, decision_id: str, request: RequestInfo, flight: Flight) -> None:
        now_s, self._next_id = self.loop.now_ms / 1e3, decision_id
        scheduler = self._pickers.of(decision_id)
        if (caches := scheduler.datastore.engine_caches) is not None:
            blocks = caches.hashed(request.model, self.prompts.ids(flight.index), "")
            request = msgspec.structs.replace(request, engine_blocks=blocks)
        queue = self._queues[self._pickers.all.index(scheduler)]
        try:
            if queue is None:
                decision = scheduler.decide(request, now_s, ZERO_WALL_S + now_s)
            else:
                asked = self.requests[flight.index]
                found = queue.decide(
                    msgspec.structs.replace(request, decision_id=decision_id, priority=asked.priority),
                    now_s,
                    ZERO_WALL_S + now_s,
                    flow=asked.tenant,
                    ttft_slo_s=asked.deadline_ms / 1e3,
                    held_bytes=request.body_bytes,
                )
                if isinstance(found, Waiter):
                    self._in_queue[id(found)] = flight
                    if (patience_s := self.options.patience_s) < inf:
                        gives_up_ms = self.loop.now_ms + patience_s * 1e3
                        self.loop.at(gives_up_ms, Rank.ARRIVAL, self._give_up, queue, found)
                    self._wake(queue)
                    return
                decision = found
        except NoEndpointError as error:
            flight.refused(error.rule)
            return
        except NotAdmittedError as error:
            flight.refused(str(error))
            return
        self.decided(decision)
        flight.start(decision)

    def _build_queue(self, scheduler: Scheduler) -> LateBinding | None:
        if not self.options.config.queue.enabled:
            return None
        config = self.options.config
        admission = AdmissionController(scheduler.datastore, config.saturation, lambda _: 0)
        queue = LateBinding(scheduler, config.queue, admission.saturation)
        queue.on_ready = lambda: self.loop.at(self.loop.now_ms, Rank.ARRIVAL, self._poll, queue)
        return queue

    def _wake(self, queue: LateBinding) -> None:
        """Look again when something is due."""
        due_ms = max(queue.due_s * 1e3 + 1e-3, self.loop.now_ms)  # past it, whatever rounding does
        if due_ms < self._due_ms.get(queue, inf):
            self._due_ms[queue] = due_ms
            self.loop.at(due_ms, Rank.ARRIVAL, self._is_due, queue, due_ms)

    def _is_due(self, queue: LateBinding, due_ms: float) -> None:
        if self._due_ms.get(queue) == due_ms:  # otherwise something nearer came in between
            del self._due_ms[queue]
            self._poll(queue)

    def _poll(self, queue: LateBinding) -> None:
        now_s = self.loop.now_ms / 1e3
        for waiter in queue.poll(now_s, ZERO_WALL_S + now_s):
            flight = self._in_queue.pop(id(waiter))
            if waiter.decision is None:
                flight.refused(str(waiter.refusal))
            else:
                self.decided(waiter.decision)
                flight.start(waiter.decision)
        self._wake(queue)

    def _give_up(self, queue: LateBinding, waiter: Waiter) -> None:
        if not waiter.settled:
            flight = self._in_queue.pop(id(waiter))
            queue.leave(waiter, self.loop.now_ms / 1e3)
            flight.refused("its client gave up")

    def _happen(self, event: Event) -> None:
        for address, replica in self.replicas.items():
            if event.address in (address, address.rpartition(":")[0]):
                self._happen_to(replica, event)

    def _happen_to(self, replica: Replica, event: Event) -> None:
        if event.what is Happening.DIE:
            replica.die()
        elif event.what is Happening.REVIVE:
            replica.start()
        elif event.what is Happening.SLOW:
            replica.set_slowdown(event.factor)
        elif event.what is Happening.CLEAR:
            replica.clear_cache()
        elif event.what is Happening.REROUTE:
            replica.reroute(event.factor)
        elif event.what is Happening.ADD:
            replica.start()
            if replica.spec.address not in self._pool:
                self._pool[replica.spec.address] = _endpoint(replica.spec)
                self._apply_pool()
                self._watch(replica)
        elif self._pool.pop(replica.spec.address, None) is not None:
            for signals in self._signals:
                signals.stop(replica)
            self._apply_pool()

    def _watch(self, replica: Replica) -> None:
        for signals in self._signals:
            signals.watch(replica)

    def _apply_pool(self) -> None:
        for scheduler in self._pickers.all:
            scheduler.set_pool(list(self._pool.values()), self.loop.now_ms / 1e3)

    def _expire(self) -> None:
        for scheduler in self._pickers.all:
            for outcome in scheduler.expire(self.loop.now_ms / 1e3):
                self.ended(outcome)
        self.loop.at(self.loop.now_ms + _EXPIRE_EVERY_MS, Rank.SIGNAL, self._expire)


def _with_scrapes(options: WindowOptions, interval_s: float | None) -> WindowOptions:
    """Set how often engine metrics are read, None for as it is; old is what missed three."""
    if interval_s is None:
        return options
    config = options.config
    stale_after_s = max(config.scrape.stale_after_s, _SCRAPES_MISSED * interval_s)
    scrape = msgspec.structs.replace(config.scrape, interval_s=interval_s, stale_after_s=stale_after_s)
    return replace(options, config=msgspec.structs.replace(config, scrape=scrape))


def _endpoint(spec: ReplicaSpec) -> Endpoint:
    cls = spec.engine_class
    return Endpoint(
        address=spec.address,
        region=spec.region,
        engine_class=spec.known_as or cls.name,
        context_tokens=cls.context_tokens,
        models=frozenset({PUBLIC_MODEL}) if spec.model else frozenset(),
        served_names={PUBLIC_MODEL: spec.model} if spec.model else {},
        roles=frozenset() if spec.role is Role.WHOLE else frozenset({spec.role}),
        labels={} if spec.role is Role.WHOLE else {ROLE_LABELS[0]: spec.role.value},
    )
