"""LMETRIC: tokens to prefill times requests, one product instead of a weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from epp.policies.base import Need, Ties, WeightSpec
from epp.policies.parts import Counts, check_counts, request_counts
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class Lmetric:
    """Least product of prefill work and batch.

    ``cost = (pending_uncached_tokens + uncached_tokens) * (requests + 1)``, in token-requests. LMETRIC as a
    baseline of Lodestar's repository; Dynamo offers the same product as an alternative. Nothing to tune. A
    prompt that is wholly cached where nothing is pending costs 0 there, however many requests decode.

    Attributes:
        counts: ``engine`` requests, running and waiting, as of the last scrape, as the original (which
            scrapes every 100 ms), or ``live`` reservations.
    """

    name: ClassVar[str] = "lmetric"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPT})
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType({})
    counts: Counts = "live"

    def __post_init__(self) -> None:
        check_counts(self.counts)

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the fleet holds what its prompt needs
        fleet: FleetView,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The product, with its factors as terms."""
        tokens = fleet.pending_uncached_tokens + fleet.uncached_tokens
        requests = request_counts(fleet, self.counts) + 1.0
        return Ranking(tokens * requests, {"prefill_tokens": tokens, "requests": requests})
