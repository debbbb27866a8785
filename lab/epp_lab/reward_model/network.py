"""A multilayer perceptron in NumPy: its gradient, and Adam.

Owns weights in one flat array, so that an optimiser is a few operations on it. The network has some 36,000
weights: one training of the paper's size takes about one second of one core here, less than a library needs
to compile its first step, and NumPy is installed anyway. Pure.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_BIAS = 0.01
#: Longest gradient of a step, so that one wild row moves nothing (as in the code of source [L]).
_LONGEST = 1.0
#: Hidden layers, counted from the first, whose outputs dropout thins.
_DROPPED_LAYERS = 2


class Mlp:
    """A network; ReLU after all layers but the last.

    Args:
        sizes: width of the input, of each hidden layer, of the output.
        random: of the first weights (Xavier, normal); all of them are zero without it.
    """

    def __init__(self, sizes: Sequence[int], random: np.random.Generator | None = None) -> None:
        self.sizes = tuple(sizes)
        self.flat: Floats = np.zeros(sum((a + 1) * b for a, b in pairwise(self.sizes)), np.float32)
        self.layers = self.views(self.flat)
        if random is None:
            return
        for weights, bias in self.layers:
            inputs, outputs = weights.shape
            spread = np.sqrt(2.0 / (inputs + outputs))
            weights[:] = spread * random.standard_normal(weights.shape, np.float32)
            bias[:] = _BIAS

    def views(self, flat: Floats) -> list[tuple[Floats, Floats]]:
        """Weights ``[in, out]`` and bias ``[out]`` of each layer, as views of a flat array like `flat`."""
        layers, at = [], 0
        for inputs, outputs in pairwise(self.sizes):
            end = at + inputs * outputs
            layers.append((flat[at:end].reshape(inputs, outputs), flat[end : end + outputs]))
            at = end + outputs
        return layers

    def gradient(
        self,
        x: Floats,
        targets: Floats,
        bounds: NDArray[np.bool_],
        into: list[tuple[Floats, Floats]],
        *,
        dropout: float,
        random: np.random.Generator,
    ) -> None:
        """Compute the gradient of the mean squared error of a batch.

        Args:
            x: inputs ``[rows, in]``.
            targets: ``[rows, out]``; NaN where nothing is known.
            bounds: where a target is a lower bound: an output above it is no error.
            into: views of the flat gradient, overwritten.
            dropout: share of hidden values left out.
            random: of what is left out.
        """
        values, given = x, [x]
        factors: list[Floats | None] = []
        for number, (weights, bias) in enumerate(self.layers[:-1]):
            values = values @ weights
            values += bias
            np.maximum(values, 0.0, out=values)
            factor: Floats | None = None
            if dropout > 0.0 and number < _DROPPED_LAYERS:
                kept = random.random(values.shape, np.float32) >= dropout
                factor = kept.astype(np.float32) / np.float32(1.0 - dropout)
                values *= factor
            factors.append(factor)
            given.append(values)
        weights, bias = self.layers[-1]
        delta = residuals(values @ weights + bias, targets, bounds)
        delta *= np.float32(2.0 / len(x))
        for number in range(len(self.layers) - 1, -1, -1):
            by_weights, by_bias = into[number]
            np.matmul(given[number].T, delta, out=by_weights)
            delta.sum(axis=0, out=by_bias)
            if number:
                delta = delta @ self.layers[number][0].T
                delta *= given[number] > 0.0
                before = factors[number - 1]
                if before is not None:
                    delta *= before


def residuals(outputs: Floats, targets: Floats, bounds: NDArray[np.bool_]) -> Floats:
    """Return output less target; 0 where the target is not known, or is a bound that the output respects."""
    delta = outputs - targets
    delta[np.isnan(delta) | (bounds & (delta > 0.0))] = 0.0
    return delta


class Adam:
    """Adam (Kingma and Ba 2015) on a flat array, with the length of a step's gradient bounded."""

    def __init__(self, size: int) -> None:
        self._mean, self._square = np.zeros((2, size), np.float32)
        self._steps = 0

    def step(self, flat: Floats, gradient: Floats, rate: float) -> None:
        """Move ``flat`` against the gradient."""
        length = float(np.sqrt(np.dot(gradient, gradient)))
        if length > _LONGEST:
            gradient *= np.float32(_LONGEST / length)
        self._steps += 1
        self._mean = self._mean * 0.9 + gradient * 0.1
        self._square = self._square * 0.999 + gradient * gradient * 0.001
        spread = np.sqrt(self._square) * float(1.0 / np.sqrt(1.0 - 0.999**self._steps)) + 1e-8
        flat -= self._mean / spread * (rate / (1.0 - 0.9**self._steps))
