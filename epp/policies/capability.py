"""What the policies share that price a wrong answer: success within bounds, the price of a tried model.

Pure functions over columns. Source [R], sections 5.1 and 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import WeightSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.types import RequestView, Snapshot

#: The paper names a penalty and not its size. With greedy decoding a model that has failed fails again, so
#: that its price must be beyond the ratio of any two costs; one that tries others first and still ranks
#: those that were tried does as well as any larger.
TRIED_PENALTY = WeightSpec(1e6, 1.0, 1e9, "factor on the cost of a model that has been tried")

#: Name of a term that is no part of a cost: 1 where an attempt is worth its time, 0 where it is not.
WORTH_TERM = "worth"

#: No estimate from some hundred answers can tell a model that is never right from one that rarely is.
LEAST_SUCCESS = 0.01


def success_of(fleet: Snapshot, least: float) -> NDArray[np.float64]:
    """The column ``success`` within ``least`` and 1."""
    return np.minimum(np.maximum(fleet.success, least), 1.0)  # `clip` takes three times as long


@dataclass(frozen=True, slots=True)
class Models:
    """Which endpoints serve which model.

    Attributes:
        names: of models, each once.
        place: of each endpoint, where its model is among them.
        order: endpoints, model by model.
        starts: where each model begins in `order`.
    """

    names: tuple[str, ...]
    place: NDArray[np.intp]
    order: NDArray[np.intp]
    starts: NDArray[np.intp]

    def least(self, values: NDArray[np.float64]) -> list[float]:
        """Of values of endpoints, each model's least."""
        found: list[float] = np.minimum.reduceat(values[self.order], self.starts).tolist()
        return found


@lru_cache(maxsize=256)
def models_of(models: tuple[str, ...]) -> Models:
    """The models of these endpoints; there is at least one. Pools rarely change: answers are kept."""
    names, place = np.unique(np.array(models), return_inverse=True)
    order = np.argsort(place, kind="stable")
    return Models(tuple(names.tolist()), place, order, np.searchsorted(place[order], np.arange(len(names))))


def tried_factor(request: RequestView, fleet: Snapshot, penalty: float) -> NDArray[np.float64]:
    """``penalty`` for endpoints of a model that was tried, 1 for the others."""
    if not request.tried_models or not fleet.models:
        return np.ones(len(fleet))
    models = models_of(fleet.models)
    factors = np.array([penalty if name in request.tried_models else 1.0 for name in models.names])
    return factors[models.place]
