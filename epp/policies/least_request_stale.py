"""Fewest requests by the engines' own last word: what a balancer without counters of its own sees."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from epp.policies.base import Need, Ties, WeightSpec
from epp.policies.parts import check_flag, request_counts
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class LeastRequestStale:
    """Fewest requests by scraped metrics alone.

    ``cost = engine_running + engine_waiting``, in requests, as old as the scrape.

    Between two scrapes the answer does not move, so every request of the interval goes to the same endpoint
    (or to the same few, when they tie): the herding that the live counter of `LeastRequest` prevents. The
    GORGO reference balances like this wherever its prefix-cache policy falls back.

    Attributes:
        count_waiting: whether the engine's queue counts; the reference counts running requests only.
    """

    name: ClassVar[str] = "least-request-stale"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENGINE_METRICS})
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType({})
    count_waiting: bool = True

    def __post_init__(self) -> None:
        check_flag("count_waiting", self.count_waiting)

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the count is the same for every request
        fleet: FleetView,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The engine's count."""
        costs = request_counts(fleet, "engine", waiting=self.count_waiting)
        return Ranking(costs, {"engine_requests": costs})
