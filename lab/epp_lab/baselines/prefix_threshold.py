"""Longest match above a threshold, fewest requests below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import Counts, match_ratios, places, request_counts

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class PrefixThreshold(Policy):
    """The best match if it covers more than ``threshold`` of the prompt, else fewest requests.

    ``cost`` is the place by match ratio, or by count. Lodestar's Algorithm 2 (its repository's default is
    50 %); Lodestar found the best threshold to be 20 % on one trace and 60 % on another. No load guard: a
    popular prefix has one home. A ratio is blind to size: 30 % of 60k tokens counts less than 90 % of 1k.

    Attributes:
        counts: ``live`` reservations, or the ``engine``'s requests as of the last scrape.
    """

    name = "prefix-threshold"
    needs = frozenset({Need.PROMPT})
    weight_specs = {"threshold": WeightSpec(0.5, 0.0, 1.0)}
    counts: Counts = "live"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        return {
            "match_ratio": match_ratios(request, snapshot),
            "requests": request_counts(snapshot, self.counts),
        }

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        ratios = terms["match_ratio"]
        follow = float(ratios.max()) > weights["threshold"]
        return places(-ratios if follow else terms["requests"])
