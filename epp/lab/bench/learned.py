"""What a learned decision costs: filter, look up, predict for every endpoint, draw, reserve.

CPU time of this thread, as in `epp.lab.bench.core`, whose decisions these are but for the policy. The network
has
the paper's size and random weights: what it predicts does not matter to its cost. Prompts have 1k tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.bench.core import batch, decision_us
from epp.lab.bench.rig import Rig
from epp.policies.gorgo import Gorgo
from epp.policies.lodestar import Lodestar
from epp.policies.reward_model import DEFAULT_FEATURES, HEADS, RewardModel

if TYPE_CHECKING:
    from epp.lab.bench.figures import Figures
    from epp.policies.base import Policy

ENDPOINTS = (16, 256)
_WIDTH, _REQUESTS = 128, 120
#: Bounds that every input of a bench is within.
_WIDE = 1e9


def model(bound: float = _WIDE) -> RewardModel:
    """A network of the paper's size.

    Args:
        bound: inputs beyond it are unlike the training's.
    """
    random = np.random.default_rng(1)
    width = len(DEFAULT_FEATURES) + 1
    sizes = (width, _WIDTH, _WIDTH, _WIDTH, len(HEADS))
    return RewardModel(
        features=DEFAULT_FEATURES,
        classes=("",),
        mean=np.zeros(width),
        std=np.ones(width),
        low=np.full(width, -bound),
        high=np.full(width, bound),
        layers=tuple(
            (
                (random.standard_normal((before, after)) / before**0.5).astype(np.float32),
                np.zeros(after, np.float32),
            )
            for before, after in pairwise(sizes)
        ),
        heads=HEADS,
        scale=np.ones(len(HEADS)),
        offset=np.zeros(len(HEADS)),
        samples=10_000,
        seen=10_000,
        round=1,
        trained_at_s=0.0,
        tail=0.001,
        congestion_ms=0.1,
    )


def measure(figures: Figures, number: int) -> None:
    """One round: with the model, without one (its heuristic), where it knows nobody; and a plain formula."""
    policies: dict[str, Policy] = {
        "": Lodestar(model()),
        ": no model": Lodestar(),
        ": all strangers": Lodestar(model(1e-3)),
        ": gorgo instead": Gorgo(),
    }
    for size in ENDPOINTS:
        given = batch(1_000, _REQUESTS, number + 1)
        for name, policy in policies.items():
            rig = Rig(size, policy=policy.name)
            rig.picker.replace_policy(policy)
            for body in given.earlier:
                rig.cache(body)
            _, decide_us = decision_us(rig, given.requests)
            figures.add(f"learned/{size}{name}", "ms", decide_us / 1e3)
