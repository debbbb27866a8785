"""A search of ours that lost to `cmaes`, kept for the comparison.

A quadratic is fitted to all measurements so far, near and good ones counting more; the next measurement is
where it is lowest within a step of the best.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.tuner.scale import from_unit, to_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Largest step, in parts of the whole (logarithmic) range of a weight.
MAX_STEP = 0.25
_MIN_STEP = 0.05
_SHRINK = 0.985
_TRIALS = 160
_RIDGE = 0.02
_EXPLORE_EVERY = 3
_REMEASURE_EVERY = 8
_TINY = 2.0**-54
_NORMAL = NormalDist()


class SurfaceSearch:
    """Minimises a noisy cost over weights.

    Args:
        start: where to begin: the incumbent. Weights without bounds here stay out.
        bounds: ``(low, high)`` of each weight to be tuned; those with ``low == high`` are fixed.
        seed: of all draws.
    """

    def __init__(
        self, start: Mapping[str, float], bounds: Mapping[str, tuple[float, float]], *, seed: int
    ) -> None:
        self._start, self._bounds, self._seed = dict(start), dict(bounds), seed
        self._names = [name for name, (low, high) in bounds.items() if low < high]
        self._points: list[list[float]] = []
        self._costs: list[float] = []
        self._origin = np.array([to_unit(self._start[name], *self._bounds[name]) for name in self._names])

    @property
    def told(self) -> int:
        """Measurements so far."""
        return len(self._costs)

    def ask(self) -> dict[str, float]:
        """The weights to measure next; the same until they are told."""
        n, size = self.told, len(self._names)
        step = max(_MIN_STEP, MAX_STEP * _SHRINK**n)
        if n == 0 or not size:
            return self._weights(self._origin)
        if n <= 2 * size + 2:
            return self._weights(self._step_from(self._origin, step, f"{n} first"))
        if n % _REMEASURE_EVERY == 0:
            return self._weights(self._origin)
        best = self._best()
        if n % _EXPLORE_EVERY == 0:
            return self._weights(self._step_from(best, step, f"{n} explore"))
        tries = np.array([best, *(self._step_from(best, step, f"{n} {i}") for i in range(_TRIALS))])
        return self._weights(tries[int(np.argmin(self._predict(best, tries)))])

    def tell(self, weights: Mapping[str, float], cost: float) -> None:
        """A measurement.

        Args:
            weights: what was measured, asked or not.
            cost: logarithm of what is to be low; infinite or NaN where it could not be measured, which counts
                as the worst so far.
        """
        if not math.isfinite(cost):
            cost = max(self._costs, default=0.0) + 1.0
        self._points.append([to_unit(weights.get(name, 0.0), *self._bounds[name]) for name in self._names])
        self._costs.append(float(cost))

    def recommend(self) -> dict[str, float]:
        """The weights believed best: of all measured points the one that the model puts lowest."""
        return self._weights(self._best()) if self._costs and self._names else dict(self._start)

    # -- the model ----------------------------------------------------------------------------------------

    def _best(self) -> Floats:
        points, costs = np.array(self._points), np.array(self._costs)
        centre = np.asarray(points[int(np.argmin(costs))], dtype=float)
        if self.told <= 2 * len(self._names) + 2:
            return centre
        for _ in range(2):  # the second time around a centre that is no longer a lucky one
            centre = np.asarray(points[int(np.argmin(self._predict(centre, points)))], dtype=float)
        return centre

    def _predict(self, centre: Floats, at: Floats) -> Floats:
        """The quadratic around a centre, fitted to what is near and good, at some points."""
        points, costs = np.array(self._points), np.array(self._costs)
        spread = max(float(np.median(np.abs(costs - np.median(costs)))), 1e-9)
        near = np.exp(-0.5 * (((points - centre) / (1.6 * MAX_STEP)) ** 2).sum(axis=1))
        good = 1.0 / (1.0 + np.maximum(0.0, (costs - np.median(costs)) / (2.0 * spread)) ** 2)
        weight = np.sqrt(near * good + 1e-6)[:, None]
        design = _terms(points - centre)
        penalty = np.sqrt(_RIDGE) * np.eye(design.shape[1])
        penalty[0, 0] = 0.0
        left = np.vstack([design * weight, penalty])
        middle = float(np.average(costs, weights=weight[:, 0] ** 2))
        right = np.concatenate([(costs - middle) * weight[:, 0], np.zeros(design.shape[1])])
        found = np.linalg.lstsq(left, right, rcond=None)[0]
        return np.asarray(_terms(at - centre) @ found, dtype=float) + middle

    def _step_from(self, point: Floats, step: float, key: str) -> Floats:
        draws = [keyed_uniform(self._seed, key, f"search {name}") + _TINY for name in self._names]
        return np.clip(point + step * np.array([_NORMAL.inv_cdf(u) for u in draws]), 0.0, 1.0)

    # -- the scale ----------------------------------------------------------------------------------------

    def _weights(self, point: Floats) -> dict[str, float]:
        out = {
            name: min(max(v, self._bounds[name][0]), self._bounds[name][1])
            for name, v in self._start.items()
            if name in self._bounds
        }
        for name, unit in zip(self._names, point.tolist(), strict=True):
            out[name] = from_unit(unit, *self._bounds[name])
        if np.array_equal(point, self._origin):
            out |= {name: self._start[name] for name in self._names if self._inside(name)}
        return out

    def _inside(self, name: str) -> bool:
        low, high = self._bounds[name]
        return low <= self._start[name] <= high


def _terms(x: Floats) -> Floats:
    """Columns 1, x_i, x_i x_j."""
    n, size = x.shape
    pairs = [x[:, i] * x[:, j] for i in range(size) for j in range(i, size)]
    return np.column_stack([np.ones(n), x, *pairs])
