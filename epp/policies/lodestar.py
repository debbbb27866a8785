"""Lodestar: predict what the request would feel at every endpoint, take the best; else a heuristic.

Source [L], Algorithm 4, with the defects of its public code put right. `epp.policies.reward_model` predicts
and knows the bounds of what it was trained on; here is what is done with predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Meta

from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Count, Explored, Need, NotNegative, Policy, PositiveCount, Share, WeightSpec
from epp.policies.prefix_cache import PrefixCacheAndLoad
from epp.policies.reward_model import FILLED_COLUMNS, RewardModel
from epp.policies.session_affinity import session_places
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Weights
    from epp.types import Flags, Floats, RequestInfo, Slots, Snapshot


#: Rows added to a batch, at most, for endpoints of which something is not known.
_MOST_GUESSES = 256
_NOBODY = np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One value per endpoint.

    Attributes:
        predicted_ms: what is predicted, also where it does not count.
        congestion_ms: what the request takes from others there; None where the model has no price.
        inside: endpoints of which the prediction counts.
        foreign: endpoints unlike the training's, all of whose inputs are known: others are for the heuristic.
        terms: predictions, for people and records.
        outsiders: whether there is anybody whose prediction does not count.
    """

    predicted_ms: Floats
    congestion_ms: Floats | None
    inside: Flags
    foreign: Flags
    terms: Mapping[str, Floats]
    outsiders: bool


def predict(
    model: RewardModel,
    request: RequestInfo,
    snapshot: Snapshot,
    *,
    rows: Slots | None = None,
    felt: bool = False,
) -> Prediction:
    """Predict for all endpoints in one batch, or for some of a large pool.

    An endpoint with an input that is not known counts as the worst that it would be with the values of any
    endpoint that has them: silence is no advantage, and no more of a disadvantage than that.

    Args:
        model: predicts.
        request: the request.
        snapshot: the endpoints.
        rows: those to predict for, None for all.
        felt: predict the expected answer as well, at the predicted ITL.
    """
    x = model.inputs(request, snapshot)
    count, asked = len(x), x if rows is None else x[rows]
    owners, guesses = _guesses(model, snapshot, x, rows)
    if len(owners):
        asked = np.concatenate((asked, guesses))
    price = model.congestion(x)
    heads, foreign = model.judge(asked)
    made = heads[:, 0] + heads[:, 1] * request.expected_output_tokens if felt else heads[:, 0]
    if rows is None and not len(owners):
        terms = _terms(made, price, heads, felt=felt)
        return Prediction(made, price, ~foreign, foreign, terms, outsiders=bool(foreign.any()))
    given = count if rows is None else len(rows)
    where = slice(0, count) if rows is None else rows
    # Who was not asked stands at the mean, for people; its prediction does not count.
    all_heads = np.empty((count, heads.shape[1]))
    all_heads[:] = heads[:given].mean(axis=0)
    predicted = np.full(count, made[:given].mean())
    inside, outside = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    all_heads[where], predicted[where] = heads[:given], made[:given]
    outside[where] = foreign[:given]
    inside[where] = ~foreign[:given]
    if len(owners):
        np.maximum.at(predicted, owners, made[given:])
        inside[owners[foreign[given:]]] = False
        outside[owners] = False  # silence does not make a stranger
    terms = _terms(predicted, price, all_heads, felt=felt)
    return Prediction(predicted, price, inside, outside, terms, outsiders=not inside.all())


def _terms(
    predicted: Floats,
    price: Floats | None,
    heads: Floats,
    *,
    felt: bool,
) -> Mapping[str, Floats]:
    terms = {"predicted_ms": predicted}
    if price is not None:
        terms["congestion_ms"] = price
    return {**terms, "ttft_ms": heads[:, 0], "itl_ms": heads[:, 1]} if felt else terms


def _guesses(model: RewardModel, snapshot: Snapshot, x: Floats, rows: Slots | None) -> tuple[Slots, Floats]:
    """For endpoints that lack an input that others have: their row with the values of others in it."""
    if not snapshot.unknown:
        return _NOBODY, x[:0]
    lacking = np.zeros((len(x), len(model.features)), np.bool_)
    for column, feature in enumerate(model.features):
        mask = snapshot.unknown.get(FILLED_COLUMNS.get(feature, ""))
        if mask is not None and not mask.all():
            lacking[:, column] = mask
    silent = lacking.any(axis=1)
    donors = np.flatnonzero(~silent)
    if rows is not None:
        only = np.zeros(len(x), np.bool_)
        only[rows] = True
        silent &= only
    owners = np.flatnonzero(silent)
    if not len(owners) or not len(donors):
        return _NOBODY, x[:0]
    each = min(len(donors), max(_MOST_GUESSES // len(owners), 1))
    donors = donors[np.linspace(0, len(donors) - 1, each).astype(np.intp)]
    made = np.repeat(x[owners], each, axis=0)
    replaced = np.repeat(lacking[owners], each, axis=0)
    taken = np.tile(x[donors], (len(owners), 1))
    count = len(model.features)
    made[:, :count][replaced] = taken[:, :count][replaced]
    return np.repeat(owners, each), made


_HEURISTIC = PrefixCacheAndLoad()

#: Why an endpoint is ranked by the heuristic; the term ``fallback`` holds the place in this list.
FALLBACKS = (
    "",
    "no-model",  # cold start: nothing was trained, or the file is gone
    "few-samples",  # trained, on fewer requests than are wanted
    "stale",  # older than allowed
    "mismatch",  # its normalisation is of other data, or it lacks what the reward needs
    "switched-off",  # by the weight `use_model`
    "out-of-distribution",  # this endpoint is unlike anything that the model was trained on
    "not-drawn",  # a large pool: the model was not asked about this endpoint
)
_CODE = {reason: float(code) for code, reason in enumerate(FALLBACKS)}
#: Chance of a random choice where nothing else is configured.
_EXPLORE = 0.02
#: By how much a choice's cost is below all others, so that nothing but slow start comes before it.
_AHEAD_MS = 1.0


@dataclass(frozen=True, slots=True)
class Lodestar(Policy):
    """``cost = predicted latency + what the request takes from others``, in ms, learned from its own traffic.

    1. No model that can be used: `PrefixCacheAndLoad` ranks (its place is the cost), and ``fallback`` says
       why.
    2. One batch predicts for all endpoints (for `candidates` drawn ones and the heuristic's own in a larger
       pool). To each prediction comes what the request's uncached tokens take from those behind it there, at
       the model's price: the paper takes the best for this request alone, and in a full pool its copies of
       prefixes cost all others more than they gain it. A model without a price decides as the paper does.
    3. An endpoint beyond the bounds of the training is not the model's to judge. It is chosen exactly when
       the heuristic would choose it of all; else it stands behind those that were judged, in the heuristic's
       order. Where nobody is within the bounds, this is the heuristic.
    4. When the KV caches are full on average and a cache holds something worth keeping, only those are asked
       that hold it, and the first `k` endpoints of the prefix's own order that have room: consistent hashing
       with bounded load (`SessionAffinityBounded`), so that a pool that grows moves few prefixes. The paper
       asks the hashed ones alone: where a burst fills the caches, that makes every prefix move, and all of
       them at once.
    5. Endpoints within `near_best` of the best are drawn among: ``cost <= best + near_best * |best|``.
    6. With chance `explore` the choice is drawn evenly from all endpoints instead. This floor holds in the
       fallback as well: every endpoint's chance is known and never 0.

    Latencies are predicted, and a reward is a latency's negative: the paper's own margin on rewards,
    ``(1 - delta) * best``, can never be met by a second endpoint.

    Terms: ``predicted_ms``; ``congestion_ms`` where there is a price; ``ttft_ms`` and ``itl_ms`` where the
    prediction is made of both; ``probability``, the chance before slow start that an endpoint is chosen, over
    the draws of exploration and of equals; ``explored``, 1 for a choice by exploration, and then
    ``before_exploring``, the costs without it; ``fallback``, as `FALLBACKS`.

    Attributes:
        model: the model in force, None before there is one; not for configuration, which names a file.
        withdrawn: why the model may not be used though there is one: ``stale`` or ``mismatch``.
        reward: ``ttft``, or ``felt``: TTFT and the expected answer at the predicted ITL.
        explore: chance of a random choice, over all endpoints.
        near_best: share of the best prediction within which predictions count as equal.
        min_samples: requests that a model's learner must have seen.
        candidates: endpoints that are predicted for in a larger pool.
        k: endpoints that a prefix may be copied to while the caches are full; 0 for all.
        kv_saturated: mean use of the KV caches from which on they count as full.
        worth_tokens: cached tokens of the prompt that are worth keeping; who lacks no more than these of the
            longest match holds it, too.
        load_factor: most load of an endpoint of these k, as a multiple of the mean.
    """

    name = "lodestar"
    unit = "ms"
    needs = frozenset({Need.PROMPT, Need.ENGINE_METRICS})
    weight_specs = {
        **_HEURISTIC.weight_specs,
        "use_model": WeightSpec(1.0, 0.0, 1.0),  # below 0.5 the heuristic decides
    }
    model: RewardModel | None = None
    withdrawn: Literal["", "stale", "mismatch"] = ""
    reward: Literal["ttft", "felt"] = "ttft"
    explore: Share = _EXPLORE
    near_best: Share = 0.01
    min_samples: Count = 5000
    candidates: PositiveCount = 256
    k: Count = 2
    kv_saturated: Share = 0.8
    worth_tokens: NotNegative = 100.0
    load_factor: Annotated[float, Meta(ge=1.0)] = 1.25

    def __post_init__(self) -> None:
        """Refuse the name of a file as a model."""
        if not isinstance(self.model, RewardModel | None):
            raise ValueError("model is read from a file: name it in policy.model_file")  # noqa: TRY004  # of a file

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Predicted milliseconds, or the heuristic's places; predictions, chances and reasons as terms."""
        model, reason = self.usable(weights)
        ranked = partial(_HEURISTIC.rank, request, snapshot, weights, seed)
        if model is None:
            costs = ranked().costs
            fallback = np.full(len(snapshot), _CODE[reason])
            return self._drawn(request, snapshot, seed, costs, {"fallback": fallback})
        heuristic: Floats | None = None
        rows = None
        if len(snapshot) > self.candidates:
            heuristic = ranked().costs
            rows = _some(request, len(snapshot), self.candidates, heuristic, seed)
        judged = predict(model, request, snapshot, rows=rows, felt=self.reward == "felt")
        if judged.outsiders:
            if heuristic is None:
                heuristic = ranked().costs
            if not judged.inside.any():
                terms = {**judged.terms, "fallback": _reasons(judged)}
                return self._drawn(request, snapshot, seed, heuristic, terms)
        costs = self._costs(request, snapshot, judged, heuristic)
        return self._drawn(request, snapshot, seed, costs, {**judged.terms, "fallback": _reasons(judged)})

    def usable(self, weights: Weights) -> tuple[RewardModel | None, str]:
        """Return the model that decides under these weights, or None and a word of `FALLBACKS`."""
        model = self.model
        if weights["use_model"] < 0.5:
            return None, "switched-off"
        if model is None:
            return None, self.withdrawn or "no-model"
        if model.seen < self.min_samples:
            return None, "few-samples"
        if self.reward == "felt" and len(model.heads) < 2:
            return None, "mismatch"
        return (None, self.withdrawn) if self.withdrawn else (model, "")

    def _costs(
        self,
        request: RequestInfo,
        snapshot: Snapshot,
        judged: Prediction,
        heuristic: Floats | None,
    ) -> Floats:
        """Costs before exploration; all that are chosen alike have the lowest."""
        costs, inside = judged.predicted_ms.copy(), judged.inside
        if judged.congestion_ms is not None:
            costs += judged.congestion_ms
        asked, kept = inside, self._kept(request, snapshot)
        if kept is not None and (kept & inside).any():
            asked = kept & inside
            costs[~kept] += float(np.ptp(costs[inside])) + _AHEAD_MS
        best = float(costs.min() if heuristic is None and kept is None else costs[asked].min())
        costs[asked & (costs <= best + self.near_best * abs(best))] = best
        if heuristic is not None:
            outside = ~inside
            costs[outside] = float(costs[inside].max()) + _AHEAD_MS * (1.0 + heuristic[outside])
            first = heuristic == heuristic.min()
            if not (first & ~judged.foreign).any():
                costs[first] = best - _AHEAD_MS
        return costs

    def _kept(self, request: RequestInfo, snapshot: Snapshot) -> Flags | None:
        """The endpoints that hold the prompt's prefix, or may be given a copy; None for all."""
        count = len(snapshot)
        if not self.k or count <= self.k or not request.prefix_key:
            return None
        usage = snapshot.engine_kv_usage
        if float(usage.max()) <= self.kv_saturated or math.fsum(usage) / count <= self.kv_saturated:
            return None  # the largest is no mean, and decides most requests sooner
        if float(snapshot.cached_tokens.max()) <= self.worth_tokens:
            return None
        return self._homes(session_places(request.prefix_key, snapshot.endpoints), snapshot)

    def _homes(self, place: Floats, snapshot: Snapshot) -> Flags:
        """Mark who holds the prefix, and the first `k` places with room; ``place`` is changed."""
        count, load, cached = len(snapshot), snapshot.running_requests, snapshot.cached_tokens
        bound = math.ceil(self.load_factor * (math.fsum(load) + 1.0) / count)
        place[load + 1.0 > bound] += count
        kept: Flags = place <= np.partition(place, self.k - 1)[self.k - 1]
        kept |= cached >= float(cached.max()) - self.worth_tokens  # who holds it makes no copy
        return kept

    def _drawn(
        self,
        request: RequestInfo,
        snapshot: Snapshot,
        seed: int,
        costs: Floats,
        terms: dict[str, Floats],
    ) -> Ranking:
        """The floor of chance under every endpoint, and what came of it."""
        count = len(snapshot)
        first = costs == costs.min()
        probability = first * ((1.0 - self.explore) / np.count_nonzero(first)) + self.explore / count
        explored = np.zeros(count)
        if self.explore and keyed_uniform(seed, request.decision_id, "lodestar:explore") < self.explore:
            names = sorted(range(count), key=snapshot.endpoints.__getitem__)
            pick = names[int(keyed_uniform(seed, request.decision_id, "lodestar:which") * count)]
            terms = {**terms, "before_exploring": costs.copy()}
            costs[pick] = costs.min() - _AHEAD_MS
            explored[pick] = 1.0
        return Ranking(costs, {**terms, "probability": probability, "explored": explored})

    @staticmethod
    def drawn(
        ranking: Ranking,
        weights: Weights,
        params: Mapping[str, object],
    ) -> Explored | None:
        """The costs before exploration; in a large pool, given whom the model was asked about."""
        explore = params.get("explore", _EXPLORE)
        if not isinstance(explore, int | float) or not explore:
            return None
        return Explored(ranking.terms.get("before_exploring", ranking.costs), float(explore))


def _reasons(judged: Prediction) -> Floats:
    codes = np.zeros(len(judged.inside))
    if judged.outsiders:
        codes[~judged.inside] = _CODE["not-drawn"]
        codes[judged.foreign] = _CODE["out-of-distribution"]
    return codes


def _some(request: RequestInfo, count: int, wanted: int, heuristic: Floats, seed: int) -> Slots:
    """Rows of the endpoints to be predicted for: evenly drawn ones, and the heuristic's own.

    Steps of a drawn length from a drawn start, so that two draws do for any number.
    """
    start = int(keyed_uniform(seed, request.decision_id, "lodestar:start") * count)
    step = 1 + int(keyed_uniform(seed, request.decision_id, "lodestar:step") * (count - 1))
    while math.gcd(step, count) > 1:
        step += 1
    taken = np.zeros(count, np.bool_)
    taken[(start + step * np.arange(wanted)) % count] = True
    taken[int(heuristic.argmin())] = True
    return np.flatnonzero(taken)
