"""Least load in tokens, as the GORGO reference sums it: with its live counter, and from scrapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms
    from epp.types import RequestView, Snapshot

_REQUESTS = WeightSpec(1.0, 0.0, 10_000.0, "load of one request that the engine reports")
_USED = WeightSpec(1.0, 0.0, 5.0, "load of one token of the KV cache in use")
_QUEUED = WeightSpec(1.0, 0.0, 5.0, "load of one prompt token of unfinished requests")


@dataclass(frozen=True, slots=True)
class LeastLoad(Policy):
    """Least of requests, KV tokens in use and queued prompt tokens, added up.

    ``cost = request_weight * (engine_running + engine_waiting) + used_weight * engine_used_tokens
    + queued_weight * queued_tokens``, in tokens.

    The formula of the GORGO reference (its baseline ``least-load``), all weights 1: requests and tokens are
    added as if they were the same thing, so tokens decide and the requests' term is noise. The last term is
    live, the others are as old as the scrape. With ``queued_weight`` alone it is "least queued tokens".
    """

    name = "least-load"
    # Without engine metrics the live term decides alone.
    weight_specs = MappingProxyType(
        {"request_weight": _REQUESTS, "used_weight": _USED, "queued_weight": _QUEUED}
    )

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        requests = weights["request_weight"] * (fleet.engine_running + fleet.engine_waiting)
        return {
            "requests": requests,
            "used": weights["used_weight"] * fleet.engine_used_tokens,
            "queued": weights["queued_weight"] * fleet.queued_tokens,
        }


@dataclass(frozen=True, slots=True)
class LeastLoadStale(Policy):
    """`LeastLoad` without its live term: what scraped metrics alone can tell.

    ``cost = request_weight * (engine_running + engine_waiting) + used_weight * engine_used_tokens``. Herds
    between scrapes, like `LeastRequestStale`.
    """

    name = "least-load-stale"
    needs = frozenset({Need.ENGINE_METRICS})
    weight_specs = MappingProxyType({"request_weight": _REQUESTS, "used_weight": _USED})

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        requests = weights["request_weight"] * (fleet.engine_running + fleet.engine_waiting)
        return {"requests": requests, "used": weights["used_weight"] * fleet.engine_used_tokens}
