"""What another policy would have cost, from the logged choices of the one that ran.

Owns the two estimators and the effective sample size. Pure.

With costs ``c_i``, logged chances ``mu_i`` of the choices made and chances ``pi_i`` that the policy on trial
would have made them, the weight of a choice is ``rho_i = pi_i / mu_i``.

* SNIPS (Swaminathan and Joachims, NIPS 2015): ``sum(w c) / sum(w)`` with ``w = min(rho, clip)``. What the log
  never tried has no weight at all, so it speaks of the requests on which both policies agree.
* switch-DR (Wang, Agarwal and Dudik, ICML 2017, section 4): the predicted cost of the policy's choices, plus
  the weighted error of the prediction where ``rho`` is at most the clip; choices that would weigh more, and
  those that the log never tried, rest on the prediction alone.

The predictions must not be those of a model that chose, here or in the log: it chooses where it errs low, and
would praise itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """One logged choice beside what the policy on trial would do.

    Attributes:
        cost_ms: what the choice made did cost.
        logged: chance of the choice made, by the log; positive.
        target: chance of each candidate under the policy on trial, ``[candidates]``; sums to 1.
        predicted_ms: cost of each candidate by a judge, ``[candidates]``.
        chosen: index of the choice made.
    """

    cost_ms: float
    logged: float
    target: Floats
    predicted_ms: Floats
    chosen: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the policy on trial would have cost.

    Attributes:
        choices: that were looked at.
        effective: effective sample size of the clipped weights, ``sum(w)^2 / sum(w^2)``.
        logged_ms: mean cost of what ran.
        snips_ms: estimate by SNIPS; NaN where no choice agrees.
        dr_ms: estimate by switch-DR.
        dr_rise_ms: ``dr_ms - logged_ms``, request by request.
        dr_error_ms: standard error of that.
        overlap: mean chance of the policy on trial to do what the log might have done too.
    """

    choices: int
    effective: float
    logged_ms: float
    snips_ms: float
    dr_ms: float
    dr_rise_ms: float
    dr_error_ms: float
    overlap: float


def estimate(choices: Sequence[Choice], *, clip: float) -> Estimate:
    """Both estimates.

    Args:
        choices: at least one.
        clip: largest weight.
    """
    costs = np.array([choice.cost_ms for choice in choices])
    rho = np.array([choice.target[choice.chosen] / choice.logged for choice in choices])
    weights = np.minimum(rho, clip)
    total, squares = float(weights.sum()), float((weights**2).sum())
    direct = np.array([float(choice.target @ choice.predicted_ms) for choice in choices])
    foretold = np.array([choice.predicted_ms[choice.chosen] for choice in choices])
    doubly = direct + np.where(rho <= clip, rho, 0.0) * (costs - foretold)
    rise = doubly - costs
    count = len(choices)
    return Estimate(
        choices=count,
        effective=total * total / squares if squares > 0.0 else 0.0,
        logged_ms=float(costs.mean()),
        snips_ms=float(weights @ costs) / total if total > 0.0 else float("nan"),
        dr_ms=float(doubly.mean()),
        dr_rise_ms=float(rise.mean()),
        dr_error_ms=float(rise.std(ddof=1) / np.sqrt(count)) if count > 1 else float("inf"),
        overlap=float(np.minimum(rho, 1.0).mean()),
    )
