"""The time to the first correct answer, in milliseconds: this attempt's, and the price of its being wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from epp.policies.base import WeightSpec
from epp.policies.capability import LEAST_SUCCESS, TRIED_PENALTY, WORTH_TERM, success_of, tried_factor
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.parts import check_number
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class Laar(GorgoMs):
    """``cost = waiting + stall + own + (1 - Q) * retry_weight * R``, times ``tried_penalty`` if it was tried.

    ``waiting``, ``stall`` and ``own`` are the terms of `GorgoMs`: what waits there, what others wait for this
    one, and network, prefill less what the cache holds, and decode, by prefill and decode rates apart. ``Q``
    is the chance that the endpoint's model is right (column ``success``), ``R = min(own / Q)`` over models
    that have not been tried: what a right answer takes, at best, from whoever has to ask again. Ordering
    boxes that may each hold the answer by price over chance is the cheapest order to open them in (Mitten
    1960).

    Waiting is no part of that quotient: the queues of other endpoints get shorter while this one works, so
    that who fails here does not wait for them anew. Divided by the chance, as in `LaarPaper`, waiting at
    endpoints with small chances counts many times, and they idle while the best model's queue grows.

    The term ``worth`` is no part of the cost. It is 1 where ``own / Q`` is within ``patience_s``, else 0:
    clients are not told of a model as left to try that would take longer than that for a right answer.

    Attributes:
        least_success: a lower chance counts as this one.
        patience_s: own time over chance beyond which a retry is not worth it; 0 for no end.
    """

    name: ClassVar[str] = "laar"
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {
            **GorgoMs.weight_specs,
            # A retry meets no conversation that its prefill could be kept for, so that a prefill is worth its
            # own time. Chosen on draws of docs/laar.md that are not reported on.
            "prefill_weight": replace(GorgoMs.weight_specs["prefill_weight"], default=1.0),
            "waiting_weight": replace(GorgoMs.weight_specs["waiting_weight"], default=6.0),
            "stall_weight": replace(GorgoMs.weight_specs["stall_weight"], default=1.0),
            "retry_weight": WeightSpec(2.0, 0.0, 8.0, "price of a millisecond of asking again"),
            "tried_penalty": TRIED_PENALTY,
        }
    )
    least_success: float = LEAST_SUCCESS
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse parameters that make no cost."""
        GorgoMs.__post_init__(self)
        check_number("least_success", self.least_success, 1e-6, 1.0)
        check_number("patience_s", self.patience_s, 0.0)

    def rank(
        self, request: RequestView, fleet: FleetView, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        """The attempt's terms, the price of another one, the penalty, and what is worth another one."""
        attempt = GorgoMs.rank(self, request, fleet, weights, seed)
        terms = attempt.terms
        success = success_of(fleet, self.least_success)
        per_answer = (terms["network"] + terms["prefill"] + terms["decode"]) / success
        tried = tried_factor(request, fleet, weights["tried_penalty"])
        again = weights["retry_weight"] * _least_untried(request, per_answer, tried)
        retry = (1.0 - success) * again
        extra = {"retry": retry, "tried": tried, WORTH_TERM: self._worth(per_answer)}
        return Ranking((attempt.costs + retry) * tried, {**terms, **extra})

    def _worth(self, per_answer_ms: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self.patience_s:
            return np.ones(len(per_answer_ms))
        return (per_answer_ms <= self.patience_s * 1e3).astype(np.float64)


def _least_untried(
    request: RequestView, per_answer_ms: NDArray[np.float64], tried: NDArray[np.float64]
) -> float:
    """The least of endpoints whose model was not tried; of all where none is left."""
    if request.tried_models:
        untried = per_answer_ms[tried == 1.0]
        if len(untried):
            per_answer_ms = untried
    return float(np.minimum.reduce(per_answer_ms))
