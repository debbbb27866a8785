"""A tuner's life in virtual time: a simulated deployment, the tuner that tunes it, its rehearsals.

At the end are the loads and fleets that it is measured on, and windows that nothing was searched on.

Picker, plan, thresholds and verdicts are the production ones; weights reach the picker as the text of the
tuner's file. A deployment is simulated in stretches; each begins with empty caches, as after a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import TYPE_CHECKING

import msgspec

from epp.config.bounds import tuner_bounds
from epp.config.plan import render_plan
from epp.keyed_uniform import keyed_uniform
from epp.policies.registry import create
from epp_lab.compare.fleets import FLEETS
from epp_lab.compare.stats import percentile
from epp_lab.reward_model.samples import ended_of
from epp_lab.sim.fleet import ZERO_WALL_S, FleetSim
from epp_lab.sim.loop import Rank
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import WindowOptions, parse_fleet
from epp_lab.tuner import machine
from epp_lab.tuner.calibrate import Deployment
from epp_lab.tuner.rehearse import Stage, budget_after, proposal, rehearse
from epp_lab.tuner.search import Search
from epp_lab.tuner.settings import TunerSettings
from epp_lab.tuner.state import Note, NothingBetter, Observed, Proposed, Publish, Rehearse, Rules
from epp_lab.workloads.art_chat import APR_5, APR_7, ArtChat, generate
from epp_lab.workloads.content import Z90, Z95, Lognormal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.config.plan import Plan
    from epp.schedule.decision import Decision, Outcome
    from epp.schedule.weights import WeightBook
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.results import SimResult
    from epp_lab.sim.scenario import FleetSpec
    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.state import Event, TunerState

    Rehearsing = Callable[[TunerState, float, Sequence[TraceRequest]], Proposed | NothingBetter]

OPEN = WindowOptions(closed_loop=False)
#: Time between two looks of the tuner at its records.
TICK_S = 15.0
#: Unix time at which deployments begin.
BEGIN_WALL_S = ZERO_WALL_S


class Stretch(FleetSim):
    """A simulated window whose weights may change while it runs.

    Args:
        requests: the load.
        fleet: the replicas.
        policy: name of a policy.
        weights: those that differ from its defaults.
        seed: of network and draws.
        answered: called with the sample of each request that ended.
        look: called every `TICK_S` with the Unix time.
        begin_wall_s: Unix time of its start.
        options: how the load is sent.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        fleet: FleetSpec,
        policy: str,
        weights: Mapping[str, float],
        *,
        seed: int,
        answered: Callable[[Sample], None],
        look: Callable[[float], None],
        begin_wall_s: float = BEGIN_WALL_S,
        options: WindowOptions = OPEN,
    ) -> None:
        self._answered, self._look = answered, look
        self._running: dict[str, Decision] = {}
        super().__init__(requests, fleet, policy_named(policy), weights=weights, seed=seed, options=options)
        # The simulation's clock starts at the same wall time in every stretch.
        self._shift_s = begin_wall_s - ZERO_WALL_S - self.start_ms / 1e3
        self.loop.at(self.start_ms, Rank.SIGNAL, self._tick)

    @property
    def book(self) -> WeightBook:
        """Return the weights in force."""
        return self._scheduler.weights

    @property
    def now_wall_s(self) -> float:
        """Return the Unix time."""
        return ZERO_WALL_S + self.loop.now_ms / 1e3 + self._shift_s

    def run_until(self, over: Callable[[], bool]) -> None:
        """Run to the last answer, or until it is over."""
        self.loop.run(lambda: self._client.unfinished and not over())

    def publish(self, plan: Plan) -> None:
        """Put the tuner's file in force."""
        trial = plan.trial
        if trial is not None:
            trial = msgspec.structs.replace(
                trial,
                valid_from_wall_s=trial.valid_from_wall_s - self._shift_s,
                valid_until_wall_s=trial.valid_until_wall_s - self._shift_s,
            )
        self.book.update("tuner", render_plan(msgspec.structs.replace(plan, trial=trial)), "weights.yaml")

    def decided(self, decision: Decision) -> None:
        """Remember the decision until its request ends."""
        self._running[decision.id] = decision

    def ended(self, outcome: Outcome) -> None:
        """Hand on the sample of a request that ended."""
        sample = ended_of(self._running.pop(outcome.id), outcome)
        if sample is not None:
            dispatched_wall_s = sample.dispatched_wall_s + self._shift_s
            self._answered(replace(sample, dispatched_wall_s=dispatched_wall_s, ended_wall_s=self.now_wall_s))

    def _tick(self) -> None:
        self._look(self.now_wall_s)
        self.loop.at(self.loop.now_ms + TICK_S * 1e3, Rank.SIGNAL, self._tick)


@dataclass(slots=True)
class Life:
    """A deployment and its tuner, from stretch to stretch.

    Attributes:
        policy: that is tuned.
        fleet: number of the stretch -> the replicas then.
        load: number of the stretch -> its requests; -1 is what was recorded before the beginning.
        state: the tuner's.
        rules: settings and bounds.
        rehearse: finds a candidate, given the state, the time and the requests of late.
        stop: asked at each look whether enough was seen.
        seed: of network and draws.
        now_wall_s: when the present stretch began.
        notes: what the tuner said.
        samples: of every request that ended.
    """

    policy: str
    fleet: Callable[[int], FleetSpec]
    load: Callable[[int], Sequence[TraceRequest]]
    state: TunerState
    rules: Rules
    rehearse: Rehearsing
    stop: Callable[[TunerState], bool] = field(default=lambda _: False)
    seed: int = 0
    now_wall_s: float = BEGIN_WALL_S
    notes: list[Note] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    _over: bool = False
    _new: list[Sample] = field(default_factory=list)
    _asked: bool = False
    _stretch: Stretch | None = None
    _requests: Sequence[TraceRequest] = ()
    _before: Sequence[TraceRequest] = ()

    def run(self, *, stretches: int) -> None:
        """Live until `stop` returns true, or ``stretches`` are over."""
        for number in range(stretches):
            if self._over:
                return
            self._before = self._requests or self.load(-1)
            self._requests = self.load(number)
            self._stretch = Stretch(
                self._requests,
                self.fleet(number),
                self.policy,
                self.state.incumbent,
                seed=self.seed + number,
                answered=self._answered,
                look=self._look,
                begin_wall_s=self.now_wall_s,
            )
            self._stretch.publish(machine.plan_of(self.state))
            self._stretch.run_until(lambda: self._over)
            lasted_s = self._stretch.now_wall_s - self.now_wall_s
            self.now_wall_s += math.ceil(lasted_s / TICK_S) * TICK_S

    @property
    def hours(self) -> float:
        """Return how long it was."""
        return (self.samples[-1].dispatched_wall_s - BEGIN_WALL_S) / 3600.0

    def _answered(self, sample: Sample) -> None:
        self._new.append(sample)
        self.samples.append(sample)

    def _look(self, now_wall_s: float) -> None:
        new, self._new = self._new, []
        self._handle(Observed(now_wall_s, new))
        if self._asked:
            self._asked = False
            self._handle(self.rehearse(self.state, now_wall_s, self._of_late(now_wall_s)))
        self._over = self._over or self.stop(self.state)

    def _of_late(self, now_wall_s: float) -> Sequence[TraceRequest]:
        """Return what was sent in this stretch, or in the one before it while that has more."""
        sent_ms = 1e3 * (now_wall_s - self.now_wall_s)
        sent = [request for request in self._requests if request.at_ms <= sent_ms]
        return sent if len(sent) >= len(self._before) / 2 else self._before

    def _handle(self, event: Event) -> None:
        for action in machine.step(self.state, event, self.rules):
            if isinstance(action, Publish) and self._stretch is not None:
                self._stretch.publish(action.plan)
            elif isinstance(action, Rehearse):
                self._asked = True
            elif isinstance(action, Note):
                self.notes.append(action)


@dataclass(slots=True)
class Rehearsals:
    """Rehearses as a live tuner does, but on the fleet as it is instead of one calibrated from records.

    Attributes:
        policy: that is tuned.
        fleet: the replicas.
        rules: settings and bounds.
        seed: of searches and simulations.
        budget: measurements of the first rehearsal from an incumbent.
        recorded: requests of late that are used.
        window_requests: of each measurement.
    """

    policy: str
    fleet: FleetSpec
    rules: Rules
    seed: int
    budget: int
    recorded: int
    window_requests: int
    _refused: list[dict[str, float]] = field(default_factory=list)
    _search: Search | None = None
    _incumbent: dict[str, float] = field(default_factory=dict)
    _stage: Stage | None = None

    def __call__(
        self, state: TunerState, now_wall_s: float, requests: Sequence[TraceRequest]
    ) -> Proposed | NothingBetter:
        """Return a candidate, or that there is none."""
        trace = tuple(requests[-self.recorded :])
        if self._stage is None or trace != self._stage.deployment.trace:
            deployment = Deployment(self.policy, self.fleet, trace)
            self._stage = Stage(deployment, OPEN, self.seed, self.window_requests)
        if self._search is None or self._incumbent != state.incumbent:
            seed = self.seed + state.number + state.fruitless
            self._search = Search(state.incumbent, self.rules.bounds, seed=seed)
            self._incumbent = state.incumbent
        found = rehearse(
            self._stage,
            self._search,
            state.incumbent,
            budget=budget_after(self.budget, state.fruitless),
            goal=self.rules.settings.goal,
            looks=1 + state.fruitless,
        )
        weights, reason = proposal(found, self.rules.bounds, self._refused)
        if weights is None:
            return NothingBetter(now_wall_s, reason)
        self._refused.append(weights)
        return Proposed(now_wall_s, weights, reason)


def rules_of(policy: str, settings: TunerSettings | None = None) -> Rules:
    """Return production's settings and bounds for a policy."""
    bounds = {name: (spec.low, spec.high) for name, spec in create(policy, None).weight_specs.items()}
    return Rules(settings or TunerSettings(), tuner_bounds(policy, bounds))


def defaults_of(policy: str) -> dict[str, float]:
    """Return a policy's default weights."""
    return create(policy).default_weights()


# ---- where it is measured ----------------------------------------------------------------------------

#: Seeds of loads that nothing is searched or tried on, and of those that only an optimum is searched on.
HELD_OUT_SEED, SEARCHED_SEED = 900_000, 700_000
STRETCH_S, WINDOW_S = 3600.0, 600.0
#: Loads held out, and requests of each after as many that warm the fleet.
LOADS_HELD_OUT, HELD_OUT_REQUESTS = 30, 420
#: Weights to start from are off by up to this factor.
_OFF = 6.0


@dataclass(frozen=True, slots=True)
class LifeCell:
    """A load on a fleet.

    Attributes:
        fleet: its replicas.
        traffic: recipe of the load.
        rate_rps: requests a second.
    """

    fleet: FleetSpec
    traffic: ArtChat
    rate_rps: float

    def load(self, seed: int, duration_s: float) -> tuple[TraceRequest, ...]:
        """Return the requests of a seed, sent at their own time."""
        recipe = replace(self.traffic, duration_s=duration_s, rate_rps=self.rate_rps)
        return tuple(replace(request, after=None) for request in generate(recipe, seed))


#: Prompts of a few hundred tokens, as of a chat that begins anew each time.
SHORT = replace(
    APR_5,
    prompt_tokens=Lognormal(900.0, 3_500.0, Z95),
    message_tokens=Lognormal(120.0, 600.0, Z90),
    max_prompt_tokens=8_000,
)
REGIONS = FLEETS["paper-exact"][1]
_FLEETS = {
    "three regions": REGIONS,
    "mixed engines": FLEETS["mixed"][1],
    "one region": parse_fleet("l40s-x2@20*3"),
}
#: One replica could nearly carry 1.4 requests a second of chat alone, and not 2.8.
_LOADS = {
    "chat": (APR_5, 1.4),
    "busy chat": (APR_5, 2.8),
    "long conversations": (APR_7, 1.4),
    "short prompts": (SHORT, 2.8),
}
CELLS = {
    f"{load} / {name}": LifeCell(fleet, traffic, rate_rps)
    for load, (traffic, rate_rps) in _LOADS.items()
    for name, fleet in _FLEETS.items()
}
HOME = CELLS["chat / three regions"]


def life(cell: LifeCell, policy: str, weights: Mapping[str, float], seed: int, rehearse: Rehearsing) -> Life:
    """Return a tuner in a cell, with weights in force."""
    rules = rules_of(policy)
    return Life(
        policy=policy,
        fleet=lambda _: cell.fleet,
        load=lambda number: cell.load((seed * 1000 + number) % 2**32, STRETCH_S),
        state=machine.start(policy, weights, rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearse,
        seed=seed,
    )


def weights_off(policy: str, seed: int) -> dict[str, float]:
    """Return `gorgo`'s published weights as they are, any other policy's defaults each off by a factor."""
    weights = defaults_of(policy)
    if policy == "gorgo":
        return weights
    bounds = rules_of(policy).bounds
    off = {name: _OFF ** (2.0 * keyed_uniform(seed, name, "perturbed") - 1.0) for name in weights}
    return {
        name: min(max(value * off[name], bounds[name][0]), bounds[name][1]) for name, value in weights.items()
    }


def held_out(cell: LifeCell, policy: str, weights: Mapping[str, float]) -> dict[str, float]:
    """Measure weights on loads that nothing was searched on: geometric means of the loads' p95.

    What is sent in a load's first window warms the fleet, and does not count.
    """
    windows: list[dict[str, float]] = []
    window_s = HELD_OUT_REQUESTS / cell.rate_rps
    for number in range(LOADS_HELD_OUT):
        load = cell.load(HELD_OUT_SEED + number, 2 * window_s)
        results = run_window(load, cell.fleet, policy, weights, seed=7, options=OPEN).requests
        windows.append(p95s([result for result in results if load[result.index].at_ms >= window_s * 1e3]))
    return {name: geometric_mean([window[name] for window in windows]) for name in windows[0]}


def p95s(results: Sequence[SimResult]) -> dict[str, float]:
    """Return p95 of TTFT and E2E of the requests that ended well."""
    ok = [result for result in results if result.ok]
    return {
        "ttft_p95_ms": percentile([r.ttft_ms for r in ok if r.ttft_ms is not None], 95),
        "e2e_p95_ms": percentile([r.e2e_ms for r in ok], 95),
    }
