"""Lodestar as its paper writes it: the best prediction, hashed homes, one fallback for a whole request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Share  # noqa: TC001  # read to check parameters
from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.types import Ranking

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.policies.reward_model import RewardModel
    from epp.types import Flags, Floats, RequestInfo, Snapshot

_FOREIGN = float(FALLBACKS.index("out-of-distribution"))


@dataclass(frozen=True, slots=True)
class LodestarPaper(Lodestar):
    """Rank by the predicted TTFT alone; source [L], Algorithm 4.

    1. No model, or one of fewer than `min_samples` requests: Algorithm 1 decides.
    2. Any input of any endpoint beyond the least or the largest of the training: Algorithm 1 decides for all.
    3. With chance `explore` any endpoint. The paper gives no value; its published script has 0.
    4. Else the lowest prediction of all. While the caches are full and one holds more than `worth_tokens` of
       the prompt, that of the `k` endpoints that the prefix's hash names, whatever their load is and whoever
       else holds the prefix.

    Its margin for equals, ``(1 - delta) * best`` of negative rewards, admits no second endpoint, so there is
    none. How it learns, without price and gate, is `epp_lab.compare.learned.PUBLISHED`. An endpoint of which
    something is not known counts as in `Lodestar`; the paper does not say.
    """

    name = "lodestar-paper"
    explore: Share = 0.0
    near_best: Share = 0.0

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Predictions, or the heuristic's places for all; terms are those of `Lodestar`."""
        model, _ = self.usable(weights)
        if model is None or not _beyond(model, model.inputs(request, snapshot)):
            return Lodestar.rank(self, request, snapshot, weights, seed)
        ranking = replace(self, model=None).rank(request, snapshot, weights, seed)
        return Ranking(ranking.costs, {**ranking.terms, "fallback": np.full(len(snapshot), _FOREIGN)})

    def _homes(self, place: Floats, snapshot: Snapshot) -> Flags:
        return place < self.k


def _beyond(model: RewardModel, x: Floats) -> bool:
    """Check whether any input is beyond the training's extremes, without the margin, or any class is new."""
    outside = (x < model.low) | (x > model.high)
    return bool(outside.any() or model.out_of_distribution(x).any())
