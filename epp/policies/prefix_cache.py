"""AIBrix's prefix-cache: longest match among those not overloaded, unless the fleet is out of balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import Counts, match_ratios, mean_and_deviation, places, request_counts

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class PrefixCache(Policy):
    """Longest match within ``mean + sigmas * standard deviation`` of the request counts.

    1. When the largest and the smallest count differ by more than ``imbalance_requests``: fewest requests.
    2. Else by match descending, then count ascending, the first whose count is within the limit.
    3. Else fewest requests.

    ``cost`` is the place in that order. AIBrix ``prefix-cache`` by its code (8 and 1; its README says 16 and
    2), and Lodestar's Algorithm 1. The standard deviation is the population's. Matches are compared within
    one request, so tokens and percent give the same order. Equals are drawn.

    Attributes:
        counts: ``live`` reservations, or the ``engine``'s running requests as of the last scrape, as the
            GORGO paper ran it: between scrapes neither the imbalance nor the limit moves, and all of a
            prefix goes to its holder. With scrapes 30 s apart that was the paper's worst baseline.
        longest_only: as in the GORGO reference (there with ``sigmas`` 2): only holders of the longest match
            are asked, the least loaded of them first, and when all of them are over the limit the match is
            given up; AIBrix goes on to the next best match.
    """

    name = "prefix-cache"
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        "imbalance_requests": WeightSpec(8.0, 0.0, 1000.0),  # spread at which matches still count
        "sigmas": WeightSpec(1.0, 0.0, 10.0),  # standard deviations above the mean that a holder may be
    }
    counts: Counts = "live"
    longest_only: bool = False

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        counts = request_counts(snapshot, self.counts, waiting=False)
        return {"requests": counts, "match_ratio": match_ratios(request, snapshot)}

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        counts = terms["requests"]
        if float(counts.max() - counts.min()) > weights["imbalance_requests"]:
            return places(counts)
        mean, deviation = mean_and_deviation(counts)
        over = counts > mean + weights["sigmas"] * deviation
        cached = snapshot.cached_tokens
        if self.longest_only:
            longest = float(cached.max())
            return places(~((cached == longest) & (longest > 0.0) & ~over), counts)
        # Those over the limit come last, by count: they are reached only as fallbacks.
        return places(over, np.where(over, 0.0, -cached), counts, -cached)


@dataclass(frozen=True, slots=True)
class PrefixCacheAndLoad(PrefixCache):
    """Lodestar's Algorithm 1, the heuristic that its paper compares with and falls back on.

    The rule is that of `PrefixCache`, under the paper's name; the paper matches by ratio, which within one
    request is the same order. The constants are weights, so that it can be tuned like those that it is
    compared with; the paper gives letters for them, its code 8 and 1. With ``counts: engine`` and scrapes
    100 ms apart it is what the paper ran; live counts are the stronger opponent.
    """

    name = "prefix-cache-and-load"
