"""A simulated fleet: replicas, the picker that serves it, the signals and the clients, on one virtual clock.

Owns their composition and the schedule of what happens to replicas. The picker is the production object: it
is built as the server builds it, gets the same calls in the same order, and hears only what it would hear
live, as late as it would. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from epp.errors import NoEndpointError
from epp.keyed_uniform import keyed_uniform
from epp.lab.sim.client import Client
from epp.lab.sim.flight import Flight
from epp.lab.sim.loop import Loop, Rank
from epp.lab.sim.oracle import Truth
from epp.lab.sim.pickers import PickerGroup
from epp.lab.sim.prompts import Prompts
from epp.lab.sim.replica import Replica
from epp.lab.sim.results import SimResult, WindowResult
from epp.lab.sim.scenario import Happening
from epp.lab.sim.signals import SignalFeed
from epp.policies.base import Policy
from epp.policies.registry import create
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.state_slots import StateSlots
from epp.schedule.picker import Picker, PickerSettings, fleet_of
from epp.schedule.weights import WeightBook
from epp.types import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.apis.usage import Usage
    from epp.lab.compare.trace import TraceRequest
    from epp.lab.sim.job import Job
    from epp.lab.sim.oracle import Oracle
    from epp.lab.sim.scenario import Event, FleetSpec, ReplicaSpec, WindowOptions
    from epp.schedule.decision import Decision, Outcome
    from epp.signals.paths import ConnectionTiming
    from epp.types import RequestInfo

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


class Pickers(Protocol):
    """Who decides: `PickerGroup`, or a picker for each region."""

    @property
    def all(self) -> Sequence[Picker]:
        """Every picker."""
        ...

    @property
    def sent(self) -> tuple[int, int]:
        """Messages that they sent each other, and their bytes."""
        ...

    def of(self, decision_id: str) -> Picker:
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


class FleetSim:
    """One window in virtual time; see `epp.lab.sim.run.run_window`.

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
        self._truth = Truth(self)
        self._policy = policy if isinstance(policy, Policy) else policy(self._truth)
        self._next_id = ""
        self._pickers = self._build_pickers(weights)
        #: The only one where there are not several.
        self._picker = self._pickers.all[0]
        self._signals = [
            SignalFeed(picker.fleet, self.options.config, self.loop, seed + number)
            for number, picker in enumerate(self._pickers.all)
        ]
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
        picker = self._pickers.of(decision_id)
        if travelled is not None:
            picker.connection(decision_id, travelled)
        if usage is not None:
            picker.usage(decision_id, usage)
        outcome = picker.end(decision_id, cause, self.loop.now_ms / 1e3)
        if outcome is not None:
            self.ended(outcome)

    def decided(self, decision: Decision) -> None:
        """Look at a decision, as the flight recorder would have it; for subclasses."""

    def ended(self, outcome: Outcome) -> None:
        """Look at an outcome, as the flight recorder would have it; for subclasses."""

    def _build_client(self) -> Sender:
        return Client(self.requests, self.options, loop=self.loop, start_ms=self.start_ms, send=self._send)

    def _info(self, index: int) -> RequestInfo:
        """Describe a request to the picker."""
        request = self.requests[index]
        return msgspec.structs.replace(
            self.prompts.measured(index),
            body_bytes=self.body_bytes(index),
            max_output_tokens=request.output_tokens,
            affinity_key=request.session,
            session=request.session,
            api="simulated",
            stream=True,
        )

    def _build_pickers(self, weights: Mapping[str, float]) -> Pickers:
        pickers = [self._build_picker(weights) for _ in range(self.options.pickers.count)]
        return PickerGroup(pickers, self.options.pickers, self.loop, self.seed)

    def _build_picker(self, weights: Mapping[str, float]) -> Picker:
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
        return Picker(
            fleet=fleet_of(config, index),
            policy=policy,
            balance=create("least-request"),
            weights=book,
            settings=PickerSettings(
                tie_band=config.policy.tie_band,
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
        try:
            decision = self._pickers.of(decision_id).pick(request, now_s, ZERO_WALL_S + now_s)
        except NoEndpointError as error:
            flight.refused(error.rule)
            return
        self.decided(decision)
        flight.start(decision)

    def _happen(self, event: Event) -> None:
        replica = self.replicas[event.address]
        if event.what is Happening.DIE:
            replica.die()
        elif event.what is Happening.REVIVE:
            replica.start()
        elif event.what is Happening.SLOW:
            replica.set_slowdown(event.factor)
        elif event.what is Happening.REROUTE:
            replica.reroute(event.factor)
        elif event.what is Happening.ADD:
            replica.start()
            if event.address not in self._pool:
                self._pool[event.address] = _endpoint(replica.spec)
                self._apply_pool()
                self._watch(replica)
        elif self._pool.pop(event.address, None) is not None:
            for signals in self._signals:
                signals.stop(replica)
            self._apply_pool()

    def _watch(self, replica: Replica) -> None:
        for signals in self._signals:
            signals.watch(replica)

    def _apply_pool(self) -> None:
        for picker in self._pickers.all:
            picker.set_pool(list(self._pool.values()), self.loop.now_ms / 1e3)

    def _expire(self) -> None:
        for picker in self._pickers.all:
            for outcome in picker.expire(self.loop.now_ms / 1e3):
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
    )
