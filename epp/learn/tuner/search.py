"""The search for better weights among noisy measurements: ask, tell, recommend; the loop is outside.

Owns what is asked when. Pure and seeded; its state is a plain mapping. The search itself is CMA-ES (Hansen
and Ostermeier 2001) from the library `cmaes`: it did better than a search of our own and than the other
libraries tried. Learning rates that adapt to noise (Nomura, Akimoto and Ono, GECCO 2023) were not seen to pay
here: runs that meet the same requests have little of it (docs/measured/tuner.md).

Rules
- Costs are logarithms (of a p95, say): differences are ratios, and no sign can go wrong.
- No single measurement is believed: what is recommended is the mean of the distribution, which moves by many.
- The incumbent is measured first and again and again.
- The step never grows beyond `MAX_STEP`.
- The state is what was measured, in order; everything else follows from it and the seed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from cmaes import CMA

from epp.learn.tuner.scale import from_unit, to_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Largest step, in parts of the whole (logarithmic) range of a weight; the first one is `FIRST_STEP`.
MAX_STEP = 0.25
FIRST_STEP = 0.2
#: One ask in so many is the incumbent.
REMEASURE_EVERY = 8
#: A distribution over one weight is none to CMA-ES: such a search gets an idle second one.
_LEAST_SIZE = 2


class Search:
    """Minimises a noisy cost over weights.

    Args:
        start: where to begin: the incumbent. Weights without bounds here stay out.
        bounds: ``(low, high)`` of each weight to be tuned; those with ``low == high`` are fixed.
        seed: of all draws.
    """

    def __init__(
        self, start: Mapping[str, float], bounds: Mapping[str, tuple[float, float]], *, seed: int
    ) -> None:
        self._start = {
            name: min(max(start[name], low), high) for name, (low, high) in bounds.items() if name in start
        }
        self._bounds, self._seed = dict(bounds), seed
        self._names = [name for name, (low, high) in bounds.items() if low < high and name in start]
        self._origin = [to_unit(self._start[name], *self._bounds[name]) for name in self._names]
        size = max(len(self._names), _LEAST_SIZE)
        self._optimizer = CMA(
            mean=np.array([*self._origin, 0.5, 0.5][:size]),
            sigma=FIRST_STEP,
            bounds=np.tile([0.0, 1.0], (size, 1)),
            seed=seed & 0xFFFF_FFFF,
        )
        self._costs: list[float] = []
        self._generation: list[tuple[Floats, float]] = []
        self._asked: Floats | None = None

    @property
    def told(self) -> int:
        """Measurements so far."""
        return len(self._costs)

    def ask(self) -> dict[str, float]:
        """The weights to measure next; the same until they are told."""
        if self._is_incumbents_turn():
            return dict(self._start)
        if self._asked is None:
            self._asked = np.asarray(self._optimizer.ask(), dtype=float)
        return self._weights(self._asked)

    def tell(self, cost: float) -> None:
        """The measurement of what was asked.

        Args:
            cost: logarithm of what is to be low; infinite or NaN where it could not be measured, which counts
                as worse than the worst so far.
        """
        if not math.isfinite(cost):
            cost = max(self._costs, default=0.0) + 1.0
        if not self._is_incumbents_turn():
            self.ask()
            assert self._asked is not None  # noqa: S101 - `ask` has set it
            self._generation.append((self._asked, float(cost)))
            self._asked = None
            if len(self._generation) == self._optimizer.population_size:
                self._optimizer.tell(self._generation)
                self._generation = []
                # The library has no ceiling of its own that a unit cube would notice.
                self._optimizer._sigma = min(self._optimizer._sigma, MAX_STEP)  # noqa: SLF001
        self._costs.append(float(cost))

    def recommend(self) -> dict[str, float]:
        """The weights believed best; the incumbent until a first generation is complete."""
        if self.told <= self._optimizer.population_size or not self._names:
            return dict(self._start)
        return self._weights(np.asarray(self._optimizer.mean, dtype=float))

    def stop(self, *, budget: int) -> str:
        """Why nothing more is to be asked; empty to go on."""
        if not self._names:
            return "no weight may be tuned"
        return f"{self.told} measurements" if self.told >= budget else ""

    def to_state(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "start": dict(self._start),
            "bounds": {name: list(ends) for name, ends in self._bounds.items()},
            "seed": self._seed,
            "costs": list(self._costs),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Search:
        """The search that `to_state` told of: asked and told again.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        bounds = {str(name): (float(ends[0]), float(ends[1])) for name, ends in dict(state["bounds"]).items()}
        search = cls(state["start"], bounds, seed=int(state["seed"]))
        for cost in state["costs"]:
            search.tell(float(cost))
        return search

    def _is_incumbents_turn(self) -> bool:
        return self.told % REMEASURE_EVERY == 0

    def _weights(self, point: Floats) -> dict[str, float]:
        out = dict(self._start)
        for name, unit in zip(self._names, point.tolist(), strict=False):
            out[name] = from_unit(unit, *self._bounds[name])
        return out
