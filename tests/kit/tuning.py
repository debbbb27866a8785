"""A made-up deployment for the tuner: weights have known effects, time is virtual, everything is seeded."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epp.config.plan import Plan, assign
from epp_lab.tuner.machine import resume, settle, start, step
from epp_lab.tuner.samples import Sample, read_stamp
from epp_lab.tuner.settings import Evidence, Stages, TunerSettings
from epp_lab.tuner.state import (
    Event,
    Note,
    NothingBetter,
    Observed,
    Proposed,
    Publish,
    Rehearse,
    Rules,
    TunerState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp_lab.tuner.state import Action

START_WALL_S = 1_700_000_000.0
BOUNDS = {"a": (0.1, 10.0), "b": (0.1, 10.0)}
INCUMBENT = {"a": 1.0, "b": 1.0}
NEW = {"a": 2.0, "b": 1.0}
NAMES = ("r1:8000", "r2:8000", "r3:8000")


@dataclass(frozen=True)
class Effect:
    """What weights do: factors of TTFT and E2E, chance to fail, shares of the endpoints."""

    ttft: float = 1.0
    e2e: float = 1.0
    fails: float = 0.0
    shares: tuple[float, ...] = (0.4, 0.3, 0.3)


def when_new(effect: Effect) -> Callable[[Mapping[str, float]], Effect]:
    """What `NEW` does; other weights do nothing."""
    return lambda weights: effect if weights["a"] == 2.0 else Effect()


def quick(**stages: float) -> TunerSettings:
    """Settings whose stages are short; thresholds of evidence stay the production ones."""
    values: dict[str, float] = {
        "baseline_requests": 1500,
        "baseline_s": 300.0,
        "stage_requests": 100,
        "stage_s": 120.0,
        "probation_pairs": 15,
        "probation_every": 2,
        "freeze_after": 3,
    }
    return TunerSettings(stages=Stages(**{**values, **stages}), evidence=Evidence(max_pairs=400))  # type: ignore[arg-type]


def again(state: TunerState) -> TunerState:
    """The state as it is read back."""
    return msgspec.json.decode(msgspec.json.encode(state), type=TunerState)


@dataclass
class Deployment:
    """Traffic, pickers and the tuner's shell, in one.

    Attributes:
        effect: of weights.
        proposals: what rehearsals find, in order; nothing better after them.
        rate_per_s: arrivals.
        tick_s: time between two looks of the tuner.
        seed: of the traffic.
        settings: the tuner's.
    """

    effect: Callable[[Mapping[str, float]], Effect]
    proposals: list[dict[str, float]] = field(default_factory=list)
    rate_per_s: float = 6.0
    tick_s: float = 30.0
    seed: int = 0
    settings: TunerSettings = field(default_factory=quick)
    prompt_tokens: int = 1000

    def __post_init__(self) -> None:
        self.now_wall_s = START_WALL_S
        self.rules = Rules(self.settings, BOUNDS)
        self.state: TunerState = start("gorgo-ms", INCUMBENT, self.rules, self.now_wall_s)
        self.plan = Plan(weights=INCUMBENT, policy="gorgo-ms")
        self.notes: list[Note] = []
        self.plans: list[Plan] = []
        self.ticks = 0
        self.asked = 0

    def samples(self) -> list[Sample]:
        """What was dispatched and finished in the tick that ends now."""
        rng = np.random.default_rng([self.seed, self.ticks])
        n = int(rng.poisson(self.rate_per_s * self.tick_s))
        times = np.sort(rng.random(n)) * self.tick_s + self.now_wall_s - self.tick_s
        burst = math.exp(0.2 * float(rng.normal()))
        z, picks, luck = rng.normal(size=(2, n)), rng.random(n), rng.random(n)
        who = rng.integers(0, 400, n)
        out = []
        for i, at in enumerate(times.tolist()):
            assigned = assign(self.plan, at, f"s{who[i]}")
            effect = self.effect(assigned.weights)
            ttft = 400.0 * burst * effect.ttft * math.exp(0.8 * float(z[0, i]))
            e2e = ttft + 2000.0 * effect.e2e * math.exp(0.5 * float(z[1, i]))
            failed = bool(luck[i] < effect.fails)
            place = int(np.searchsorted(np.cumsum(effect.shares), picks[i]))
            out.append(
                Sample(
                    read_stamp(assigned.stamp),
                    at,
                    self.prompt_tokens,
                    weights_version=str(sorted(assigned.weights.items())),
                    endpoint=NAMES[min(place, 2)],
                    ttft_ms=math.nan if failed else ttft,
                    e2e_ms=e2e,
                    failed=failed,
                )
            )
        return out

    def tell(self, event: Event) -> None:
        """One event and what it asks for; the state goes through its persisted form each time."""
        actions = step(self.state, event, self.rules)
        self.state = again(self.state)
        self.do(actions)

    def do(self, actions: list[Action]) -> None:
        """Carry actions out."""
        for action in actions:
            if isinstance(action, Publish):
                self.plan = action.plan
                self.plans.append(action.plan)
            elif isinstance(action, Note):
                self.notes.append(action)
        if any(isinstance(action, Rehearse) for action in actions):  # an answer comes when all of it is done
            self.answer()

    def answer(self) -> None:
        """The rehearsal's answer."""
        if self.asked < len(self.proposals):
            found = self.proposals[self.asked]
            self.asked += 1
            self.tell(Proposed(self.now_wall_s, found, "rehearsed"))
        else:
            self.tell(NothingBetter(self.now_wall_s, "nothing better in rehearsal"))

    def tick(self) -> None:
        """Some time passes."""
        self.now_wall_s += self.tick_s
        self.ticks += 1
        self.tell(Observed(self.now_wall_s, self.samples()))

    def restart(self) -> None:
        """The tuner was killed after it persisted its state, and perhaps before it did anything."""
        actions = settle(self.state, self.rules, self.now_wall_s)
        actions += resume(self.state, self.rules, self.now_wall_s)
        self.state = again(self.state)
        self.do(actions)

    def run(self, until: Callable[[Deployment], bool], ticks: int = 4000) -> None:
        """Ticks until something holds.

        Raises:
            AssertionError: it never did.
        """
        for _ in range(ticks):
            if until(self):
                return
            self.tick()
        raise AssertionError(f"still in {self.state.phase}: {self.state.reason}; {self.phases()}")

    def phases(self) -> list[str]:
        """Phases in the order in which they were entered."""
        return [note.after for note in self.notes if note.before != note.after or "to " in note.reason]

    def words(self) -> str:
        """All notes."""
        return "\n".join(f"{n.before} -> {n.after}: {n.reason}" for n in self.notes)


_LIVES: dict[str, tuple[Deployment, dict[str, Deployment]]] = {}


def reached(phase: str, effect: Effect, **fields: Any) -> Deployment:
    """A deployment when the candidate `NEW`, which does this, first comes to a phase: one life serves all tests."""
    key = repr((effect, fields))
    if key not in _LIVES:
        _LIVES[key] = Deployment(when_new(effect), [NEW], **fields), {}
    world, seen = _LIVES[key]
    while phase not in seen:
        if world.state.phase not in seen:
            seen[world.state.phase] = deepcopy(world)
        else:
            world.tick()
        assert world.ticks < 4000, f"still in {world.state.phase}: {world.state.reason}"
    return deepcopy(seen[phase])
