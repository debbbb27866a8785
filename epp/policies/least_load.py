"""Least load in tokens, as the GORGO reference sums it: with its live counter, and from scrapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from epp.policies.base import Need, Ties, WeightSpec
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView

_REQUESTS = WeightSpec(1.0, 0.0, 10_000.0, "load of one request that the engine reports")
_USED = WeightSpec(1.0, 0.0, 5.0, "load of one token of the KV cache in use")
_QUEUED = WeightSpec(1.0, 0.0, 5.0, "load of one prompt token of unfinished requests")


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Least of requests, KV tokens in use and queued prompt tokens, added up.

    ``cost = request_weight * (engine_running + engine_waiting) + used_weight * engine_used_tokens
    + queued_weight * queued_tokens``, in tokens.

    The formula of the GORGO reference (its baseline ``least-load``), all weights 1: requests and tokens are
    added as if they were the same thing, so tokens decide and the requests' term is noise. The last term is
    live, the others are as old as the scrape. With ``queued_weight`` alone it is "least queued tokens".
    """

    name: ClassVar[str] = "least-load"
    # Without engine metrics the live term decides alone.
    needs: ClassVar[frozenset[Need]] = frozenset()
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ("requests", "used", "queued")
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {"request_weight": _REQUESTS, "used_weight": _USED, "queued_weight": _QUEUED}
    )

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the load is the same for every request
        fleet: FleetView,
        weights: Mapping[str, float],
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The sum, with its three terms."""
        requests = weights["request_weight"] * (fleet.engine_running + fleet.engine_waiting)
        used = weights["used_weight"] * fleet.engine_used_tokens
        queued = weights["queued_weight"] * fleet.queued_tokens
        return Ranking(requests + used + queued, {"requests": requests, "used": used, "queued": queued})


@dataclass(frozen=True, slots=True)
class LeastLoadStale:
    """`LeastLoad` without its live term: what scraped metrics alone can tell.

    ``cost = request_weight * (engine_running + engine_waiting) + used_weight * engine_used_tokens``. Herds
    between scrapes, like `LeastRequestStale`.
    """

    name: ClassVar[str] = "least-load-stale"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENGINE_METRICS})
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ("requests", "used")
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {"request_weight": _REQUESTS, "used_weight": _USED}
    )

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the load is the same for every request
        fleet: FleetView,
        weights: Mapping[str, float],
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The sum, with its two terms."""
        requests = weights["request_weight"] * (fleet.engine_running + fleet.engine_waiting)
        used = weights["used_weight"] * fleet.engine_used_tokens
        return Ranking(requests + used, {"requests": requests, "used": used})
