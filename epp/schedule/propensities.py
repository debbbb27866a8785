"""The chance that each endpoint had to be chosen, over the draws of a decision.

Two draws count: the policy's own (`epp.policies.base`) and the one among equals (`epp.schedule.select`). Slow
start's admissions are given: who was held back had no chance. Pure, and off the request path: for records and
for those who learn from them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Explored, Pair, Softmax
from epp.schedule.select import tolerance_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.policies.base import Drawn
    from epp.types import Floats


def propensities(
    costs: Floats, *, tolerance: float, slow_start_excluded: Sequence[int] = (), drawn: Drawn | None = None
) -> Floats:
    """Compute the chance of each endpoint to be chosen; they sum to 1.

    Args:
        costs: of each, non-empty.
        tolerance: relative width of the band of equals.
        slow_start_excluded: indices of endpoints that slow start kept out.
        drawn: what the policy drew among; None for a policy that did not, whose costs say it all.
    """
    admitted = np.ones(len(costs))
    admitted[list(slow_start_excluded)] = 0.0
    match drawn:
        case Softmax(before, width):
            least = float(before[admitted > 0.0].min())
            # Where the noise is lost in what counts as rounding, all are equal and the last draw decides.
            if width <= tolerance_limit(least, 0.0) - least:
                return _cheapest(before, admitted, tolerance)
            rates = np.where(admitted > 0.0, (least - before) / width, -np.inf)
            weights = np.array([math.exp(rate) for rate in rates.tolist()])  # as the noise: the same anywhere
            softmax: Floats = weights / weights.sum()
            return softmax
        case Pair(load):
            return _pair(load, admitted)
        case Explored(before, explore):
            # One drawn evenly from all is taken where it is admitted; where not, the cheapest of the others.
            cheapest = _cheapest(before, admitted, tolerance)
            taken = admitted + len(slow_start_excluded) * cheapest
            mixed: Floats = (1.0 - explore) * cheapest + explore / len(cheapest) * taken
            return mixed
    return _cheapest(costs, admitted, tolerance)


def _cheapest(costs: Floats, admitted: Floats, tolerance: float) -> Floats:
    costs = np.where(admitted > 0.0, costs, np.inf)
    tied = (costs <= tolerance_limit(float(costs.min()), tolerance)).astype(np.float64)
    chance: Floats = tied / tied.sum()
    return chance


def _pair(load: Floats, admitted: Floats) -> Floats:
    """Compute chances of the less loaded of two that are drawn evenly from all.

    An admitted endpoint wins against those that have more load or are held back, and every other time against
    equals. Where both drawn are held back, one of the admitted is taken evenly.
    """
    count = len(load)
    if count == 1:
        return np.ones(1)
    order = np.argsort(load, kind="stable")
    ordered, sums = load[order], np.concatenate(([0.0], np.cumsum(admitted[order])))
    below = sums[np.searchsorted(ordered, load, "left")]
    up_to = sums[np.searchsorted(ordered, load, "right")]
    out = count - sums[-1]
    wins = sums[-1] - up_to + (up_to - below - admitted) / 2.0 + out + out * (out - 1.0) / 2.0 / sums[-1]
    chance: Floats = admitted * wins * 2.0 / (count * (count - 1))
    return chance
