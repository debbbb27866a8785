"""A learner's life: when it trains, what it learns, what its gate lets pass, what it remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp_lab.reward_model.fitting import fit, stack
from epp_lab.reward_model.gate import greedy, judge
from epp_lab.reward_model.rounds import Learner
from epp_lab.reward_model.samples import Choice, Logged, Sample
from tests.kit.learning import SPEED, Traffic, settings_of, ttft_of
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from epp.policies.reward_model import RewardModel

SEED = 3


def error_share(model: RewardModel, samples: list[Sample]) -> float:
    """Mean absolute error over the mean."""
    truth = np.array([ttft_of(sample.row, sample.engine_class) for sample in samples])
    found = model.predict(stack(samples, model.classes))[:, 0]
    return float(np.abs(found - truth).mean() / truth.mean())


def fed(learner: Learner, traffic: Traffic, count: int) -> int:
    """Feed and train when due; how many rounds were held."""
    held = 0
    for logged in traffic.many(count):
        learner.add(logged)
        if learner.due():
            learner.train(1.0 + held)
            held += 1
    return held


def test_it_learns_what_each_class_of_engine_needs() -> None:
    samples = [logged.sample for logged in Traffic(explore=1.0).many(400)]
    model = fit(samples, settings_of(), SEED)
    fresh = [logged.sample for logged in Traffic(7, explore=1.0).many(200)]
    assert model.classes == ("fast", "slow")
    assert error_share(model, fresh) < 0.2
    linear = fit(samples, settings_of(network={"hidden": ()}), SEED)
    assert error_share(model, fresh) < 0.7 * error_share(linear, fresh)


class TestWhatAModelMayBeAskedAbout:
    """Bounds are of what was trained on, and of what stood beside it."""

    def test_candidates_that_nobody_chose_widen_them_and_nothing_narrows_them(self) -> None:
        samples = [logged.sample for logged in Traffic().many(200)]
        settings = settings_of(network={"tail": 0.0})
        plain = fit(samples, settings, SEED)
        wide = fit(samples, settings, SEED, beside=[np.array([[40.0, 500.0, 20.0], [3.0, 600.0, 21.0]])])
        assert wide.high[0] == 40.0
        assert np.array_equal(wide.low, plain.low)
        assert np.array_equal(wide.high[1:], plain.high[1:])
        x = stack(samples, plain.classes)[:2].copy()
        x[:, 0] = (38.0, 60.0)
        assert plain.out_of_distribution(x).tolist() == [True, True]
        assert wide.out_of_distribution(x).tolist() == [False, True]
        assert np.allclose(wide.mean, plain.mean)  # bounds alone: nothing was learned from them


def test_a_bound_pulls_a_prediction_up_and_never_down() -> None:
    samples = [logged.sample for logged in Traffic(noise=0.0).many(300)]
    slow = [replace(s, ttft_ms=float("nan"), waited_ms=6000.0) for s in samples if s.engine_class == "slow"]
    fast = [s for s in samples if s.engine_class == "fast"]
    low = [replace(s, ttft_ms=float("nan"), waited_ms=1.0) for s in samples if s.engine_class == "slow"]
    raised = fit([*fast, *slow], settings_of(), SEED).predict(stack(slow, ("fast", "slow")))
    assert raised.mean() > 4000.0
    kept = fit([*samples, *low], settings_of(), SEED)
    assert error_share(kept, samples) < 0.25  # bounds far below what is true teach nothing


def test_felt_latency_has_two_heads_where_itls_are_told() -> None:
    samples = [logged.sample for logged in Traffic().many(200)]
    model = fit(samples, settings_of(reward="felt"), SEED)  # type: ignore[arg-type]
    assert model.heads == ("ttft_ms", "itl_ms")
    assert np.allclose(model.predict(stack(samples, model.classes))[:, 1], 10.0, atol=3.0)
    silent = [replace(sample, itl_ms=float("nan")) for sample in samples]
    assert fit(silent, settings_of(reward="felt"), SEED).heads == ("ttft_ms",)  # type: ignore[arg-type]


class TestWhatOthersPay:
    def test_a_token_costs_others_a_multiple_of_what_it_costs_its_own(self) -> None:
        samples = [logged.sample for logged in Traffic(explore=1.0).many(600)]
        for name, speed in SPEED.items():
            alone = [sample for sample in samples if sample.engine_class == name]
            model = fit(alone, settings_of(congestion_price=3.0), SEED)  # type: ignore[arg-type]
            assert model.congestion_ms == pytest.approx(3.0 * speed, rel=0.15)
        model = fit(samples, settings_of(congestion_price=3.0), SEED)  # type: ignore[arg-type]
        both = 2.0 / sum(1.0 / speed for speed in SPEED.values())
        assert model.congestion_ms == pytest.approx(3.0 * both, rel=0.15)

    def test_the_gate_judges_the_choices_that_would_be_made_with_the_price(self) -> None:
        logged = Traffic(explore=1.0).many(200)
        weights = {"running_requests": 30.0, "uncached_tokens": 0.2, "rtt_ms": 1.0}
        alone = linear_model(weights)
        priced = linear_model(weights, congestion_ms=100.0)
        for model in (alone, priced):
            for entry in logged:
                costs = entry.choice.rows @ list(weights.values())
                costs += 100.0 * entry.choice.rows[:, 1] if model is priced else 0.0
                assert int(greedy(model, entry.choice).argmax()) == int(costs.argmin())


def test_rounds_come_at_the_first_number_and_then_at_each_further_one() -> None:
    learner = Learner(settings_of())
    held_at = []
    for number, logged in enumerate(Traffic().many(560), 1):
        learner.add(logged)
        if learner.due():
            held_at.append(number)
            learner.train(float(number))
    assert held_at == [300, 400, 500]


def test_older_samples_wait_for_the_choice_and_are_bounded() -> None:
    learner = Learner(settings_of(data={"first": 10**9, "recent": 10, "replay": 5}))
    samples = [logged.sample for logged in Traffic().many(200)]
    fed(learner, Traffic(), 200)
    assert [s.at_wall_s for s in learner.memory.recent] == [s.at_wall_s for s in samples[-10:]]
    assert len(learner.memory.older) == 20
    learner.train(1.0)
    assert len(learner.memory.older) == 5


def test_a_model_passes_and_is_better_than_what_ran() -> None:
    learner = Learner(settings_of())
    assert fed(learner, Traffic(), 300) == 1
    assert learner.incumbent is not None
    assert learner.last is not None
    figures = learner.last.verdict.figures
    assert learner.last.verdict.passed
    assert figures["error_ms"] < 0.5 * figures["constant_error_ms"]
    assert figures["cost_rise_ms"] < 0.0
    assert figures["effective_samples"] > 10.0
    assert dict(learner.incumbent.validation)["error_ms"] == figures["error_ms"]
    assert len(learner.last.calibration) == 10
    assert learner.incumbent.samples == 300  # trained once more, with what it was judged by


def test_too_little_overlap_refuses_and_holds_out_more_the_next_time() -> None:
    settings = settings_of(gate={"held_out": 50, "min_effective": 60.0, "clip": 1.0}, congestion_price=0.0)  # type: ignore[arg-type]
    learner, traffic = Learner(settings), Traffic(explore=0.2)
    fed(learner, traffic, 300)
    assert learner.last is not None
    assert not learner.last.verdict.passed
    assert "effective samples of 60" in learner.last.verdict.reason
    assert learner.last.held_out == 50
    assert learner.incumbent is None
    effective = learner.last.verdict.figures["effective_samples"]
    assert 2.0 * effective < 60.0 < 3.0 * effective
    fed(learner, traffic, 100)
    assert learner.last.held_out == 150  # at once what would have been enough


def test_a_model_of_noise_is_refused_and_the_incumbent_stays() -> None:
    learner, traffic = Learner(settings_of()), Traffic()
    fed(learner, traffic, 300)
    incumbent = learner.incumbent
    assert incumbent is not None
    learner.settings = settings_of(network={"epochs": 1, "learning_rate": 1e-9})  # a training gone astray
    fed(learner, traffic, 100)
    assert learner.last is not None
    assert not learner.last.verdict.passed
    assert "above the incumbent's" in learner.last.verdict.reason
    assert learner.incumbent is incumbent
    assert learner.last.version == incumbent.version


@pytest.mark.parametrize("wrong", [False, True])
def test_a_model_that_would_choose_what_costs_more_is_refused_off_policy(wrong: bool) -> None:
    logged = Traffic(explore=0.5).many(400)
    rest = {"uncached_tokens": 0.0, "rtt_ms": 1.0}
    right = linear_model({"running_requests": 30.0, **rest}, classes={"fast": 225.0, "slow": 820.0})
    mistaken = linear_model({"running_requests": -30.0, **rest}, classes={"fast": 820.0, "slow": 225.0})
    verdict = judge(
        mistaken if wrong else right,
        None,
        right,
        held_out=[entry.sample for entry in logged],
        log=logged,
        settings=settings_of(),
        constant_ms=1e6,  # so that errors do not matter here
    )
    assert verdict.passed is not wrong
    assert (verdict.figures["cost_rise_ms"] > 0.0) is wrong
    if wrong:
        assert "off policy it would cost" in verdict.reason


def saturated(count: int = 400) -> list[Logged]:
    """Choices of who queues everything at one endpoint, and does what a model would once in twelve times."""
    logged = []
    names, sure = ("a", "b", "c"), np.array([0.98, 0.01, 0.01])
    for number in range(count):
        running = (60.0, 50.0, 5.0) if number % 12 else (5.0, 50.0, 60.0)
        rows = np.array(
            [[queue, tokens, 1.0] for queue, tokens in zip(running, (900, 100, 800), strict=True)]
        )
        sample = Sample(number, rows[0], "fast", ttft_ms=ttft_of(rows[0], "fast"), output_tokens=1.0)
        choice = Choice(names, rows, ("fast",) * 3, sure, np.array([1.0, 0.0, 0.0]), 0)
        logged.append(Logged(sample, choice, served_pick=True))
    return logged


@pytest.mark.parametrize(
    ("weights", "off_ms", "passes"),
    [
        ({"running_requests": 30.0, "uncached_tokens": 0.1}, 0.0, True),
        ({"running_requests": 30.0, "uncached_tokens": 0.1}, 200.0, False),
        ({"uncached_tokens": 1.0}, 0.0, False),
    ],
    ids=["right", "predicts as poorly as one number", "saves little"],
)
def test_a_saturated_incumbent_gives_way_with_little_overlap_to_whom_that_saves_half(
    weights: dict[str, float], off_ms: float, passes: bool
) -> None:
    right = linear_model({"running_requests": 30.0, "uncached_tokens": 0.1, "rtt_ms": 1.0})
    candidate = linear_model({"running_requests": 0.0, "uncached_tokens": 0.0, "rtt_ms": 1.0, **weights})
    candidate = replace(candidate, offset=np.array([off_ms]))
    logged = saturated()
    verdict = judge(
        candidate,
        None,
        right,
        held_out=[entry.sample for entry in logged],
        log=logged,
        settings=settings_of(gate={"min_effective": 200.0}),
        constant_ms=1e6,
    )
    assert verdict.figures["effective_samples"] < 50.0
    assert verdict.passed is passes
    assert verdict.short is not passes


def test_an_incumbent_that_predicts_worse_than_one_number_is_withdrawn() -> None:
    learner, traffic = Learner(settings_of()), Traffic()
    fed(learner, traffic, 300)
    assert learner.incumbent is not None
    traffic.factor = 30.0  # the fleet became another one
    learner.settings = settings_of(network={"epochs": 1, "learning_rate": 1e-9}, gate={"min_effective": 1e6})
    fed(learner, traffic, 100)
    assert learner.last is not None
    assert learner.last.withdrawn
    assert learner.incumbent is None
    assert learner.last.version == ""


def test_the_heuristic_gets_back_when_it_would_have_cost_less() -> None:
    learner, traffic = Learner(settings_of(gate={"held_out": 200})), Traffic(explore=1.0)
    fed(learner, traffic, 300)
    assert learner.incumbent is not None
    for logged in Traffic(3, explore=1.0).many(400):
        choice = logged.choice
        truth = [ttft_of(row, name) for row, name in zip(choice.rows, choice.engine_classes, strict=True)]
        wise = np.zeros(len(truth))
        wise[int(np.argmin(truth))] = 1.0
        learner.add(replace(logged, choice=replace(choice, heuristic=wise, learned=True)))
    learner.train(2.0)
    assert learner.last is not None
    assert learner.last.withdrawn
    assert learner.incumbent is None
    assert learner.last.verdict.figures["regret_ms"] > 0.0
    assert "the heuristic would have cost" in learner.last.verdict.reason
    fed(learner, traffic, 100)
    assert learner.last.verdict.passed  # and the next model is tried against what ran since
