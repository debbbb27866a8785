"""Reward models for tests: tiny networks whose predictions can be told by hand, and random ones of full size."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.policies.reward_model import DEFAULT_FEATURES, RewardModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Far beyond what any fleet of a test has.
WIDE = 1e9


def linear_model(
    weights: Mapping[str, float],
    *,
    low: Mapping[str, float] | None = None,
    high: Mapping[str, float] | None = None,
    classes: Mapping[str, float] | None = None,
    itl_weights: Mapping[str, float] | None = None,
    **fields: Any,
) -> RewardModel:
    """A model without a hidden layer: TTFT is the sum of features times weights, in milliseconds.

    Args:
        weights: milliseconds per unit of each feature; they are the model's features.
        low: bounds of features, `-WIDE` for those left out.
        high: likewise.
        classes: milliseconds of each engine class.
        itl_weights: a second head, by the same features.
        fields: other attributes of the model.
    """
    low, high, classes = low or {}, high or {}, classes or {}
    names = (*weights, *classes)
    columns = [[*weights.values(), *classes.values()]]
    if itl_weights is not None:
        columns.append([itl_weights.get(name, 0.0) for name in names])
    told: dict[str, Any] = {
        "features": tuple(weights),
        "classes": tuple(classes),
        "mean": np.zeros(len(names)),
        "std": np.ones(len(names)),
        "low": np.array([low.get(name, -WIDE) for name in weights] + [0.0] * len(classes)),
        "high": np.array([high.get(name, WIDE) for name in weights] + [1.0] * len(classes)),
        "layers": ((np.array(columns, np.float32).T.copy(), np.zeros(len(columns), np.float32)),),
        "heads": ("ttft_ms", "itl_ms")[: len(columns)],
        "scale": np.ones(len(columns)),
        "offset": np.zeros(len(columns)),
        "samples": 10_000,
        "seen": 20_000,
        "round": 3,
        "trained_at_s": 1_800_000_000.0,
        "tail": 0.001,
    }
    return RewardModel(**{**told, **fields})


def random_model(seed: int = 0, *, classes: Sequence[str] = (), width: int = 128) -> RewardModel:
    """A model of the paper's size with random weights and wide bounds; both heads."""
    random = np.random.default_rng(seed)
    inputs = len(DEFAULT_FEATURES) + len(classes)
    sizes = (inputs, width, width, width, 2)
    layers = tuple(
        (
            (random.standard_normal((before, after)) / before**0.5).astype(np.float32),
            np.full(after, 0.01, np.float32),
        )
        for before, after in pairwise(sizes)
    )
    return linear_model(
        dict.fromkeys(DEFAULT_FEATURES, 0.0),
        classes=dict.fromkeys(classes, 0.0),
        itl_weights={},
        mean=random.random(inputs),
        std=random.random(inputs) + 100.0,
        layers=layers,
        scale=np.array([200.0, 5.0]),
        offset=np.array([500.0, 20.0]),
    )
