"""The one definition of a percentile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def percentile(values: Sequence[float] | NDArray[np.float64], q: float) -> float:
    """Return the q-th percentile (0..100), NaN when there are no values.

    Linear between order statistics: position (n - 1) q / 100 of the sorted values (Hyndman-Fan type 7).
    """
    if len(values) == 0:
        return float("nan")
    return float(np.percentile(np.asarray(values, dtype=float), q))
