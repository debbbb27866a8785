"""The time to the first correct answer, in milliseconds: this attempt's, and the price of its being wrong."""

from __future__ import annotations

import math
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

    The term ``worth`` is no part of the cost: clients are not told of a model as left to try where it is 0.
    It is 1 where ``own / Q``, what a right answer takes, is within ``patience_s``; of the others, by rising
    ``own / Q``, until those tried and those before have ``reach`` of the chance that any model is right.
    By a time alone, questions that no model is likely to answer would be given up after the first.

    Attributes:
        least_success: a lower chance counts as this one.
        patience_s: own time over chance within which a retry is always worth it; 0: every retry is.
        reach: share of the chance of all models together that is asked for, however long it takes.
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
    patience_s: float = 20.0
    reach: float = 0.85

    def __post_init__(self) -> None:
        """Refuse parameters that make no cost."""
        GorgoMs.__post_init__(self)
        check_number("least_success", self.least_success, 1e-6, 1.0)
        check_number("patience_s", self.patience_s, 0.0)
        check_number("reach", self.reach, 0.0, 1.0)

    def rank(
        self, request: RequestView, fleet: FleetView, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        """The attempt's terms, the price of another one, the penalty, and what is worth another one."""
        attempt = GorgoMs.rank(self, request, fleet, weights, seed)
        terms = attempt.terms
        success = success_of(fleet, self.least_success)
        per_answer = (terms["network"] + terms["prefill"] + terms["decode"]) / success
        # Few values from here on: plain numbers are quicker than columns.
        prices_ms = per_answer.tolist()
        again = weights["retry_weight"] * _least_untried(request, fleet.models, prices_ms)
        retry = (1.0 - success) * again
        tried = tried_factor(request, fleet, weights["tried_penalty"])
        worth = self._worth(request, fleet.models, success, prices_ms)
        extra = {"retry": retry, "tried": tried, WORTH_TERM: worth}
        return Ranking((attempt.costs + retry) * tried, {**terms, **extra})

    def _worth(
        self,
        request: RequestView,
        models: tuple[str, ...],
        success: NDArray[np.float64],
        prices_ms: list[float],
    ) -> NDArray[np.float64]:
        limit_ms = self.patience_s * 1e3
        if not limit_ms or max(prices_ms) <= limit_ms:
            return np.ones(len(prices_ms))
        names = models or ("",) * len(prices_ms)
        wanted = self._wanted(request, models, success.tolist(), prices_ms)
        return np.array(
            [float(price <= limit_ms or name in wanted) for price, name in zip(prices_ms, names, strict=True)]
        )

    def _wanted(
        self,
        request: RequestView,
        models: tuple[str, ...],
        success: list[float],
        prices_ms: list[float],
    ) -> set[str]:
        """The untried models that it takes to have ``reach`` of the chance that any is right."""
        chances = dict(zip(models, success, strict=False))  # no names where all use the public one
        wrong_so_far = math.prod(1.0 - chances.get(name, 0.0) for name in request.tried_models)
        enough = self.reach * (1.0 - math.prod(1.0 - chance for chance in chances.values()))
        least: dict[str, float] = {}
        for name, price in zip(models, prices_ms, strict=False):
            if price < least.get(name, math.inf):
                least[name] = price
        wanted: set[str] = set()
        for name in sorted(least.keys() - set(request.tried_models), key=lambda name: (least[name], name)):
            if 1.0 - wrong_so_far >= enough:
                break
            wanted.add(name)
            wrong_so_far *= 1.0 - chances[name]
        return wanted


def _least_untried(request: RequestView, models: tuple[str, ...], prices_ms: list[float]) -> float:
    """The least of endpoints whose model was not tried; of all where none is left."""
    if request.tried_models and models:
        tried = request.tried_models
        prices = [price for price, model in zip(prices_ms, models, strict=True) if model not in tried]
        if prices:
            return min(prices)
    return min(prices_ms)
