"""The off-policy estimate against a world whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from epp.learn.reward_model.gate import estimate

ENDPOINTS, COUNT = 3, 6000


@pytest.mark.parametrize("judge", ["right", "biased", "blind"])
def test_it_finds_the_truth_where_the_log_covers_it_whatever_the_judge_says(judge: str) -> None:
    """The log prefers one endpoint, the policy takes the cheapest."""
    random, rows = np.arange(COUNT), np.random.default_rng(1)
    means = rows.uniform(50.0, 500.0, (COUNT, ENDPOINTS))
    propensities = np.array([0.6, 0.2, 0.2])
    chosen = rows.choice(ENDPOINTS, p=propensities, size=COUNT)
    best = means.argmin(axis=1)
    predicted = {"right": means, "biased": means + 200.0, "blind": np.full(means.shape, 275.0)}[judge]
    costs = means[random, chosen] + 30.0 * rows.standard_normal(COUNT)
    rho = (chosen == best) / propensities[chosen]
    found = estimate(costs, rho, predicted[random, best], predicted[random, chosen], clip=10.0)
    assert found.logged_ms == pytest.approx(float((means @ propensities).mean()), rel=0.03)
    assert found.logged_ms + found.rise_ms == pytest.approx(float(means.min(axis=1).mean()), rel=0.06)
    assert found.rise_ms < -5.0 * found.error_ms
    assert 0.1 * COUNT < found.effective < COUNT


def test_a_weight_above_the_clip_rests_on_the_prediction() -> None:
    costs, rho = np.array([1000.0, *[100.0] * 99]), np.array([1000.0, *[1.0] * 99])
    predicted = np.full(100, 100.0)
    found = estimate(costs, rho, predicted, predicted, clip=5.0)
    assert found.logged_ms + found.rise_ms == pytest.approx(100.0)
