"""LMETRIC: tokens to prefill times requests, one product instead of a weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy
from epp.policies.parts import Counts, request_counts

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class Lmetric(Policy):
    """Least product of prefill work and batch.

    ``cost = (pending_uncached_tokens + uncached_tokens) * (requests + 1)``, in token-requests. LMETRIC as a
    baseline of Lodestar's repository; Dynamo offers the same product as an alternative. Nothing to tune. A
    prompt that is wholly cached where nothing is pending costs 0 there, however many requests decode.

    Attributes:
        counts: ``engine`` requests, running and waiting, as of the last scrape, as the original (which
            scrapes every 100 ms), or ``live`` reservations.
    """

    name = "lmetric"
    unit = "token-requests"
    needs = frozenset({Need.PROMPT})
    counts: Counts = "live"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        return {
            "prefill_tokens": snapshot.pending_uncached_tokens + snapshot.uncached_tokens,
            "requests": request_counts(snapshot, self.counts) + 1.0,
        }

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        return terms["prefill_tokens"] * terms["requests"]
