"""Evidence about a mean that may be looked at after every observation: tests and bounds by betting.

Owns the e-value against "the mean is at least m", and the confidence sequence that follows from it. Pure.

A gambler who doubts that the mean is at least ``m`` stakes a part of his wealth on each observation falling
below it. If the doubt is wrong his wealth is a nonnegative supermartingale, so it ever reaches ``1 / alpha``
with probability at most ``alpha`` (Ville), however often one looks and whenever one stops. The part staked is
not chosen: the wealth is the mean over a grid of stakes, which nears that of the best of them (Waudby-Smith
and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86(1), 2024: diversified Kelly
bets). Observations need not be independent; their mean, given the past, must be what is claimed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Stakes as parts of the largest that cannot ruin; evenly spread over the orders of magnitude of effects.
_STAKES: Floats = np.geomspace(0.004, 0.96, 20)
_HALVINGS = 24


def clip(values: Sequence[float], bound: float) -> Floats:
    """Values winsorised to ``[-bound, bound]``."""
    return np.asarray(np.clip(np.asarray(values, dtype=float), -bound, bound), dtype=float)


def _log_wealth(values: Floats, mean: float, bound: float) -> Floats:
    """Logarithm of the wealth after each value, against "the mean is at least ``mean``"."""
    stakes = _STAKES / max(bound - mean, 1e-12)
    paths = np.cumsum(np.log1p(np.outer(mean - values, stakes)), axis=0)
    top = paths.max(axis=1)
    return np.asarray(top + np.log(np.exp(paths - top[:, None]).mean(axis=1)), dtype=float)


def log_e_below(values: Sequence[float], *, mean: float = 0.0, bound: float = 1.0) -> float:
    """Logarithm of the e-value against "the mean is at least ``mean``", in favour of a lower one.

    Args:
        values: in the order in which they came; winsorised to ``[-bound, bound]`` first, so that the mean
            spoken of is that of the winsorised values.
        mean: within ``(-bound, bound)``.
        bound: largest size of a value.
    """
    return float(_log_wealth(clip(values, bound), mean, bound)[-1]) if len(values) else 0.0


def log_e_above(values: Sequence[float], *, mean: float = 0.0, bound: float = 1.0) -> float:
    """The mirror image: against "the mean is at most ``mean``"."""
    return log_e_below([-value for value in values], mean=-mean, bound=bound)


def shown_below(values: Sequence[float], mean: float, *, alpha: float, bound: float = 1.0) -> bool:
    """Whether the mean was at any time shown to be below ``mean``: `upper_bound` in one step."""
    clipped = clip(values, bound)
    if not len(clipped) or mean <= -bound:
        return False
    return mean >= bound or float(_log_wealth(clipped, mean, bound).max()) >= -math.log(alpha)


def shown_above(values: Sequence[float], mean: float, *, alpha: float, bound: float = 1.0) -> bool:
    """Whether it was shown to be above."""
    return shown_below([-value for value in values], -mean, alpha=alpha, bound=bound)


def upper_bound(values: Sequence[float], *, alpha: float, bound: float = 1.0) -> float:
    """Upper end of a one-sided confidence sequence of the mean, intersected over all times so far.

    With probability ``1 - alpha`` it lies above the mean of the winsorised values at all times at once.
    """
    clipped = clip(values, bound)
    if not len(clipped):
        return bound
    need = -math.log(alpha)
    low, high = -bound, bound
    for _ in range(_HALVINGS):  # the wealth grows with the mean that is doubted
        middle = 0.5 * (low + high)
        if float(_log_wealth(clipped, middle, bound).max()) >= need:
            high = middle
        else:
            low = middle
    return high


def lower_bound(values: Sequence[float], *, alpha: float, bound: float = 1.0) -> float:
    """Lower end, likewise."""
    return -upper_bound([-value for value in values], alpha=alpha, bound=bound)


def interval(values: Sequence[float], *, alpha: float, bound: float = 1.0) -> tuple[float, float]:
    """A two-sided confidence sequence: both ends at half of ``alpha``."""
    return (
        lower_bound(values, alpha=alpha / 2.0, bound=bound),
        upper_bound(values, alpha=alpha / 2.0, bound=bound),
    )
