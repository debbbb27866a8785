"""A mean of logarithms over seeds with its interval, as a factor.

Owns the arithmetic. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last stands for more.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


def factor(logs: Sequence[float]) -> tuple[float, float, float]:
    """Mean factor, and the ends of its 95 % interval over seeds; these are NaN for a single one.

    Args:
        logs: a logarithm of a ratio for each seed.
    """
    if not len(logs):
        return math.nan, math.nan, math.nan
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    quantile = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1]
    half = quantile * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def told(value: tuple[float, float, float]) -> str:
    """As text: ``1.39 [1.21, 1.60]``, or ``1.39`` without an interval."""
    point, low, high = value
    return f"{point:.2f}" if math.isnan(low) else f"{point:.2f} [{low:.2f}, {high:.2f}]"
