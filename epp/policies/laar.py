"""The time to the first correct answer, in milliseconds: this attempt's, and the price of its being wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import WeightSpec
from epp.policies.capability import (
    LEAST_SUCCESS,
    TRIED_PENALTY,
    WORTH_TERM,
    models_of,
    success_of,
    tried_factor,
)
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.parts import check_number
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from epp.policies.capability import Models
    from epp.types import RequestView, Snapshot


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

    name = "laar"
    weight_specs = MappingProxyType(
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
    urgency_power: float = 0.0  # what a right answer takes is a time, whoever asks
    least_success: float = LEAST_SUCCESS
    patience_s: float = 20.0
    reach: float = 0.85

    def __post_init__(self) -> None:
        """Refuse parameters that make no cost."""
        GorgoMs.__post_init__(self)
        check_number("least_success", self.least_success, 1e-6, 1.0)
        check_number("patience_s", self.patience_s, 0.0)
        check_number("reach", self.reach, 0.0, 1.0)

    def rank(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int) -> Ranking:
        """The attempt's terms, the price of another one, the penalty, and what is worth another one."""
        attempt = GorgoMs.rank(self, request, fleet, weights, seed)
        terms = attempt.terms
        success = success_of(fleet, self.least_success)
        per_answer = (terms["network"] + terms["prefill"] + terms["decode"]) / success
        models = models_of(fleet.models or ("",) * len(fleet))
        least_ms = models.least(per_answer)
        again = weights["retry_weight"] * _least_untried(request, models.names, least_ms)
        retry = (1.0 - success) * again
        tried = tried_factor(request, fleet, weights["tried_penalty"])
        worth = self._worth(request, models, success, per_answer, least_ms)
        extra = {"retry": retry, "tried": tried, WORTH_TERM: worth}
        return Ranking((attempt.costs + retry) * tried, {**terms, **extra})

    def _worth(
        self,
        request: RequestView,
        models: Models,
        success: NDArray[np.float64],
        per_answer_ms: NDArray[np.float64],
        least_ms: list[float],
    ) -> NDArray[np.float64]:
        quick = per_answer_ms <= self.patience_s * 1e3
        if not self.patience_s or quick.all():
            return np.ones(len(quick))
        chances = success[models.order[models.starts]].tolist()
        wanted = self._wanted(request, models.names, chances, least_ms)
        worth: NDArray[np.float64] = np.logical_or(quick, np.array(wanted)[models.place]).astype(np.float64)
        return worth

    def _wanted(
        self, request: RequestView, names: tuple[str, ...], chances: list[float], least_ms: list[float]
    ) -> list[bool]:
        """Of each model, whether it takes it to have ``reach`` of the chance that any is right."""
        enough = self.reach * (1.0 - math.prod(1.0 - chance for chance in chances))
        wrong_so_far, untried = 1.0, []
        for at, name in enumerate(names):
            if name in request.tried_models:
                wrong_so_far *= 1.0 - chances[at]
            elif name:
                untried.append(at)
        wanted = [False] * len(names)
        for at in sorted(untried, key=least_ms.__getitem__):
            if 1.0 - wrong_so_far >= enough:
                break
            wanted[at] = True
            wrong_so_far *= 1.0 - chances[at]
        return wanted


def _least_untried(request: RequestView, names: tuple[str, ...], least_ms: list[float]) -> float:
    """The least of models that were not tried; of all where none is left."""
    if request.tried_models:
        tried = request.tried_models
        untried = [least for least, name in zip(least_ms, names, strict=True) if name not in tried]
        if untried:
            return min(untried)
    return min(least_ms)
