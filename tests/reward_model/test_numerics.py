"""The learner's numerics: the network's gradient, the choice of what is kept, the estimate off policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp_lab.reward_model.fitting import farthest_first
from epp_lab.reward_model.gate import estimate
from epp_lab.reward_model.network import Mlp, residuals

RANDOM = np.random.default_rng(0)


def loss_of(net: Mlp, x: np.ndarray, targets: np.ndarray, bounds: np.ndarray) -> float:
    for weights, bias in net.layers[:-1]:
        x = np.maximum(x @ weights + bias, 0.0)
    weights, bias = net.layers[-1]
    return float((residuals(x @ weights + bias, targets, bounds) ** 2).sum() / len(x))


@pytest.mark.parametrize("hidden", [(), (6, 5, 4)])
def test_the_gradient_is_that_of_the_squared_error(hidden: tuple[int, ...]) -> None:
    net = Mlp((3, *hidden, 2), np.random.default_rng(1))
    exact: Any = net.flat.astype(np.float64)
    net.flat = exact  # so that differences are exact
    net.layers = net.views(net.flat)
    x: Any = RANDOM.standard_normal((20, 3))
    targets: Any = RANDOM.standard_normal((20, 2))
    targets[0, 1] = targets[3, 0] = np.nan
    bounds = np.zeros(targets.shape, np.bool_)
    bounds[5:9, 0] = True
    gradient: Any = np.zeros_like(net.flat)
    net.gradient(x, targets, bounds, net.views(gradient), dropout=0.0, random=RANDOM)
    wide = 1e-6
    for at in range(0, len(gradient), 3):
        kept = net.flat[at]
        net.flat[at] = kept + wide
        above = loss_of(net, x, targets, bounds)
        net.flat[at] = kept - wide
        below = loss_of(net, x, targets, bounds)
        net.flat[at] = kept
        assert gradient[at] == pytest.approx((above - below) / (2 * wide), abs=1e-6, rel=1e-4)


def by_definition(vectors: np.ndarray, count: int) -> list[int]:
    norms = np.linalg.norm(vectors, axis=1)
    units = vectors / norms[:, None]
    chosen = [int(norms.argmax())]
    while len(chosen) < count:
        distance = 1.0 - (units @ units[chosen].T).max(axis=1)
        distance[chosen] = -np.inf
        chosen.append(int(distance.argmax()))
    return chosen


@settings(max_examples=30)
@given(rows=st.integers(2, 60), width=st.integers(2, 6), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_farthest_first_is_greedy_k_centre_under_cosine_distance(
    rows: int, width: int, seed: int, data: st.DataObject
) -> None:
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    count = data.draw(st.integers(1, rows - 1))
    chosen = farthest_first(vectors, count)
    assert len(set(chosen.tolist())) == count
    wanted = by_definition(vectors.astype(np.float64), count)
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]

    def reach(picked: list[int]) -> float:
        """How far the farthest row is from its nearest chosen one."""
        return float((1.0 - (units @ units[picked].T).max(axis=1)).max())

    assert chosen[0] == wanted[0]
    assert abs(reach(chosen.tolist()) - reach(wanted)) < 1e-3


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
