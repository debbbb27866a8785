"""The search for better weights among noisy measurements: ask, tell, recommend; the loop is outside.

Owns what is asked when. Seeded; the search itself is CMA-ES (Hansen and Ostermeier 2001) from the library
`cmaes`. Learning rates that adapt to noise (Nomura, Akimoto and Ono, GECCO 2023) are left out: runs that meet
the same requests have little of it.

Rules
- Weights are searched on the logarithm of their ranges, costs are logarithms (of a p95, say): differences are
  ratios, and no sign can go wrong.
- No single measurement is believed: what is recommended is the mean of the distribution, which moves by many.
- The incumbent is measured first and again and again.
- The step never grows beyond `MAX_STEP`.
- What was measured, in order, is all there is to persist; everything else follows from it and the seed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from cmaes import CMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Largest step, in parts of the whole (logarithmic) range of a weight; the first one is `FIRST_STEP`.
MAX_STEP = 0.25
FIRST_STEP = 0.2
#: One ask in so many is the incumbent.
REMEASURE_EVERY = 8
#: A distribution over one weight is none to CMA-ES: such a search gets an idle second one.
_LEAST_SIZE = 2
#: Where a weight may be 0, the logarithm begins at this part of its upper bound.
_ZERO_PART = 1e-3


class Measured(msgspec.Struct, frozen=True):
    """A search as persisted: where it began, and the costs in order."""

    start: dict[str, float]
    bounds: dict[str, tuple[float, float]]
    seed: int
    costs: list[float]


class Search:
    """Minimises a noisy cost over weights.

    Args:
        start: where to begin: the incumbent. Weights without bounds here stay out.
        bounds: ``(low, high)`` of each weight to be tuned; those with ``low == high`` are fixed.
        seed: of all draws.
        costs: measurements of an earlier life.
    """

    def __init__(
        self,
        start: Mapping[str, float],
        bounds: Mapping[str, tuple[float, float]],
        *,
        seed: int,
        costs: Sequence[float] = (),
    ) -> None:
        self._start = {
            name: min(max(start[name], low), high) for name, (low, high) in bounds.items() if name in start
        }
        self._bounds, self._seed = dict(bounds), seed
        self._names = [name for name, (low, high) in bounds.items() if low < high and name in start]
        origin = [_to_unit(self._start[name], *self._bounds[name]) for name in self._names]
        size = max(len(self._names), _LEAST_SIZE)
        self._optimizer = CMA(
            mean=np.array([*origin, 0.5, 0.5][:size]),
            sigma=FIRST_STEP,
            bounds=np.tile([0.0, 1.0], (size, 1)),
            seed=seed & 0xFFFF_FFFF,
        )
        self._costs: list[float] = []
        self._generation: list[tuple[Floats, float]] = []
        self._asked: Floats | None = None
        for cost in costs:
            self.tell(cost)

    @property
    def measurements(self) -> int:
        """Measurements so far."""
        return len(self._costs)

    @property
    def measured(self) -> Measured:
        """The search as it can be persisted."""
        return Measured(dict(self._start), dict(self._bounds), self._seed, list(self._costs))

    def ask(self) -> dict[str, float]:
        """Return the weights to measure next; the same until `tell`."""
        return dict(self._start) if self._is_incumbents_turn() else self._weights(self._point())

    def tell(self, cost: float) -> None:
        """Take the measurement of what was asked.

        Args:
            cost: logarithm of what is to be low; infinite or NaN where it could not be measured, which counts
                as worse than the worst so far.
        """
        if not math.isfinite(cost):
            cost = max(self._costs, default=0.0) + 1.0
        if not self._is_incumbents_turn():
            self._generation.append((self._point(), float(cost)))
            self._asked = None
            if len(self._generation) == self._optimizer.population_size:
                self._optimizer.tell(self._generation)
                self._generation = []
                # The library has no ceiling of its own that a unit cube would notice.
                self._optimizer._sigma = min(self._optimizer._sigma, MAX_STEP)  # noqa: SLF001
        self._costs.append(float(cost))

    def recommend(self) -> dict[str, float]:
        """Return the weights believed best; the incumbent until a first generation is complete."""
        if self.measurements <= self._optimizer.population_size or not self._names:
            return dict(self._start)
        return self._weights(np.asarray(self._optimizer.mean, dtype=float))

    def stop(self, *, budget: int) -> bool:
        """Check whether nothing more is to be asked."""
        return not self._names or self.measurements >= budget

    def _is_incumbents_turn(self) -> bool:
        return self.measurements % REMEASURE_EVERY == 0

    def _point(self) -> Floats:
        if self._asked is None:
            self._asked = np.asarray(self._optimizer.ask(), dtype=float)
        return self._asked

    def _weights(self, point: Floats) -> dict[str, float]:
        out = dict(self._start)
        for name, unit in zip(self._names, point.tolist(), strict=False):
            out[name] = _from_unit(unit, *self._bounds[name])
        return out


def _ends(low: float, high: float) -> tuple[float, float]:
    return math.log(max(low, _ZERO_PART * high)), math.log(high)


def _to_unit(value: float, low: float, high: float) -> float:
    bottom, top = _ends(low, high)
    return min(max((math.log(max(value, 1e-300)) - bottom) / (top - bottom), 0.0), 1.0)


def _from_unit(unit: float, low: float, high: float) -> float:
    bottom, top = _ends(low, high)
    return min(max(math.exp(bottom + min(max(unit, 0.0), 1.0) * (top - bottom)), low), high)
