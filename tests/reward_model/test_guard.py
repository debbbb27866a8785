"""Models that decide without a trial: the fleet under them is compared with the heuristic's, and they go on regret."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from epp_lab.reward_model.guard import GuardState, look_at_the_clock, rests, take
from epp_lab.reward_model.loop import status_lines
from epp_lab.reward_model.rounds import Learner
from epp_lab.reward_model.samples import Choice, Logged, Sample
from epp_lab.reward_model.settings import DataKeys, Guard, LearnerSettings
from tests.kit.learning import LearnWorld, quick_settings, settings_of
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from pathlib import Path


BEGIN_S = 1_800_000_000.0
SETTINGS = LearnerSettings(promotion="screen", data=DataKeys(first=10**9))


class Fleet:
    """Requests at a steady rate whose latencies follow who decides."""

    def __init__(self, settings: LearnerSettings = SETTINGS, seed: int = 0) -> None:
        self.settings, self.state = settings, GuardState()
        self._random = np.random.default_rng(seed)
        self.now_s = BEGIN_S

    def one(
        self,
        *,
        learned: bool,
        factor: float = 1.0,
        rate_rps: float = 2.0,
        answer_factor: float = 1.0,
        failing: float = 0.0,
    ) -> Logged:
        """The next request; those that fail do so after a quick first token."""
        self.now_s += 1.0 / rate_rps
        rows = np.full((2, len(self.settings.network.features)), 100.0)
        ttft_ms = factor * float(self._random.lognormal(5.0, 0.6))
        sample = Sample(self.now_s, rows[0], "", ttft_ms, itl_ms=10.0, output_tokens=50.0)
        even = np.full(2, 0.5)
        choice = Choice(("a", "b"), rows, ("", ""), even, even, 0, learned=learned)
        e2e_ms = ttft_ms + answer_factor * float(self._random.lognormal(7.0, 0.4))
        failed = bool(self._random.random() < failing)
        ended_wall_s = self.now_s + e2e_ms / 1000.0
        return Logged(sample, choice, True, ended_wall_s, math.nan if failed else e2e_ms, failed)

    def serve(self, minutes: float, *, rate_rps: float = 2.0, **kind: Any) -> str:
        """Requests for so long; the first reason against the model."""
        for _ in range(int(60.0 * minutes * rate_rps)):
            logged = self.one(rate_rps=rate_rps, **kind)
            if reason := take(self.state, logged, self.settings):
                return reason
        return ""


def test_a_model_that_does_no_harm_stays() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False, rate_rps=1.0) == ""
    assert fleet.serve(120, learned=True, rate_rps=1.0) == ""
    assert all(watch.blocks > 120 for watch in fleet.state.watches.values())
    assert fleet.state.retreats == 0


def test_harm_that_all_requests_suffer_is_regretted() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    reason = fleet.serve(120, learned=True, factor=1.5)
    assert reason.startswith("the fleet is worse than under the heuristic: ")
    assert fleet.state.retreats == 1
    assert fleet.state.held_until_wall_s == pytest.approx(fleet.now_s + SETTINGS.retry_s, abs=1.0)
    for watch in fleet.state.watches.values():
        assert watch.evidence == 0.0
        assert len(watch.baseline) > 30  # what is known of the heuristic stays


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ({"answer_factor": 2.0}, "whole answers: "),
        ({"factor": 0.5, "answer_factor": 0.5, "failing": 0.1}, "failures: "),
    ],
    ids=["answers take twice as long", "a tenth fails, the others are faster"],
)
def test_harm_is_regretted_that_first_tokens_do_not_show(harm: dict[str, float], words: str) -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    reason = fleet.serve(60, learned=True, **harm)
    assert reason.startswith(f"the fleet is worse than under the heuristic: {words}")


def test_a_clock_that_is_set_back_begins_anew_and_holds_no_longer() -> None:
    fleet = Fleet()
    assert fleet.serve(30, learned=False) == ""
    assert fleet.serve(60, learned=True, factor=5.0) != ""
    fleet.now_s -= 86_400.0
    look_at_the_clock(fleet.state, fleet.now_s, SETTINGS)
    assert fleet.state.held_until_wall_s <= fleet.now_s + SETTINGS.retry_s
    assert fleet.serve(30, learned=False) == ""
    assert 30 < len(fleet.state.watches["first"].baseline) < 42
    assert fleet.serve(60, learned=True, factor=5.0) != ""


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


def test_a_learner_takes_a_model_away_on_regret_and_holds_the_next_ones_back_for_longer() -> None:
    settings = msgspec.structs.replace(
        SETTINGS,
        guard=Guard(rest_s=0.0),
        retry_s=20_000.0,
        data=DataKeys(first=400, every=400, recent=400, replay=0),
        gate=settings_of(gate={"on": False, "held_out": 100}).gate,
        network=settings_of(network={"features": SETTINGS.network.features, "hidden": ()}).network,
    )
    learner, fleet = Learner(settings), Fleet(settings)

    def lived(minutes: float, factor: float) -> None:
        for _ in range(int(120 * minutes)):
            learned = learner.in_force(fleet.now_s) is not None
            learner.add(fleet.one(learned=learned, factor=factor if learned else 1.0))

    held: list[float] = []
    lived(30, 1.0)
    for _ in range(2):
        learner.incumbent = linear_model({"prompt_tokens": 1.0})
        lived(40, 4.0)
        assert learner.incumbent is None
        held.append(learner.memory.guard.held_until_wall_s - fleet.now_s)
        assert learner.train(fleet.now_s) is None
        assert learner.last is not None
        assert learner.last.verdict.reason.startswith("refused: held back for ")
        assert learner.train(fleet.now_s + held[-1] + 1.0) is not None  # the gate is open
    assert len(learner.retreats) == 2
    assert held[1] > 1.5 * held[0]


def test_the_process_publishes_no_model_in_the_heuristics_turn_and_tells_of_retreats(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(
        quick_settings(), promotion="screen", guard=Guard(every_s=1e9, rest_s=1e9 - 1.0)
    )
    world = LearnWorld(tmp_path / "w", settings)
    loop = world.start()
    world.run(200)
    assert loop.learner.incumbent is not None
    assert loop.learner.rests(world.clock.wall_s())
    assert world.published() is None
    loop.learner.retreats.append("the fleet is worse than under the heuristic: shown")
    world.clock.advance(10.0)
    loop.tick()
    assert any("is taken away, the heuristic decides: the fleet" in sentence for sentence in world.told)
    assert loop.learner.retreats == []
    lines = status_lines(world.paths, world.clock.wall_s())
    assert any(line.startswith("guard: ") for line in lines)
    assert any("it is the heuristic's turn" in line for line in lines)
