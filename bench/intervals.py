"""A mean of logarithms over seeds with its interval, as a factor.

Owns the arithmetic. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Two-sided 95 % of Student's t by degrees of freedom, up to 19; more take the last.
_STUDENT = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23,
    2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
)  # fmt: skip


def quantile(freedom: int) -> float:
    """By how many standard errors an interval of 95 % reaches to either side."""
    return _STUDENT[min(freedom, len(_STUDENT)) - 1]


def factor(logs: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean factor, and the ends of its 95 % interval over seeds; these are NaN for a single one.

    Args:
        logs: a logarithm of a ratio for each seed.
    """
    if not len(logs):
        return math.nan, math.nan, math.nan
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    half = quantile(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def told(value: tuple[float, float, float]) -> str:
    """As text: ``1.39 [1.21, 1.60]``, or ``1.39`` without an interval."""
    point, low, high = value
    return f"{point:.2f}" if math.isnan(low) else f"{point:.2f} [{low:.2f}, {high:.2f}]"
