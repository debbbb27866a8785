"""The control: a uniform choice that knows nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Policy
from epp.policies.drawn import Softmax
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class Random(Policy):
    """Uniform over the endpoints, fallbacks included.

    ``cost = keyed_uniform(seed, decision_id, endpoint)``, a number in [0, 1): independent of the order of the
    endpoints, and the same decision draws the same order again when replayed.
    """

    name = "random"

    def rank(
        self,
        request: RequestView,
        fleet: Snapshot,
        weights: Mapping[str, float],
        seed: int,
    ) -> Ranking:
        """One keyed draw per endpoint."""
        key = request.decision_id
        draws = np.fromiter(
            (keyed_uniform(seed, key, f"random:{endpoint}") for endpoint in fleet.endpoints),
            np.float64,
            len(fleet),
        )
        return Ranking(draws, {"draw": draws})

    @staticmethod
    def drawn(
        ranking: Ranking,
        weights: Mapping[str, float],
        params: Mapping[str, object],
    ) -> Softmax:
        """One among equals."""
        return Softmax(np.zeros(len(ranking.costs)), 1.0)
