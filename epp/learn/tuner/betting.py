"""Evidence about a mean that may be looked at after every observation: tests and bounds by betting.

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


class Bets:
    """Bets on observations in the order in which they came. For rises instead of falls bet on `-bets`.

    Args:
        values: winsorised to ``[-bound, bound]``: the mean spoken of is that of the winsorised values.
        bound: largest size of a value.
    """

    def __init__(self, values: Sequence[float] | Floats, bound: float) -> None:
        self._values: Floats = np.clip(np.asarray(values, dtype=float), -bound, bound)
        self._bound = bound

    def __neg__(self) -> Bets:
        return Bets(-self._values, self._bound)

    def log_wealth(self, mean: float = 0.0) -> Floats:
        """Return logarithm of the wealth after each value, against "the mean is at least ``mean``"."""
        if not len(self._values):
            return np.zeros(1)
        stakes = _STAKES / max(self._bound - mean, 1e-12)
        paths = np.cumsum(np.log1p(np.outer(mean - self._values, stakes)), axis=0)
        top = paths.max(axis=1)
        return np.asarray(top + np.log(np.exp(paths - top[:, None]).mean(axis=1)), dtype=float)

    def log_e(self) -> float:
        """Return logarithm of the e-value against "the mean is at least 0", in favour of a lower one."""
        return float(self.log_wealth()[-1])

    def shows_below(self, mean: float, alpha: float) -> bool:
        """Check whether the mean was at any time shown to be below ``mean``: `upper` in one step."""
        if not len(self._values) or mean <= -self._bound:
            return False
        return mean >= self._bound or float(self.log_wealth(mean).max()) >= -math.log(alpha)

    def upper(self, alpha: float) -> float:
        """Return upper end of a one-sided confidence sequence of the mean, intersected over all times so far.

        With probability ``1 - alpha`` it lies above the mean at all times at once.
        """
        low, high = -self._bound, self._bound
        for _ in range(_HALVINGS):  # the wealth grows with the mean that is doubted
            middle = 0.5 * (low + high)
            if self.shows_below(middle, alpha):
                high = middle
            else:
                low = middle
        return high

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return both ends of confidence sequences, each at ``alpha``."""
        return -(-self).upper(alpha), self.upper(alpha)
