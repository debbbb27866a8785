"""The baseline that every load balancer has: fewest unfinished requests."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from epp.policies.base import Need, Ties, WeightSpec
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class LeastRequest:
    """Fewest unfinished requests, by the picker's own count or by the engine's, whichever is larger.

    ``cost = max(running_requests, engine_running + engine_waiting)``, in requests.

    The own count is live but knows only this picker's traffic; the engine's knows all traffic but is as old
    as the last scrape. GORGO's baseline of this name takes the larger of its own count and the scraped
    running requests; requests that wait inside the engine are unfinished too and are counted here. An
    endpoint whose engine metrics are unknown stands with the busiest known one: not knowing never makes it
    look idle. Where no engine reports, the own count decides alone. Ties are drawn.
    """

    name: ClassVar[str] = "least-request"
    # Engine metrics sharpen the count and are not needed for it.
    needs: ClassVar[frozenset[Need]] = frozenset()
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType({})

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the count is the same for every request
        fleet: FleetView,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The larger count, with both as terms."""
        engine = fleet.engine_running + fleet.engine_waiting
        costs = np.maximum(fleet.running_requests, engine)
        return Ranking(costs, {"running_requests": fleet.running_requests, "engine_requests": engine})
