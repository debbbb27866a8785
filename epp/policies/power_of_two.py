"""Two random candidates, the less loaded of them: the cheapest cure for herding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Policy
from epp.policies.drawn import Pair
from epp.policies.parts import check_choice, places
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Policy):
    """The less loaded of two endpoints drawn at random (Mitzenmacher, 2001).

    ``cost`` is a place: of the pair drawn first the one with less load is 0 and the other 1 (both 0 when
    equal); the rest follow in the order of their draws, as fallbacks.

    Attributes:
        load: what is compared. ``requests``: unfinished requests, as AIBrix does; ``tokens``: prompt tokens
            of unfinished requests, as SGLang's router does where it knows them. Both are live. The GORGO
            reference compares scraped used tokens plus live queued ones.
    """

    name = "power-of-two"
    load: Literal["requests", "tokens"] = "requests"

    def __post_init__(self) -> None:
        check_choice("load", self.load, ("requests", "tokens"))

    def rank(
        self,
        request: RequestView,
        fleet: Snapshot,
        weights: Mapping[str, float],
        seed: int,
    ) -> Ranking:
        """Places, with the load and the draws as terms."""
        load = fleet.running_requests if self.load == "requests" else fleet.queued_tokens
        key = request.decision_id
        draws = np.fromiter(
            (keyed_uniform(seed, key, f"power-of-two:{endpoint}") for endpoint in fleet.endpoints),
            np.float64,
            len(fleet),
        )
        outside = places(draws) >= 2.0
        costs = places(outside, np.where(outside, draws, load))
        return Ranking(costs, {"load": load, "draw": draws})

    @staticmethod
    def drawn(
        ranking: Ranking,
        weights: Mapping[str, float],
        params: Mapping[str, object],
    ) -> Pair:
        """The two, and what of them is compared."""
        return Pair(ranking.terms["load"])
