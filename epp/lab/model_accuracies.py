"""Five models whose answers differ: a prior over how often each is right.

The paper [R] shows accuracies in figures alone, so a table of them would be an invention. What it *states* is
held to instead: `stated` lists it, and draws from a broad prior are thrown away until all of it is true. What
is concluded, is concluded over draws.

Their speeds are in `epp.lab.sim.a100`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.lab.sim.a100 import A100_MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LANGUAGES = ("en", "ja", "zh")
LENGTHS = (4096, 8192, 16_384, 32_768, 65_536)
GRANITE_2B, GRANITE_8B, PHI_MINI, PHI_MEDIUM, SWALLOW = range(5)
_TRIES = 100_000
NAMES = tuple(model.name for model in A100_MODELS)


@dataclass(frozen=True, slots=True)
class Truth:
    """One draw.

    Attributes:
        accuracy: ``[model, language, length]``.
        correlation: how much models find the same questions hard, 0..1 (a Gaussian copula's).
    """

    accuracy: Floats
    correlation: float


#: Log odds at 4K, what each doubling of the length takes of them, and what Japanese and Chinese do: ranges.
_RANGES: tuple[tuple[tuple[float, float], ...], ...] = (
    ((1.0, 2.4), (0.25, 0.75), (-1.2, 0.2), (-1.2, 0.2)),
    ((2.0, 3.6), (0.8, 1.5), (-1.2, 0.2), (-1.2, 0.2)),
    ((2.2, 4.0), (0.5, 1.1), (-1.2, 0.2), (-1.2, 0.2)),
    ((1.5, 3.2), (0.6, 1.2), (-1.2, 0.2), (-1.2, 0.2)),
    ((2.2, 4.0), (0.1, 0.5), (-0.4, 0.6), (-1.0, 0.2)),
)
#: What Swallow's log odds lose at 32K, and again at 64K.
_COLLAPSE, _FURTHER = (2.5, 4.5), (0.5, 2.0)
_JITTER = 0.25
_CORRELATION = (0.1, 0.5)


def draw_truth(seed: int) -> Truth:
    """The draw of that number: the first of its stream of which all that the paper states is true."""
    rng = np.random.default_rng([0x1AA2, seed])
    for _ in range(_TRIES):
        accuracy = _accuracy(rng)
        if all(holds(accuracy) for holds in stated().values()):
            return Truth(accuracy, float(rng.uniform(*_CORRELATION)))
    raise AssertionError("the prior holds nothing of what the paper states")


def stated() -> dict[str, Callable[[Floats], bool]]:
    """What the paper says of accuracies (source [R], sections 3.1 and 6.2), as questions to a draw."""

    def mean(a: Floats, model: int, length: int) -> float:
        return float(a[model, :, length].mean())

    return {
        "phi-3-mini is often the most accurate": lambda a: int((a.argmax(axis=0) == PHI_MINI).sum()) >= 5,
        "no model is always the most accurate": lambda a: len(np.unique(a.argmax(axis=0))) > 1,
        "phi-3-mini notably outperforms phi-3-medium": lambda a: bool(
            a[PHI_MINI].mean() > a[PHI_MEDIUM].mean() + 0.05
        ),
        "granite-2b is below granite-8b at short lengths": lambda a: all(
            mean(a, GRANITE_2B, at) < mean(a, GRANITE_8B, at) for at in (0, 1)
        ),
        "granite-2b is above granite-8b at 32K and 64K": lambda a: all(
            mean(a, GRANITE_2B, at) > mean(a, GRANITE_8B, at) for at in (3, 4)
        ),
        "swallow is competitive up to 16K": lambda a: all(
            mean(a, SWALLOW, at) > a[:, :, at].mean(axis=1).max() - 0.1 for at in (0, 1, 2)
        ),
        "swallow collapses at 32K in every language, and further at 64K": lambda a: bool(
            (a[SWALLOW, :, 3] < 0.6 * a[SWALLOW, :, 2]).all() and (a[SWALLOW, :, 4] < a[SWALLOW, :, 3]).all()
        ),
        "the best model differs between languages": lambda a: any(
            len(set(a[:, :, at].argmax(axis=0).tolist())) > 1 for at in range(len(LENGTHS))
        ),
        "all models are good at short lengths": lambda a: bool(a[:, :, 0].mean(axis=1).min() > 0.5),
        "longer is harder": lambda a: bool((np.diff(a.mean(axis=(0, 1))) < 0).all()),
    }


def _accuracy(rng: np.random.Generator) -> Floats:
    doublings = np.arange(len(LENGTHS), dtype=np.float64)
    log_odds = np.empty((len(A100_MODELS), len(LANGUAGES), len(LENGTHS)))
    for model, (base, slope, japanese, chinese) in enumerate(_RANGES):
        shift = np.array([0.0, rng.uniform(*japanese), rng.uniform(*chinese)])
        log_odds[model] = rng.uniform(*base) + shift[:, None] - rng.uniform(*slope) * doublings
    log_odds[SWALLOW, :, 3:] -= rng.uniform(*_COLLAPSE)
    log_odds[SWALLOW, :, 4] -= rng.uniform(*_FURTHER)
    log_odds += rng.normal(0.0, _JITTER, log_odds.shape)
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))


def right_answers(truth: Truth, language: int, length: int, count: int, seed: int) -> NDArray[np.bool_]:
    """``[question, model]``: whose answer is right, drawn once: decoding is greedy.

    A question that is hard for one model is hard for others by the draw's correlation.
    """
    rng = np.random.default_rng([0x1AA3, seed, language, length])
    shared, own = rng.normal(size=(count, 1)), rng.normal(size=(count, len(A100_MODELS)))
    ease = np.sqrt(truth.correlation) * shared + np.sqrt(1.0 - truth.correlation) * own
    # The share of normal draws below the threshold is the accuracy: compare by rank, not by a formula.
    return _normal_cdf(ease) < truth.accuracy[:, language, length]


def _normal_cdf(values: Floats) -> Floats:
    """Abramowitz and Stegun 7.1.26, right to 1.5e-7."""
    x = np.abs(values) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half = 0.5 * poly * np.exp(-x * x)
    return np.asarray(np.where(values >= 0, 1.0 - half, half))
