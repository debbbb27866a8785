"""A tuner's life in virtual time: ``python -m epp.demo.tuner``.

Three simulated regions start with weights that are off. The tuner rehearses, tries its candidate live,
promotes it, watches it, finds nothing more and freezes; thresholds and evidence are those of production.
``--start defaults`` begins with the policy's own weights instead, and freezes without a promotion. Takes
minutes, prints what happens and writes a page.

What differs from a live tuner: rehearsals know the fleet as it is instead of calibrating it from records, the
clock stands still meanwhile, and they are shorter (`BUDGET` measurements of `WINDOW_REQUESTS`).
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from epp.demo.tuner_report import Story, render
from epp.demo.tuner_world import BEGIN_WALL_S, Life, at_rate
from epp.errors import EppError
from epp.policies.registry import create
from epp.replay.files import check_folder
from epp.replay.workloads.art_chat import APR_5, generate
from epp.sim.engine_class import L40S_X2
from epp.sim.scenario import regional_fleet
from epp.tune.calibrate import Deployment
from epp.tune.rehearse import TRIED, Stage, alike, budget_after, rehearse
from epp.tuner import machine
from epp.tuner.bounds import tuner_bounds
from epp.tuner.search import Search
from epp.tuner.settings import TunerSettings
from epp.tuner.state import NothingBetter, Proposed, Rules
from epp.tuner.status import status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.replay.trace import TraceRequest
    from epp.sim.scenario import FleetSpec
    from epp.tuner.state import Note, State

POLICY = "gorgo-ms"
#: Prices prefill at a fourth of what is good, and the slower steps of others at four times. These two weights
#: are tuned, the others stay as configured: a small search finds what there is in one go, and the page shows
#: it. (A start that spreads whatever it costs may end in the screen: docs/tuner.md.)
START: Mapping[str, float] = {"prefill_weight": 1.0, "decode_weight": 4.0}
RATE_RPS = 1.4
STRETCH_S = 3 * 3600.0
#: Recorded requests that a rehearsal is given, its measurements, and the requests of each.
RECORDED, BUDGET, WINDOW_REQUESTS = 6000, 40, 1000
DEFAULT_PAGE = Path("demo-tuner-out/tuner.html")
_PLANE = ("prefill_weight", "decode_weight")
_TELL_EVERY = 10


@dataclass(slots=True)
class Rehearsals:
    """What a tuner does between a baseline and a candidate.

    Attributes:
        policy: that is tuned.
        fleet: the replicas.
        rules: bounds.
        seed: of searches and simulations.
        budget: measurements for the first one from an incumbent.
        recorded: requests of late that it is given.
        window_requests: of each measurement.
        tell: takes progress.
        tried: weights measured.
        refused: weights proposed before.
    """

    policy: str
    fleet: FleetSpec
    rules: Rules
    seed: int = 0
    budget: int = BUDGET
    recorded: int = RECORDED
    window_requests: int = WINDOW_REQUESTS
    tell: Callable[[str], None] = field(default=lambda _: None)
    tried: list[dict[str, float]] = field(default_factory=list)
    refused: list[dict[str, float]] = field(default_factory=list)
    _search: Search | None = None
    _of: dict[str, float] = field(default_factory=dict)
    _stage: Stage | None = None
    _trace: tuple[TraceRequest, ...] = ()

    def __call__(
        self, state: State, now_wall_s: float, requests: Sequence[TraceRequest]
    ) -> Proposed | NothingBetter:
        """A candidate, or that there is none."""
        trace = tuple(requests[-self.recorded :])
        deployment = Deployment(
            policy=self.policy,
            params={},
            weights=state.incumbent,
            fleet=self.fleet,
            trace=trace,
            ttft_p95_ms=float("nan"),
            e2e_p95_ms=float("nan"),
            notes=(),
        )
        if self._search is None or self._of != state.incumbent:
            seed = self.seed + state.number + state.fruitless
            self._search, self._of = Search(state.incumbent, self.rules.bounds, seed=seed), state.incumbent
        if self._stage is None or trace != self._trace:  # what was run on the same records is not run again
            self._trace = trace
            self._stage = Stage(deployment, None, self.seed, self.window_requests)
        search, budget = self._search, budget_after(self.budget, state.fruitless)

        def told(number: int) -> None:
            if number % _TELL_EVERY == 0 or number == budget:
                self.tell(f"rehearsal: {number} of {budget} measurements")
            self.tried.append(search.ask())

        found = rehearse(
            self._stage,
            search,
            state.incumbent,
            budget=budget,
            goal=self.rules.settings.goal,
            looks=1 + state.fruitless,
            on_try=told,
        )
        moved = {name: found.weights[name] for name in self.rules.bounds}
        if not found.worth:
            return NothingBetter(now_wall_s, f"rehearsal: {found.reason}")
        if any(alike(moved, before, TRIED) for before in self.refused):
            return NothingBetter(now_wall_s, "rehearsal: the best weights found were tried live before")
        self.refused.append(moved)
        return Proposed(now_wall_s, moved, f"rehearsal: {found.reason}")


def rules_of(
    policy: str, settings: TunerSettings | None = None, *, tuned: Sequence[str] | None = None
) -> Rules:
    """Production rules for a policy: default settings, its own bounds and the hard ones.

    Args:
        policy: its name.
        settings: others than the default ones.
        tuned: weights that may be moved, all when None.
    """
    specs = create(policy, None).weight_specs
    names = specs if tuned is None else tuned
    bounds = {name: (specs[name].low, specs[name].high) for name in names}
    return Rules(settings or TunerSettings(), tuner_bounds(policy, bounds))


def defaults_of(policy: str) -> dict[str, float]:
    """A policy's default weights."""
    return {name: spec.default for name, spec in create(policy, None).weight_specs.items()}


def chat(seed: int, *, rate_rps: float, duration_s: float) -> tuple[TraceRequest, ...]:
    """Generated chat traffic at a rate, sent at its own time."""
    return at_rate(generate(replace(APR_5, duration_s=duration_s, rate_rps=rate_rps), seed), 1.0)


def live(
    *,
    seed: int,
    hours: float,
    start: Mapping[str, float],
    say: Callable[[str], None],
    budget: int = BUDGET,
    recorded: int = RECORDED,
) -> tuple[Life, Rehearsals]:
    """From some weights until a freeze."""
    rules, fleet = rules_of(POLICY, tuned=tuple(START)), regional_fleet(L40S_X2)
    rehearsals = Rehearsals(POLICY, fleet, rules, seed=seed, tell=say, budget=budget, recorded=recorded)

    def tell(note: Note) -> None:
        at_h = (note.at_wall_s - BEGIN_WALL_S) / 3600.0
        moved = f"{note.before} -> {note.after}: " if note.before != note.after else ""
        say(f"{at_h:6.2f} h  {moved}{note.reason}")

    def load(number: int) -> tuple[TraceRequest, ...]:
        if number >= 0:
            at_h = (world.now_wall_s - BEGIN_WALL_S) / 3600.0
            where = status(world.state, rules.settings)
            say(f"{at_h:6.2f} h  in {where.phase}: {where.enough}; next: {where.next_step}")
        return chat((seed * 1000 + number) % 2**32, rate_rps=RATE_RPS, duration_s=STRETCH_S)

    world = Life(
        policy=POLICY,
        fleet=fleet,
        load=load,
        state=machine.start(POLICY, start, rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearsals,
        stop=lambda state: state.phase == "frozen",
        seed=seed,
        tell=tell,
    )
    world.run(stretches=max(1, round(hours * 3600.0 / STRETCH_S)))
    return world, rehearsals


def story_of(world: Life, rehearsals: Rehearsals) -> Story:
    """The page's content."""
    evidence = world.rules.settings.evidence
    hours = (world.now_wall_s - BEGIN_WALL_S) / 3600.0
    return Story(
        title="A tuner's life in virtual time",
        lead=f"{world.policy}, {len(world.fleet_at(0).replicas)} simulated replicas, "
        f"{len(world.samples):,} requests in {hours:.0f} h; thresholds of production",
        plane=_PLANE,
        tried=rehearsals.tried,
        history=world.state.history,
        notes=world.notes,
        evidence=world.evidence,
        samples=world.samples,
        begin_wall_s=BEGIN_WALL_S,
        bound=evidence.block_bound,
        level=evidence.guard_level,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, and say how it ended: 0 after a freeze, and a promotion where the weights were off."""
    arguments = _arguments(argv)
    try:
        _check(arguments)
        return _run(arguments)
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except EppError as error:
        print(f"epp: {error}", file=sys.stderr)
        return 2


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_PAGE, help="the page (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the load and of the search (%(default)s)"
    )
    parser.add_argument("--hours", type=float, default=96.0, help="virtual time at most (%(default)s)")
    parser.add_argument("--measurements", type=int, default=BUDGET, help="of a rehearsal (%(default)s)")
    parser.add_argument("--recorded", type=int, default=RECORDED, help="requests it is given (%(default)s)")
    parser.add_argument("--start", choices=("off", "defaults"), default="off", help="weights to begin with")
    return parser.parse_args(argv)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse now what would end the run, or lose its page, after minutes.

    Raises:
        EppError: naming the flag.
    """
    if not 0.0 < arguments.hours < math.inf:
        raise EppError("--hours must be above 0")
    if min(arguments.measurements, arguments.recorded) < 1:
        raise EppError("--measurements and --recorded must be 1 or more")
    if arguments.seed < 0:
        raise EppError("--seed must be 0 or more")
    if arguments.out.is_dir():
        raise EppError(f"--out {arguments.out} is a folder; name the page's file, e.g. {DEFAULT_PAGE.name}")
    check_folder(arguments.out.parent)


def _run(arguments: argparse.Namespace) -> int:
    off = arguments.start == "off"
    world, rehearsals = live(
        seed=arguments.seed,
        hours=arguments.hours,
        start=START if off else defaults_of(POLICY),
        say=lambda sentence: print(sentence, flush=True),
        budget=arguments.measurements,
        recorded=arguments.recorded,
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(render(story_of(world, rehearsals)), encoding="utf-8")
    state = world.state
    promoted = sum(change.how == "promoted" for change in state.history)
    demoted = sum(change.how == "demoted" for change in state.history)
    weights = ", ".join(f"{name} {value:.3g}" for name, value in state.incumbent.items())
    print(f"\n{promoted} promoted, {demoted} demoted; {state.phase}; weights in force: {weights}")
    print(f"Written: {arguments.out}")
    return 0 if (promoted or not off) and state.phase == "frozen" else 1


if __name__ == "__main__":
    sys.exit(main())
