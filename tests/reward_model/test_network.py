"""The network: its gradient, its bounds, and that dropout is of the training alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epp.learn.reward_model.network import Adam, Mlp, residuals

RANDOM = np.random.default_rng(0)


def loss_of(net: Mlp, x: np.ndarray, targets: np.ndarray, bounds: np.ndarray) -> float:
    return float((residuals(net.forward(x)[0], targets, bounds) ** 2).sum() / len(x))


@pytest.mark.parametrize("hidden", [(), (5,), (6, 5, 4)])
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


def test_an_output_above_a_lower_bound_is_no_error_and_one_below_it_is() -> None:
    outputs = np.array([[3.0], [1.0], [3.0]], np.float32)
    targets = np.array([[2.0], [2.0], [2.0]], np.float32)
    bounds = np.array([[True], [True], [False]])
    assert residuals(outputs, targets, bounds).ravel().tolist() == [0.0, -1.0, 1.0]


def test_the_last_layer_is_given_activations_after_their_relu() -> None:
    net = Mlp((3, 8, 8, 1), np.random.default_rng(2))
    outputs, hidden = net.forward(RANDOM.standard_normal((50, 3), np.float32))
    assert hidden.shape == (50, 8)
    assert (hidden >= 0.0).all()
    assert (hidden == 0.0).any()
    weights, bias = net.layers[-1]
    assert np.allclose(outputs, hidden @ weights + bias)


def test_dropout_thins_the_training_and_never_a_prediction() -> None:
    net = Mlp((3, 32, 32, 1), np.random.default_rng(3))
    x, targets = RANDOM.standard_normal((64, 3), np.float32), np.ones((64, 1), np.float32)
    bounds = np.zeros(targets.shape, np.bool_)
    found = []
    for seed in (1, 2):
        gradient = np.zeros_like(net.flat)
        net.gradient(x, targets, bounds, net.views(gradient), dropout=0.1, random=np.random.default_rng(seed))
        found.append(gradient)
    assert not np.allclose(found[0], found[1])
    assert np.array_equal(net.forward(x)[0], net.forward(x)[0])


def test_a_wild_gradient_moves_no_more_than_a_long_one() -> None:
    flats = []
    for size in (10.0, 1e6):
        flat = np.zeros(4, np.float32)
        Adam(4, clip=1.0).step(flat, np.full(4, size, np.float32), 0.1)
        flats.append(flat)
    assert np.allclose(flats[0], flats[1])
