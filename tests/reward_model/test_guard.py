"""Models that decide without a trial: the fleet under them is compared with the heuristic's, and they go on regret."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from epp.lab.compare.learned import Learning, run_learned
from epp.lab.sim.scenario import parse_fleet
from epp.lab.workloads.tool_agent import ToolAgent, generate
from epp.learn.reward_model.guard import GuardState, look_at_the_clock, rests, slow_place, take
from epp.learn.reward_model.rounds import Learner
from epp.learn.reward_model.samples import Logged, Sample
from epp.learn.reward_model.settings import Data, Guard, LearnerSettings, Network
from epp.learn.reward_model.status import status_lines
from epp.learn.reward_model.store import decode, encode, memory_of, saved_of
from epp.learn.sidecar.feed import State as FeedState
from epp.learn.sidecar.files import Files
from epp.learn.tuner.settings import Goal, Stages, TunerSettings
from epp.policies.lodestar import Lodestar
from tests.kit.learning import settings_of
from tests.kit.learnworld import LearnWorld, quick_settings
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from pathlib import Path


BEGIN_S = 1_800_000_000.0
SETTINGS = LearnerSettings(promotion="screen", data=Data(first=10**9))


class Fleet:
    """Requests at a steady rate whose latencies follow who decides."""

    def __init__(self, settings: LearnerSettings = SETTINGS, seed: int = 0) -> None:
        self.settings, self.state = settings, GuardState()
        self._random = np.random.default_rng(seed)
        self.now_s = BEGIN_S

    def one(self, *, learned: bool, factor: float = 1.0, rate_rps: float = 2.0) -> Logged:
        """The next request."""
        self.now_s += 1.0 / rate_rps
        rows = np.full((2, len(self.settings.network.features)), 100.0)
        ttft_ms = factor * float(self._random.lognormal(5.0, 0.6))
        sample = Sample(self.now_s, rows[0], "", ttft_ms, itl_ms=10.0, output_tokens=50.0)
        even = np.full(2, 0.5)
        logged = Logged(sample, rows, ("", ""), even, even, 0, served_pick=True, learned=learned)
        return replace(logged, ended_wall_s=self.now_s + ttft_ms / 1000.0)

    def serve(self, minutes: float, *, learned: bool, factor: float = 1.0, rate_rps: float = 2.0) -> str:
        """Requests for so long; the first reason against the model."""
        for _ in range(int(60.0 * minutes * rate_rps)):
            logged = self.one(learned=learned, factor=factor, rate_rps=rate_rps)
            if reason := take(self.state, logged, self.settings):
                return reason
        return ""


def slow_of(fleet: Fleet, share: float) -> float:
    """Milliseconds in the middle of the place above which a request is slow; places are 10 % wide."""
    return float(1.01 ** (10.0 * slow_place(fleet.state.watch.baseline, share) + 5.0))


def test_a_model_that_does_no_harm_stays() -> None:
    for seed in range(2):
        fleet = Fleet(seed=seed)
        assert fleet.serve(30, learned=False, rate_rps=1.0) == ""
        assert fleet.serve(120, learned=True, rate_rps=1.0) == ""
        assert fleet.state.watch.blocks > 120
        assert fleet.state.retreats == 0


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_harm_that_all_requests_suffer_is_regretted(factor: float) -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    reason = fleet.serve(120, learned=True, factor=factor)
    assert reason.startswith("the fleet is worse than under the heuristic: ")
    assert fleet.state.retreats == 1
    assert fleet.state.held_until_wall_s == pytest.approx(fleet.now_s + SETTINGS.retry_s, abs=1.0)
    assert fleet.state.watch.evidence == 0.0
    assert len(fleet.state.watch.baseline) > 30  # what is known of the heuristic stays


def test_the_same_harm_under_the_heuristic_is_nobodys() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    assert fleet.serve(120, learned=False, factor=3.0) == ""


def test_load_that_the_heuristic_never_had_says_nothing() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    assert fleet.serve(20, learned=True, factor=5.0, rate_rps=6.0) == ""
    assert fleet.state.watch.alone > 0


def test_without_a_time_of_the_heuristic_nothing_is_said() -> None:
    fleet = Fleet()
    assert fleet.serve(120, learned=True, factor=5.0) == ""


def test_the_models_queues_are_not_held_against_the_heuristic() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    assert fleet.serve(4, learned=True) == ""
    assert fleet.serve(4, learned=False, factor=50.0) == ""  # what the model left behind
    assert fleet.serve(6, learned=False) == ""
    assert slow_of(fleet, 0.95) < 500.0
    assert slow_of(fleet, 0.999) < 2000.0


def test_what_other_policies_chose_is_nobodys() -> None:
    fleet = Fleet()
    for _ in range(3000):
        assert take(fleet.state, replace(fleet.one(learned=False), other=True), SETTINGS) == ""
    assert fleet.state == GuardState()


@pytest.mark.parametrize(("back_s", "seen"), [(86_400.0, False), (86_400.0, True), (1_200.0, True)])
def test_a_clock_that_is_set_back_begins_anew_and_holds_no_longer(back_s: float, seen: bool) -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    assert fleet.serve(60, learned=True, factor=5.0) != ""
    fleet.now_s -= back_s
    look_at_the_clock(fleet.state, fleet.now_s, SETTINGS, stepped_s=-back_s if seen else 0.0)
    assert fleet.state.held_until_wall_s <= fleet.now_s + SETTINGS.retry_s
    assert fleet.serve(30, learned=False) == ""
    assert 30 < len(fleet.state.watch.baseline) < 42
    assert fleet.serve(60, learned=True, factor=5.0) != ""


def test_a_clock_that_is_corrected_by_seconds_changes_nothing() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    before = msgspec.to_builtins(fleet.state)
    look_at_the_clock(fleet.state, fleet.now_s - 20.0, SETTINGS, stepped_s=-20.0)
    look_at_the_clock(fleet.state, fleet.now_s + 20.0, SETTINGS, stepped_s=40.0)
    assert msgspec.to_builtins(fleet.state) == before


@pytest.mark.parametrize(("minutes", "late"), [(180, 100), (40, 30)])
def test_what_another_picker_served_and_is_read_later_is_no_clock_that_was_set_back(
    minutes: float, late: float
) -> None:
    fleet = Fleet()
    assert fleet.serve(minutes, learned=False) == ""
    assert fleet.serve(60, learned=True, factor=5.0) != ""
    before, ended_s = msgspec.to_builtins(fleet.state), fleet.now_s
    fleet.now_s -= 60.0 * (late + 5.0)  # the files of another one, that served at the same time
    assert fleet.serve(late, learned=False) == ""
    look_at_the_clock(fleet.state, ended_s, SETTINGS)
    assert msgspec.to_builtins(fleet.state) == before


def test_a_request_that_outlasts_its_block_counts_in_one_that_is_open() -> None:
    fleet = Fleet()
    assert fleet.serve(10, learned=False) == ""
    requests = sum(filling.requests for filling in fleet.state.watch.open.values())
    slow = fleet.one(learned=False)
    slow = replace(slow, sample=replace(slow.sample, at_wall_s=fleet.now_s - 500.0), ended_wall_s=fleet.now_s)
    assert take(fleet.state, slow, SETTINGS) == ""
    assert sum(filling.requests for filling in fleet.state.watch.open.values()) == requests + 1


def test_of_another_measure_it_begins_anew_and_watches_as_before() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    assert fleet.serve(60, learned=True, factor=5.0) != ""
    held_s = fleet.state.held_until_wall_s
    fleet.settings = msgspec.structs.replace(SETTINGS, trial=TunerSettings(goal=Goal(measure="felt")))
    assert fleet.serve(30, learned=True) == "", "compared with nothing that was counted otherwise"
    assert (fleet.state.held_until_wall_s, fleet.state.retreats) == (held_s, 1)
    assert fleet.serve(40, learned=False) == ""
    assert fleet.serve(60, learned=True) == ""
    assert fleet.serve(60, learned=True, factor=5.0) != ""


def test_slow_is_what_one_in_twenty_of_the_heuristics_were() -> None:
    fleet = Fleet()
    fleet.serve(60, learned=False)
    assert slow_of(fleet, 0.95) == pytest.approx(np.exp(5.0 + 0.6 * 1.645), rel=0.15)


def test_each_period_has_one_turn_of_the_heuristic_at_a_moment_of_its_own() -> None:
    guard, begins = Guard(every_s=1000.0, rest_s=100.0), []
    for period in range(20):
        times = [period * 1000.0 + second for second in range(1000)]
        turn = [at_s for at_s in times if rests(guard, 3, at_s)]
        assert 99 <= len(turn) <= 100
        assert turn[-1] - turn[0] < 100.0
        begins.append(turn[0] - times[0])
    assert max(begins) - min(begins) > 500.0
    assert not any(rests(Guard(rest_s=0.0), 3, 60.0 * minute) for minute in range(1000))


class TestTheLearner:
    """It takes models away, and holds them back for longer each time."""

    def settings(self, **changes: object) -> LearnerSettings:
        return msgspec.structs.replace(SETTINGS, guard=Guard(rest_s=0.0), **changes)

    def lived(self, learner: Learner, fleet: Fleet, minutes: float, factor: float) -> None:
        for _ in range(int(120 * minutes)):
            learned = learner.in_force(fleet.now_s) is not None
            learner.add(fleet.one(learned=learned, factor=factor if learned else 1.0))

    def test_takes_a_model_away_on_regret_and_holds_the_next_ones_back(self) -> None:
        settings = self.settings(
            retry_s=20_000.0,
            data=Data(first=400, every=400, recent=400, replay=0),
            gate=settings_of(gate={"on": False, "held_out": 100}).gate,
            network=settings_of(network={"features": SETTINGS.network.features, "hidden": ()}).network,
        )
        learner, fleet = Learner(settings), Fleet(settings)
        model, held = linear_model({"prompt_tokens": 1.0}), []
        self.lived(learner, fleet, 30, 1.0)
        for _ in range(2):
            learner.memory.incumbent = model
            self.lived(learner, fleet, 40, 4.0)
            assert learner.incumbent is None
            held.append(learner.memory.guard.held_until_wall_s - fleet.now_s)
            assert learner.train(fleet.now_s) is None
            assert learner.last is not None
            assert learner.last.verdict.reason.startswith("refused: held back for ")
            assert learner.train(fleet.now_s + held[-1] + 1.0) is not None  # the gate is open
        assert len(learner.retreats) == 2
        assert held[1] > 1.5 * held[0]

    def test_does_nothing_of_the_kind_where_a_trial_promotes(self) -> None:
        settings = self.settings(promotion="switchback")
        learner, fleet = Learner(settings), Fleet(settings)
        self.lived(learner, fleet, 30, 1.0)
        learner.memory.incumbent = linear_model({"prompt_tokens": 1.0})
        self.lived(learner, fleet, 60, 5.0)
        assert learner.incumbent is not None
        assert learner.memory.guard == GuardState()
        assert not learner.rests(fleet.now_s)

    def test_takes_turns_with_the_heuristic(self) -> None:
        settings = msgspec.structs.replace(SETTINGS, guard=Guard(every_s=100.0, rest_s=20.0))
        learner = Learner(settings)
        model = learner.memory.incumbent = linear_model({"prompt_tokens": 1.0})
        decides = [learner.in_force(BEGIN_S + second) for second in range(1000)]
        assert decides.count(None) == pytest.approx(200, abs=12)
        assert decides.count(model) == len(decides) - decides.count(None)

    def test_remembers_it_over_a_restart(self) -> None:
        settings = self.settings()
        learner, fleet = Learner(settings), Fleet(settings)
        self.lived(learner, fleet, 20, 1.0)
        learner.memory.incumbent = linear_model({"prompt_tokens": 1.0})
        self.lived(learner, fleet, 3, 4.0)
        saved = decode(encode(saved_of(learner.memory, FeedState(), settings)))
        again = memory_of(saved, settings)
        assert again.guard == learner.memory.guard
        assert again.guard.watch.baseline


def test_the_process_publishes_no_model_in_the_heuristics_turn_and_tells_of_retreats(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        quick_settings(), promotion="screen", guard=Guard(every_s=1e9, rest_s=1e9 - 1.0)
    )
    world = LearnWorld(tmp_path / "w", settings)
    loop = world.start()
    world.run(200)
    assert loop.incumbent is not None
    assert loop.learner.rests(world.clock.wall_s())
    assert world.published() is None
    loop.learner.retreats.append("the fleet is worse than under the heuristic: shown")
    world.clock.advance(10.0)
    loop.tick()
    assert any("is taken away, the heuristic decides: the fleet" in sentence for sentence in world.told)
    assert loop.learner.retreats == []
    lines = status_lines(world.paths, Files(), world.clock.wall_s())
    assert any(line.startswith("guard: ") for line in lines)
    assert any("it is the heuristic's turn" in line for line in lines)


def test_the_process_tells_the_guard_of_a_clock_that_was_set_back(tmp_path: Path) -> None:
    world = LearnWorld(tmp_path / "w", msgspec.structs.replace(quick_settings(), promotion="screen"))
    loop = world.start()
    guard, now_s = loop.learner.memory.guard, world.clock.wall_s()
    guard.newest_wall_s, guard.held_until_wall_s = now_s, now_s + 500.0
    world.clock._offset_s -= 86_400.0
    loop.tick()
    assert guard.newest_wall_s == world.clock.wall_s()
    assert guard.held_until_wall_s == guard.newest_wall_s + 500.0


def test_a_simulated_fleet_gets_its_heuristic_back() -> None:
    piling_up = linear_model({"running_requests": -1.0, "prompt_tokens": 0.0})
    settings = LearnerSettings(
        promotion="screen",
        guard=Guard(every_s=250.0, rest_s=130.0),
        data=Data(first=10**9),
        network=Network(features=("running_requests", "prompt_tokens")),
        trial=TunerSettings(stages=Stages(block_s=10.0, max_block_s=10.0, late_s=5.0)),
        retry_s=1e6,
    )
    load = generate(ToolAgent(duration_s=500.0, rate_rps=5.0, divisor=4), 1)
    fleet = replace(parse_fleet("a30*4"), scrape_interval_s=0.5)
    _, lesson = run_learned(load, fleet, Lodestar(k=0), Learning(settings, model=piling_up), seed=1)
    (retreat,) = lesson.retreats
    before = [code for at_s, code, _ in lesson.chosen if at_s <= retreat[0]]
    after = [code for at_s, code, _ in lesson.chosen if at_s > retreat[0]]
    assert set(before) == {0, 1}  # the model, and the heuristic in its turns
    assert set(after) == {1}
