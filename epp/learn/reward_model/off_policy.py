"""What another policy would have cost, from the logged choices of the one that ran: switch-DR.

With costs ``c_i``, logged propensities ``mu_i`` of the choices made and chances ``pi_i`` that the policy on
trial would have made them, the weight of a choice is ``rho_i = pi_i / mu_i``. The estimate (Wang, Agarwal
and Dudik, ICML 2017, section 4) is the predicted cost of the policy's choices, plus the weighted error of
the prediction where ``rho`` is at most the clip; choices that would weigh more, and those that the log
never tried, rest on the prediction alone.

The predictions must not be those of a model that chose, here or in the log: it chooses where it errs low, and
would praise itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the policy on trial would have cost.

    Attributes:
        choices: that were looked at.
        effective: effective sample size of the clipped weights, ``sum(w)^2 / sum(w^2)``.
        logged_ms: mean cost of what ran.
        rise_ms: by how much the policy would have cost more.
        error_ms: standard error of that.
    """

    choices: int
    effective: float
    logged_ms: float
    rise_ms: float
    error_ms: float


def estimate(
    costs_ms: Floats, rho: Floats, direct_ms: Floats, predicted_ms: Floats, *, clip: float
) -> Estimate:
    """Estimate over two choices at least.

    Args:
        costs_ms: what the choices made did cost.
        rho: weight of each.
        direct_ms: predicted cost of what the policy on trial would do.
        predicted_ms: predicted cost of the choices made.
        clip: largest weight.
    """
    weights, count = np.minimum(rho, clip), len(costs_ms)
    squares = float((weights**2).sum())
    rise = direct_ms + np.where(rho <= clip, rho, 0.0) * (costs_ms - predicted_ms) - costs_ms
    return Estimate(
        choices=count,
        effective=float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0,
        logged_ms=float(costs_ms.mean()),
        rise_ms=float(rise.mean()),
        error_ms=float(rise.std(ddof=1) / np.sqrt(count)),
    )
