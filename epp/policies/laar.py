"""The time to the first correct answer, in milliseconds: what users feel of an attempt, over its chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from epp.policies.base import WeightSpec
from epp.policies.capability import LEAST_SUCCESS, TRIED_PENALTY, success_of, tried_factor
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.parts import check_number
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class Laar(GorgoMs):
    """``cost = gorgo-ms cost / Q ** success_weight``, times ``tried_penalty`` where the model was tried.

    `GorgoMs` prices an attempt at an endpoint: distance, own prefill less what the cache holds, prefills
    waiting there, the stall of others, own decode, by prefill and decode rates apart. ``Q`` is the chance
    that its model is right (column ``success``), so that 1 / Q attempts like this one are what a correct
    answer costs, to its user and to others. Ordering boxes that may each hold the answer by price over chance
    is also the cheapest order to open them in (Mitten 1960) as long as none is
    opened twice, which is what the penalty sees to.

    Attributes:
        least_success: a lower chance counts as this one.
    """

    name: ClassVar[str] = "laar"
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {
            **GorgoMs.weight_specs,
            # Chosen on six draws of docs/laar.md that are not reported on. A retry meets no conversation that
            # its prefill could be kept for, so that its prefill is worth its own time.
            "prefill_weight": replace(GorgoMs.weight_specs["prefill_weight"], default=1.0),
            "waiting_weight": replace(GorgoMs.weight_specs["waiting_weight"], default=6.0),
            "stall_weight": replace(GorgoMs.weight_specs["stall_weight"], default=1.0),
            "success_weight": WeightSpec(1.0, 0.0, 3.0, "exponent of the chance of a correct answer"),
            "tried_penalty": TRIED_PENALTY,
        }
    )
    least_success: float = LEAST_SUCCESS

    def __post_init__(self) -> None:
        """Refuse parameters that make no cost."""
        GorgoMs.__post_init__(self)
        check_number("least_success", self.least_success, 1e-6, 1.0)

    def rank(
        self, request: RequestView, fleet: FleetView, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        """The attempt's time and its terms, the chance and the penalty."""
        attempt = GorgoMs.rank(self, request, fleet, weights, seed)
        success = success_of(fleet, self.least_success)
        tried = tried_factor(request, fleet, weights["tried_penalty"])
        costs = attempt.costs / success ** weights["success_weight"] * tried
        return Ranking(costs, {**attempt.terms, "success": success, "tried": tried})
