"""A learner's life: when it trains, what it learns, what its gate lets pass, what it remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.learn.reward_model.fitting import Origin, fit, stack
from epp.learn.reward_model.gate import choices_of, judge
from epp.learn.reward_model.pools import Pools
from epp.learn.reward_model.rounds import Learner
from tests.kit.learning import FEATURES, SPEED, Traffic, settings_of, ttft_of
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from epp.learn.reward_model.samples import Sample
    from epp.policies.reward_model import RewardModel

ORIGIN = Origin(seen=1000, round=1, trained_at_s=1.0, seed=3)


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
    model = fit(samples, settings_of(), ORIGIN)
    fresh = [logged.sample for logged in Traffic(7, explore=1.0).many(200)]
    assert model.classes == ("fast", "slow")
    assert error_share(model, fresh) < 0.2
    linear = fit(samples, settings_of(network={"hidden": ()}), ORIGIN)
    assert error_share(model, fresh) < 0.7 * error_share(linear, fresh)


def test_the_same_samples_and_seed_give_the_same_model() -> None:
    samples = [logged.sample for logged in Traffic().many(100)]
    first, second = (fit(samples, settings_of(), ORIGIN) for _ in range(2))
    assert first.version == second.version
    assert fit(samples, settings_of(), replace(ORIGIN, seed=4)).version != first.version


def test_normalisation_and_bounds_are_of_what_was_trained_on_and_constants_do_no_harm() -> None:
    samples = [
        replace(logged.sample, row=logged.sample.row * [1.0, 1.0, 0.0]) for logged in Traffic().many(200)
    ]
    model = fit(samples, settings_of(network={"tail": 0.0}), ORIGIN)
    rows = np.stack([sample.row for sample in samples])
    assert np.allclose(model.mean[:3], rows.mean(axis=0))
    assert np.allclose(model.std[:3], [*rows.std(axis=0)[:2], 1.0])
    assert np.allclose(model.low[:3], rows.min(axis=0))
    inside = stack(samples, model.classes)
    assert not model.out_of_distribution(inside).any()
    assert model.out_of_distribution(
        inside + np.array([0.0, 0.0, 30.0, 0.0, 0.0])
    ).all()  # a constant that moved


class TestWhatAModelMayBeAskedAbout:
    """Bounds are of what was trained on, and of what stood beside it."""

    def test_candidates_that_nobody_chose_widen_them_and_nothing_narrows_them(self) -> None:
        samples = [logged.sample for logged in Traffic().many(200)]
        settings = settings_of(network={"tail": 0.0})
        plain = fit(samples, settings, ORIGIN)
        wide = fit(samples, settings, ORIGIN, beside=[np.array([[40.0, 500.0, 20.0], [3.0, 600.0, 21.0]])])
        assert wide.high[0] == 40.0
        assert np.array_equal(wide.low, plain.low)
        assert np.array_equal(wide.high[1:], plain.high[1:])
        x = stack(samples, plain.classes)[:2].copy()
        x[:, 0] = (38.0, 60.0)
        assert plain.out_of_distribution(x).tolist() == [True, True]
        assert wide.out_of_distribution(x).tolist() == [False, True]
        assert np.allclose(wide.mean, plain.mean)  # bounds alone: nothing was learned from them

    def test_one_wild_candidate_does_not_open_them(self) -> None:
        samples = [logged.sample for logged in Traffic().many(200)]
        beside = [np.array([[5.0, 500.0, 20.0]])] * 3000 + [np.array([[1e6, 500.0, 20.0]])]
        assert fit(samples, settings_of(), ORIGIN, beside=beside).high[0] < 20.0

    def test_a_learner_knows_an_endpoint_that_is_seen_full_and_never_chosen_and_no_fuller_one(self) -> None:
        learner, traffic = Learner(settings_of(congestion_price=0.0)), Traffic()  # type: ignore[arg-type]
        for logged in traffic.many(300):
            rows = np.concatenate([logged.rows, [[30.0, 400.0, 25.0]]])  # full: nobody takes it
            none = np.zeros(1)
            learner.add(
                replace(
                    logged,
                    rows=rows,
                    engine_classes=(*logged.engine_classes, "fast"),
                    chances=np.concatenate([logged.chances, none]),
                    heuristic=np.concatenate([logged.heuristic, none]),
                )
            )
        model = learner.train(1.0)
        assert model is not None
        x = np.array([[29.0, 400.0, 25.0, 1.0, 0.0], [45.0, 400.0, 25.0, 1.0, 0.0]])
        assert model.out_of_distribution(x).tolist() == [False, True]


def test_a_class_of_too_few_requests_is_not_known() -> None:
    traffic = Traffic()
    samples = [logged.sample for logged in traffic.many(100)]
    rare = [replace(sample, engine_class="new") for sample in samples[:3]]
    model = fit([*samples, *rare], settings_of(), ORIGIN)
    assert "new" not in model.classes
    assert model.out_of_distribution(stack(rare, model.classes)).all()
    nameless = [replace(sample, engine_class="") for sample in samples]
    assert fit(nameless, settings_of(), ORIGIN).classes == ()


def test_a_bound_pulls_a_prediction_up_and_never_down() -> None:
    samples = [logged.sample for logged in Traffic(noise=0.0).many(300)]
    slow = [replace(s, ttft_ms=float("nan"), waited_ms=6000.0) for s in samples if s.engine_class == "slow"]
    fast = [s for s in samples if s.engine_class == "fast"]
    low = [replace(s, ttft_ms=float("nan"), waited_ms=1.0) for s in samples if s.engine_class == "slow"]
    raised = fit([*fast, *slow], settings_of(), ORIGIN).predict(stack(slow, ("fast", "slow")))
    assert raised.mean() > 4000.0
    kept = fit([*samples, *low], settings_of(), ORIGIN)
    assert error_share(kept, samples) < 0.25  # bounds far below what is true teach nothing


def test_felt_latency_has_two_heads_where_itls_are_told() -> None:
    samples = [logged.sample for logged in Traffic().many(200)]
    model = fit(samples, settings_of(reward="felt"), ORIGIN)  # type: ignore[arg-type]
    assert model.heads == ("ttft_ms", "itl_ms")
    assert np.allclose(model.predict(stack(samples, model.classes))[:, 1], 10.0, atol=3.0)
    silent = [replace(sample, itl_ms=float("nan")) for sample in samples]
    assert fit(silent, settings_of(reward="felt"), ORIGIN).heads == ("ttft_ms",)  # type: ignore[arg-type]


class TestWhatOthersPay:
    def test_a_token_costs_others_a_multiple_of_what_it_costs_its_own(self) -> None:
        samples = [logged.sample for logged in Traffic(explore=1.0).many(600)]
        for name, speed in SPEED.items():
            alone = [sample for sample in samples if sample.engine_class == name]
            model = fit(alone, settings_of(congestion_price=3.0), ORIGIN)  # type: ignore[arg-type]
            assert model.congestion_ms == pytest.approx(3.0 * speed, rel=0.15)
        model = fit(samples, settings_of(congestion_price=3.0), ORIGIN)  # type: ignore[arg-type]
        both = 2.0 / sum(1.0 / speed for speed in SPEED.values())
        assert model.congestion_ms == pytest.approx(3.0 * both, rel=0.15)

    def test_a_class_that_says_nothing_has_no_part_in_it_and_no_price_is_negative(self) -> None:
        samples = [logged.sample for logged in Traffic(explore=1.0).many(600)]
        alike = [replace(sample, engine_class="new", row=samples[0].row) for sample in samples[:20]]
        usual = fit(samples, settings_of(), ORIGIN).congestion_ms
        assert fit([*samples, *alike], settings_of(), ORIGIN).congestion_ms == pytest.approx(usual)
        odd = [replace(sample, ttft_ms=5000.0 - sample.row[1]) for sample in samples]
        assert fit(odd, settings_of(), ORIGIN).congestion_ms == 0.0

    @pytest.mark.parametrize("without", [{"congestion_price": 0.0}, {"network": {"features": FEATURES[::2]}}])
    def test_there_may_be_no_price(self, without: dict[str, Any]) -> None:
        samples = [logged.sample for logged in Traffic().many(100)]
        if "network" in without:
            samples = [replace(sample, row=sample.row[::2]) for sample in samples]
        assert fit(samples, settings_of(**without), ORIGIN).congestion_ms == 0.0

    def test_the_gate_judges_the_choices_that_would_be_made_with_the_price(self) -> None:
        logged = Traffic(explore=1.0).many(200)
        weights = {"running_requests": 30.0, "uncached_tokens": 0.2, "rtt_ms": 1.0}
        alone = linear_model(weights)
        priced = linear_model(weights, congestion_ms=100.0)
        for model in (alone, priced):
            for choice, entry in zip(choices_of(logged, model, alone), logged, strict=True):
                costs = entry.rows @ list(weights.values())
                costs += 100.0 * entry.rows[:, 1] if model is priced else 0.0
                assert int(choice.target.argmax()) == int(costs.argmin())


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
    pools = Pools(10, 5)
    samples = [logged.sample for logged in Traffic().many(200)]
    for sample in samples:
        pools.add(sample)
    assert list(pools.recent) == samples[-10:]
    assert len(pools.older) <= 20
    before = list(pools.older)
    pools.choose(lambda _, count: np.arange(count)[::-1])
    assert pools.older == before[:5]  # chosen ones stay in the order of time
    training, held_out = pools.training(3)
    assert held_out == samples[-3:]
    assert training == [*before[:5], *samples[-10:-3]]
    assert Pools(10, 0).older == []


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
    assert [part.count for part in learner.last.calibration] == [10] * 10
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
        logged=logged,
        settings=settings_of(),
        constant_ms=1e6,  # so that errors do not matter here
    )
    assert verdict.passed is not wrong
    assert (verdict.figures["cost_rise_ms"] > 0.0) is wrong
    if wrong:
        assert "off policy it would cost" in verdict.reason


@pytest.mark.parametrize("fresh", [0, 50])
def test_an_incumbent_is_compared_on_what_it_has_not_seen_either(fresh: int) -> None:
    traffic = Traffic(noise=0.01)
    logged = traffic.many(250)
    traffic.factor = 5.0
    logged += traffic.many(50)
    old, new = (
        linear_model({"running_requests": factor * 30.0, "uncached_tokens": factor * 0.25, "rtt_ms": factor})
        for factor in (1.0, 5.0)
    )
    verdict = judge(
        new,
        old,
        new,
        held_out=[entry.sample for entry in logged],
        logged=logged,
        settings=settings_of(),
        constant_ms=1e6,
        fresh=fresh,
    )
    refused = "above the incumbent's error" in verdict.reason
    assert refused is (fresh == 0)  # the incumbent was trained on the first 250 and is good at them


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


@pytest.mark.parametrize("sorry", [False, True])
def test_the_heuristic_gets_back_when_it_would_have_cost_less(sorry: bool) -> None:
    learner, traffic = Learner(settings_of(gate={"held_out": 200})), Traffic(explore=1.0)
    fed(learner, traffic, 300)
    assert learner.incumbent is not None
    for logged in Traffic(3, explore=1.0).many(400):
        truth = [ttft_of(row, name) for row, name in zip(logged.rows, logged.engine_classes, strict=True)]
        wise = np.zeros(len(truth))
        wise[int(np.argmin(truth) if sorry else np.argmax(truth))] = 1.0
        learner.add(replace(logged, heuristic=wise, learned=True))
    learner.train(2.0)
    assert learner.last is not None
    assert learner.last.withdrawn is sorry
    assert (learner.incumbent is None) is sorry
    assert (learner.last.verdict.figures["regret_ms"] > 0.0) is sorry
    if sorry:
        assert "the heuristic would have cost" in learner.last.verdict.reason
        fed(learner, traffic, 100)
        assert learner.last.verdict.passed  # and the next model is tried against what ran since


def test_after_a_shift_it_learns_the_new_and_tells_what_it_forgot() -> None:
    learner, traffic = Learner(settings_of()), Traffic(explore=1.0)
    fed(learner, traffic, 400)
    before = learner.last
    traffic.factor = 5.0
    fed(learner, traffic, 500)
    model, after = learner.incumbent, learner.last
    assert before is not None
    assert after is not None
    assert model is not None
    fresh = [replace(x.sample, ttft_ms=x.sample.ttft_ms) for x in Traffic(9, explore=1.0).many(100)]
    predicted = model.predict(stack(fresh, model.classes))[:, 0]
    truth = np.array([5.0 * ttft_of(sample.row, sample.engine_class) for sample in fresh])
    assert np.abs(predicted - truth).mean() < 0.35 * truth.mean()
    assert set(after.forgetting) == {1, 2, 3, 4, 5, 6}
    assert after.forgotten_ms > 0.0  # the world of the first rounds is gone
    assert len(learner.memory.pools.older) <= 100


def test_without_answers_there_is_no_round_and_no_harm() -> None:
    learner = Learner(settings_of())
    for logged in Traffic().many(300):
        unanswered = replace(logged.sample, ttft_ms=float("nan"), waited_ms=100.0)
        learner.add(replace(logged, sample=unanswered))
    assert learner.due()
    assert learner.train(1.0) is None
    assert learner.last is not None
    assert "no answered requests" in learner.last.verdict.reason
    assert not learner.due()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_training_that_comes_to_nothing_is_a_refused_round() -> None:
    learner, traffic = Learner(settings_of()), Traffic()
    fed(learner, traffic, 300)
    incumbent = learner.incumbent
    logged = traffic.one()
    learner.add(replace(logged, sample=replace(logged.sample, row=np.full(3, np.inf))))
    fed(learner, traffic, 99 + 200)  # by then it is not held out any more
    assert learner.last is not None
    assert "the training failed" in learner.last.verdict.reason
    assert learner.incumbent is not None
    assert incumbent is not None


@pytest.mark.parametrize("on", [True, False])
def test_an_open_gate_lets_everything_pass_and_says_what_it_would_have_said(on: bool) -> None:
    learner = Learner(settings_of(gate={"min_effective": 1e6, "on": on}))
    fed(learner, Traffic(), 300)
    assert learner.last is not None
    assert learner.last.verdict.passed is not on
    assert "effective samples of" in learner.last.verdict.reason
