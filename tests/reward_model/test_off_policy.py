"""Both estimators against worlds whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from epp.learn.reward_model.off_policy import Choice, Estimate, estimate

ENDPOINTS = 3


def world(
    seed: int, count: int, *, judge: str, logged_best: float = 0.6
) -> tuple[list[Choice], float, float]:
    """Choices of a log that prefers one endpoint, a policy that prefers the cheapest, and its true cost."""
    random = np.random.default_rng(seed)
    choices, truth, logged = [], 0.0, 0.0
    for _ in range(count):
        mean = random.uniform(50.0, 500.0, ENDPOINTS)
        chances = np.full(ENDPOINTS, (1.0 - logged_best) / (ENDPOINTS - 1))
        chances[0] = logged_best
        chosen = int(random.choice(ENDPOINTS, p=chances))
        target = np.zeros(ENDPOINTS)
        target[int(mean.argmin())] = 1.0
        truth += float(target @ mean) / count
        logged += float(chances @ mean) / count
        predicted = {
            "right": mean,
            "biased": mean + 200.0,
            "blind": np.full(ENDPOINTS, 275.0),
        }[judge]
        cost = float(mean[chosen] + 30.0 * random.standard_normal())
        choices.append(Choice(cost, float(chances[chosen]), target, predicted, chosen))
    return choices, truth, logged


@pytest.mark.parametrize("judge", ["right", "biased", "blind"])
def test_both_find_the_truth_where_the_log_covers_it_whatever_the_judge_says(judge: str) -> None:
    choices, truth, logged = world(1, 6000, judge=judge)
    found = estimate(choices, clip=10.0)
    assert found.snips_ms == pytest.approx(truth, rel=0.05)
    assert found.dr_ms == pytest.approx(truth, rel=0.06)
    assert found.logged_ms == pytest.approx(logged, rel=0.03)
    assert found.dr_rise_ms == pytest.approx(found.dr_ms - found.logged_ms)
    assert found.dr_rise_ms < -5.0 * found.dr_error_ms


def test_what_the_log_never_tried_rests_on_the_judge() -> None:
    choices, truth, _ = world(2, 4000, judge="right", logged_best=1.0)
    found = estimate(choices, clip=10.0)
    assert found.dr_ms == pytest.approx(truth, rel=0.05)
    assert found.overlap == pytest.approx(1.0 / ENDPOINTS, abs=0.03)
    # SNIPS speaks of the third of requests on which both agree: those are the cheap ones of the log.
    assert found.snips_ms == pytest.approx(truth, rel=0.1)


def test_weights_are_clipped_and_switched_off_above_the_clip() -> None:
    rare = Choice(1000.0, 0.001, np.array([1.0, 0.0]), np.array([100.0, 100.0]), 0)
    usual = Choice(100.0, 1.0, np.array([1.0, 0.0]), np.array([100.0, 100.0]), 0)
    found = estimate([rare, *[usual] * 99], clip=5.0)
    assert found.dr_ms == pytest.approx(100.0)  # the rare one's error does not count a thousandfold
    assert found.snips_ms == pytest.approx((5 * 1000.0 + 99 * 100.0) / 104)


@pytest.mark.parametrize(
    ("weights", "effective"),
    [([1.0] * 50, 50.0), ([1.0] * 10 + [0.0] * 40, 10.0), ([0.0] * 5, 0.0), ([4.0] + [1.0] * 4, 64 / 20)],
)
def test_the_effective_sample_size_is_that_of_the_weights(weights: list[float], effective: float) -> None:
    choices = [
        Choice(1.0, 0.25, np.array([weight * 0.25, 1.0 - weight * 0.25]), np.zeros(2), 0)
        for weight in weights
    ]
    found = estimate(choices, clip=5.0)
    assert found.effective == pytest.approx(effective)
    assert np.isnan(found.snips_ms) == (effective == 0.0)


def test_nobody_differs_from_himself() -> None:
    random = np.random.default_rng(3)
    chances = np.array([0.5, 0.3, 0.2])
    choices = []
    for _ in range(500):
        chosen = int(random.choice(3, p=chances))
        choices.append(
            Choice(float(random.exponential(100.0)), chances[chosen], chances, np.zeros(3), chosen)
        )
    found: Estimate = estimate(choices, clip=10.0)
    assert found.effective == pytest.approx(500.0)
    assert found.snips_ms == pytest.approx(found.logged_ms)
    assert found.dr_rise_ms == pytest.approx(0.0, abs=1e-9)
    assert found.overlap == pytest.approx(1.0)
