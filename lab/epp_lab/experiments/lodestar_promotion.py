"""Count the hours from a cold start to a promotion of `lodestar` by the default switchback."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.plan import render_plan
from epp.policies.lodestar import Lodestar
from epp_lab.compare.learned import LearnedSim, Learning
from epp_lab.experiment import Experiment
from epp_lab.reward_model.samples import ended_of
from epp_lab.reward_model.settings import LearnerSettings
from epp_lab.reward_model.trial import POLICY, STARTING, WEIGHT, Contender
from epp_lab.sim.fleet import ZERO_WALL_S
from epp_lab.sim.loop import Rank
from epp_lab.sim.scenario import parse_fleet
from epp_lab.tuner import machine
from epp_lab.tuner.state import Note, Observed, Proposed, Publish, Rehearse, Rules
from epp_lab.tuner_life import TICK_S
from epp_lab.workloads.tool_agent import ToolAgent, generate

if TYPE_CHECKING:
    from epp.schedule.decision import Outcome
    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.state import Event

SEED = 501
SETTINGS = LearnerSettings()
LOAD = ToolAgent(duration_s=12 * 3600.0, rate_rps=6.5, divisor=4)
#: A quarter of the paper's pool of two kinds of engines, at a rate below what it can do.
FLEET = replace(parse_fleet("a30*2,v100*2"), scrape_interval_s=0.1)


class Tried(LearnedSim):
    """A window in which models decide when the trial of the learned policy says so."""

    def __init__(self, seed: int) -> None:
        super().__init__(generate(LOAD, seed), FLEET, Lodestar(), Learning(SETTINGS), seed=seed)
        self.notes: list[Note] = []
        self._new: list[Sample] = []
        self._contender = Contender(lambda: self._model, self, SETTINGS.retry_s)
        self._rules = Rules(SETTINGS.trial, {WEIGHT: (0.0, 1.0)})
        self.state = machine.start(POLICY, STARTING, self._rules, self.wall_s())
        self._scheduler.weights.update("tuner", render_plan(machine.plan_of(self.state)), "weights.yaml")
        self.loop.at(self.start_ms, Rank.SIGNAL, self._look)

    def wall_s(self) -> float:
        """Return the Unix time."""
        return self._now_wall_s

    mono_s = wall_s

    def ended(self, outcome: Outcome) -> None:
        """Hand on the sample of a request that ended, to the trial as well."""
        sample = ended_of(self._pending[outcome.id], outcome)
        super().ended(outcome)
        if sample is not None:
            self._new.append(replace(sample, ended_wall_s=self.wall_s()))

    def run_until_promoted(self) -> None:
        """Run until the learned policy is the incumbent, or to the last answer."""
        self.loop.run(lambda: self._client.unfinished and not self.state.promotions)

    def _look(self) -> None:
        new, self._new = self._new, []
        self._handle(Observed(self.wall_s(), new))
        found = self._contender.poll()
        if found is not None and found.weights is not None:
            self._handle(Proposed(self.wall_s(), found.weights, found.reason))
        self.loop.at(self.loop.now_ms + TICK_S * 1e3, Rank.SIGNAL, self._look)

    def _handle(self, event: Event) -> None:
        for action in machine.step(self.state, event, self._rules):
            if isinstance(action, Publish):
                self._scheduler.weights.update("tuner", render_plan(action.plan), "weights.yaml")
            elif isinstance(action, Rehearse):
                self._contender.start(self.state, action.reason)
            elif isinstance(action, Note):
                self.notes.append(action)


def run(_cell: str, _entry: str, seed: int) -> dict[str, float]:
    """Live until the learned policy is promoted, twelve hours at most."""
    world = Tried(SEED + seed)
    world.run_until_promoted()
    began: dict[str, float] = {}
    for note in world.notes:
        began.setdefault(note.after, (note.at_wall_s - ZERO_WALL_S - world.start_ms / 1e3) / 3600.0)
    return {
        "first model h": world.lesson.first_model_s / 3600.0,
        "split h": began.get("screen", math.nan),
        "switchback h": began.get("switchback", math.nan),
        "promoted h": began.get("probation", math.nan),
        "promoted": world.state.promotions > 0,
        "trials": world.state.number,
    }


EXPERIMENT = Experiment(
    question="After how many hours does the default switchback promote `lodestar`?",
    cells=("6.5 a second",),
    entries=("switchback",),
    run=run,
    events=("promoted",),
    seeds=3,
    minutes=38,
)
