"""What a reward model says of each endpoint, and of which it may say anything.

Owns the two cases in which a prediction is not simply taken: an endpoint unlike the training's, and one of
which something is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.reward_model import FILLED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.reward_model import RewardModel
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
    fleet: Snapshot,
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
        fleet: the endpoints.
        rows: those to predict for, None for all.
        felt: predict the expected answer as well, at the predicted ITL.
    """
    x = model.inputs(request, fleet)
    count, asked = len(x), x if rows is None else x[rows]
    owners, guesses = _guesses(model, fleet, x, rows)
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


def _guesses(model: RewardModel, fleet: Snapshot, x: Floats, rows: Slots | None) -> tuple[Slots, Floats]:
    """For endpoints that lack an input that others have: their row with the values of others in it."""
    if not fleet.unknown:
        return _NOBODY, x[:0]
    lacking = np.zeros((len(x), len(model.features)), np.bool_)
    for column, feature in enumerate(model.features):
        mask = fleet.unknown.get(FILLED_COLUMNS.get(feature, ""))
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
