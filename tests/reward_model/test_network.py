"""The network: its gradient, its bounds, and that dropout is of the training alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epp.learn.reward_model.network import Mlp, residuals

RANDOM = np.random.default_rng(0)


def loss_of(net: Mlp, x: np.ndarray, targets: np.ndarray, bounds: np.ndarray) -> float:
    return float((residuals(net.forward(x)[0], targets, bounds) ** 2).sum() / len(x))


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
