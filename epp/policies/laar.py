"""The time to the first correct answer, in milliseconds: this attempt's, and the price of its being wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import WORTH_TERM, NotNegative, PositiveShare, Share, WeightSpec
from epp.policies.gorgo_ms import GorgoMs
from epp.types import Ranking

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.types import Floats, RequestInfo, Slots, Snapshot


#: The paper names a penalty and not its size. With greedy decoding a model that has failed fails again, so
#: that its price must be beyond the ratio of any two costs; one that tries others first and still ranks
#: those that were tried does as well as any larger. This is the factor on the cost of a model that was.
TRIED_PENALTY = WeightSpec(1e6, 1.0, 1e9)

#: No estimate from some hundred answers can tell a model that is never right from one that rarely is.
LEAST_SUCCESS = 0.01


def success_of(snapshot: Snapshot, least: float) -> Floats:
    """Return the column ``success`` within ``least`` and 1."""
    return np.minimum(np.maximum(snapshot.success, least), 1.0)  # `clip` takes three times as long


@dataclass(frozen=True, slots=True)
class Models:
    """Which endpoints serve which model.

    Attributes:
        names: of models, each once.
        place: of each endpoint, where its model is among them.
        order: endpoints, model by model.
        starts: where each model begins in `order`.
    """

    names: tuple[str, ...]
    place: Slots
    order: Slots
    starts: Slots

    def least(self, values: Floats) -> list[float]:
        """Return each model's least of values of endpoints."""
        found: list[float] = np.minimum.reduceat(values[self.order], self.starts).tolist()
        return found


@lru_cache(maxsize=256)
def models_of(models: tuple[str, ...]) -> Models:
    """Group endpoints by model; kept, because pools rarely change."""
    names, place = np.unique(np.array(models), return_inverse=True)
    order = np.argsort(place, kind="stable")
    return Models(tuple(names.tolist()), place, order, np.searchsorted(place[order], np.arange(len(names))))


def tried_factor(request: RequestInfo, snapshot: Snapshot, penalty: float) -> Floats:
    """``penalty`` for endpoints of a model that was tried, 1 for the others."""
    if not request.tried_models or not snapshot.models:
        return np.ones(len(snapshot))
    models = models_of(snapshot.models)
    factors = np.array([penalty if name in request.tried_models else 1.0 for name in models.names])
    return factors[models.place]


@dataclass(frozen=True, slots=True)
class Laar(GorgoMs):
    """``cost = waiting + stall + own + (1 - Q) * retry_weight * R``, times ``tried_penalty`` if it was tried.

    ``waiting``, ``stall`` and ``own`` are the terms of `GorgoMs`: what waits there, what others wait for this
    one, and network, prefill less what the cache holds, transfer between a pair, and decode, by rates apart.
    ``Q`` is the chance that the endpoint's model is right (column ``success``), ``R = min(own / Q)`` over
    models that have not been tried: what a right answer takes, at best, from whoever has to ask again.
    Ordering boxes that may each hold the answer by price over chance is the cheapest order to open them in
    (Mitten 1960).

    Waiting is no part of that quotient: the queues of other endpoints get shorter while this one works, so
    that who fails here does not wait for them anew. Divided by the chance, as in `LaarPaper`, waiting at
    endpoints with small chances counts many times, and they idle while the best model's queue grows.

    The term ``worth`` is no part of the cost: where it is 0, clients do not read of a model as left to try.
    It is 1 where ``own / Q``, what a right answer takes, is within ``patience_s``; of the others, by rising
    ``own / Q``, until those tried and those before have ``reach`` of the chance that any model is right.
    By a time alone, questions that no model is likely to answer would be given up after the first.

    Attributes:
        least_success: a lower chance counts as this one.
        patience_s: own time over chance within which a retry is always worth it; 0: every retry is.
        reach: share of the chance of all models together that is asked for, however long it takes.
    """

    name = "laar"
    unit = "ms, weighted"
    weight_specs = {
        **GorgoMs.weight_specs,
        # A retry meets no conversation that its prefill could be kept for, so that a prefill is worth its
        # own time.
        "prefill_weight": GorgoMs.weight_specs["prefill_weight"]._replace(default=1.0),
        "waiting_weight": GorgoMs.weight_specs["waiting_weight"]._replace(default=6.0),
        "stall_weight": GorgoMs.weight_specs["stall_weight"]._replace(default=1.0),
        "retry_weight": WeightSpec(2.0, 0.0, 8.0),  # price of a millisecond of asking again
        "tried_penalty": TRIED_PENALTY,
    }
    urgency_power: NotNegative = 0.0  # what a right answer takes is a time, whoever asks
    least_success: PositiveShare = LEAST_SUCCESS
    patience_s: NotNegative = 20.0
    reach: Share = 0.85

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Price the attempt, another one, the penalty, and what is worth another one."""
        attempt = GorgoMs.rank(self, request, snapshot, weights, seed)
        terms = attempt.terms
        success = success_of(snapshot, self.least_success)
        own = terms["network"] + terms["prefill"] + terms["decode"] + terms.get("transfer", 0.0)
        per_answer = own / success
        models = models_of(snapshot.models or ("",) * len(snapshot))
        least_ms = models.least(per_answer)
        again = weights["retry_weight"] * _least_untried(request, models.names, least_ms)
        retry = (1.0 - success) * again
        tried = tried_factor(request, snapshot, weights["tried_penalty"])
        worth = self._worth(request, models, success, per_answer, least_ms)
        extra = {"retry": retry, "tried": tried, WORTH_TERM: worth}
        return Ranking((attempt.costs + retry) * tried, {**terms, **extra}, partners=attempt.partners)

    def _worth(
        self,
        request: RequestInfo,
        models: Models,
        success: Floats,
        per_answer_ms: Floats,
        least_ms: list[float],
    ) -> Floats:
        quick = per_answer_ms <= self.patience_s * 1e3
        if not self.patience_s or quick.all():
            return np.ones(len(quick))
        chances = success[models.order[models.starts]].tolist()
        wanted = self._wanted(request, models.names, chances, least_ms)
        worth: Floats = np.logical_or(quick, np.array(wanted)[models.place]).astype(np.float64)
        return worth

    def _wanted(
        self, request: RequestInfo, names: tuple[str, ...], chances: list[float], least_ms: list[float]
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


def _least_untried(request: RequestInfo, names: tuple[str, ...], least_ms: list[float]) -> float:
    """The least of models that were not tried; of all where none is left."""
    if request.tried_models:
        tried = request.tried_models
        untried = [least for least, name in zip(least_ms, names, strict=True) if name not in tried]
        if untried:
            return min(untried)
    return min(least_ms)
