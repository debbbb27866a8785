"""Which old samples are kept: those whose gradients point in the most different directions.

Owns the choice alone. Source [L], section 4.3.2, after Tiwari et al., "GCR: Gradient coreset based replay
buffer selection for continual learning" (CVPR 2022). Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Chosen rows are taken out of the columns after so many choices: a copy now and then for less to multiply.
_SHRINK_EVERY = 256


def gradients(hidden: NDArray[np.float32], residual: NDArray[np.float32]) -> NDArray[np.float32]:
    """Gradient of each row's error by the last layer's weights, up to a factor.

    Args:
        hidden: what the last layer is given, after the ReLU, ``[rows, width]``.
        residual: prediction less target with its sign, ``[rows]``: the sign is part of the direction.
    """
    return np.asarray(hidden * residual[:, None], np.float32)


def farthest_first(vectors: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Indices of ``count`` rows, greedily k-centre under cosine distance, in the order of their choice.

    Begins with the longest row; then, each time, the row whose nearest chosen one is farthest. Rows without
    a direction (no error) come last, in their order. O(rows x count x width).

    Args:
        vectors: ``[rows, width]``.
        count: how many; all rows where there are fewer.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    directed = np.flatnonzero(norms > 0.0)
    silent = np.flatnonzero(norms <= 0.0)
    if count >= len(vectors):
        order = directed[np.argsort(-norms[directed], kind="stable")]
        return np.concatenate([order, silent])
    chosen = (
        _greedy(vectors[directed] / norms[directed, None], int(np.argmax(norms[directed])), count)
        if (count and len(directed))
        else np.empty(0, np.intp)
    )
    picked = directed[chosen]
    return np.concatenate([picked, silent[: count - len(picked)]])


def _greedy(units: NDArray[np.float32], first: int, count: int) -> NDArray[np.intp]:
    names = np.arange(len(units))
    nearest = np.full(len(units), -2.0, np.float32)  # cosine to the nearest chosen row; lower is farther
    chosen: list[int] = []
    at = first
    wanted = min(count, len(units))
    while True:
        chosen.append(int(names[at]))
        if len(chosen) == wanted:
            return np.array(chosen, np.intp)
        np.maximum(nearest, units @ units[at], out=nearest)
        nearest[at] = np.inf
        if len(chosen) % _SHRINK_EVERY == 0:
            left = np.isfinite(nearest)
            units, names, nearest = units[left], names[left], nearest[left]
        at = int(np.argmin(nearest))
