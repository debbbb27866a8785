"""SGLang's cache_aware: shortest queue when out of balance, else the matched worker, else least loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import match_ratios, places

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class SglangCacheAware(Policy):
    """The ``cache_aware`` policy of SGLang's router and of its successor smg.

    With ``load = running_requests`` (the router's own count of requests in flight, live):

    1. ``max(load) - min(load) > balance_abs`` and ``max(load) > balance_rel * min(load)``: least load.
    2. Else the best match ratio is above ``cache_threshold``: the best match.
    3. Else least load (older releases: the smallest tree).

    ``cost`` is the place in that order. Defaults are those of its command line (0.3, 64, 1.5); its library
    defaults differ (0.5, 32, 1.1) and can be set as weights. The original matches characters in a tree of
    its own, bounded by an eviction thread; here the shared prefix index matches tokens. Where several
    workers match alike the original takes whichever its tree names; here they are drawn.
    """

    name = "sglang-cache-aware"
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        "cache_threshold": WeightSpec(0.3, 0.0, 1.0),  # match ratio above which the match is followed
        "balance_abs": WeightSpec(64.0, 0.0, 1000.0),  # spread of loads, in requests, called imbalance
        "balance_rel": WeightSpec(1.5, 1.0, 100.0),  # ratio of loads that imbalance needs as well
    }

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        return {"load": snapshot.running_requests, "match_ratio": match_ratios(request, snapshot)}

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        load, ratios = terms["load"], terms["match_ratio"]
        most, least = float(load.max()), float(load.min())
        imbalanced = most - least > weights["balance_abs"] and most > weights["balance_rel"] * least
        follow = not imbalanced and float(ratios.max()) > weights["cache_threshold"]
        return places(-ratios if follow else load)
