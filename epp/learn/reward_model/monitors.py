"""What is watched from round to round: whether predictions mean what they say, and whether old ones still do.

Owns no judgement; figures for people and for the gate. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.learn.reward_model.fitting import inputs_for, targets_of
from epp.learn.reward_model.network import residuals
from epp.learn.reward_model.samples import Sample  # noqa: TC001  # msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp.policies.reward_model import RewardModel

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests of similar predictions.

    Attributes:
        predicted_ms: mean prediction.
        seen_ms: mean of what came.
        count: requests.
    """

    predicted_ms: float
    seen_ms: float
    count: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """Samples that a round left behind.

    Attributes:
        round: which.
        samples: drawn from what that round was trained on.
        error_ms: mean absolute error of that round's model on them.
    """

    round: int
    samples: tuple[Sample, ...]
    error_ms: float


def errors_ms(model: RewardModel, samples: Sequence[Sample], failed_quantile: float) -> Floats:
    """Absolute error of the predicted TTFT of each sample; 0 where a bound is respected."""
    predicted = model.predict(inputs_for(model, samples))[:, :1]
    return errors_of(predicted[:, 0], samples, failed_quantile)


def errors_of(predicted_ms: Floats, samples: Sequence[Sample], failed_quantile: float) -> Floats:
    """The same of predictions that are at hand."""
    targets = targets_of(samples, ("ttft_ms",), failed_quantile)
    predicted = np.asarray(predicted_ms, np.float32)[:, None]
    found = residuals(predicted, targets.values.astype(np.float32), targets.bounds)
    return np.abs(found[:, 0]).astype(np.float64)


def calibration(predicted_ms: Floats, samples: Sequence[Sample], bins: int) -> tuple[Bin, ...]:
    """Predictions in bins of equal size beside what came; answered requests alone."""
    seen = np.array([sample.ttft_ms for sample in samples])
    known = ~np.isnan(seen)
    predicted, seen = predicted_ms[known], seen[known]
    order = np.argsort(predicted, kind="stable")
    return tuple(
        Bin(float(predicted[part].mean()), float(seen[part].mean()), len(part))
        for part in np.array_split(order, bins)
        if len(part)
    )


def calibration_error_ms(bins: Sequence[Bin]) -> float:
    """Mean distance of predicted from seen over the bins, each by its requests; NaN without any."""
    count = sum(part.count for part in bins)
    if not count:
        return float("nan")
    return sum(part.count * abs(part.predicted_ms - part.seen_ms) for part in bins) / count


def freeze(
    model: RewardModel, samples: Sequence[Sample], count: int, *, seed: int, failed_quantile: float
) -> Frozen:
    """Samples of a round for later ones to be tried on."""
    random = np.random.default_rng((seed, model.round))
    picked = random.choice(len(samples), size=min(count, len(samples)), replace=False)
    kept = tuple(samples[index] for index in np.sort(picked))
    return Frozen(model.round, kept, float(errors_ms(model, kept, failed_quantile).mean()))


def forgetting(model: RewardModel, frozen: Sequence[Frozen], failed_quantile: float) -> dict[int, float]:
    """Mean absolute error on each past round's samples, by round; more than then is forgotten."""
    return {left.round: float(errors_ms(model, left.samples, failed_quantile).mean()) for left in frozen}
