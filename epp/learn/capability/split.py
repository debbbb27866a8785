"""Which answers are fitted on and which are held out, and how well chances tell those.

Questions are drawn, not rows: all answers to one question go to the same side. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from epp.config.capability import FitReport
from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from epp.learn.capability.results import Row

_BINS = 10
#: A chance of 0 that was wrong would cost all there is.
_LEAST = 1e-3


def halves(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Two halves of the questions: to fit on, and to test by."""
    questions = sorted(
        {row.question for row in rows}, key=lambda question: keyed_uniform(seed, question, "laar split")
    )
    fitted = frozenset(questions[: (len(questions) + 1) // 2])
    return [row for row in rows if row.question in fitted], [
        row for row in rows if row.question not in fitted
    ]


def judged(
    fit: Sequence[Row], test: Sequence[Row], chance: Callable[[Row], float | None], seed: int
) -> FitReport:
    """How well chances tell the held-out answers; rows that nothing is known of are left out.

    Args:
        fit: rows fitted on: their share of right answers by model is what a fit has to beat.
        test: rows held out.
        chance: of a row, None when nothing is known.
        seed: of the split.
    """
    known: list[tuple[Row, float]] = []
    for row in test:
        value = chance(row)
        if value is not None:
            known.append((row, value))
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in fit:
        counts[row.model][row.correct] += 1
    if not known:
        return FitReport(fit_rows=len(fit), test_rows=0, seed=seed)
    right = np.array([row.correct for row, _ in known], np.float64)
    told = np.array([value for _, value in known])
    base = np.array([(counts[row.model][1] + 0.5) / (sum(counts[row.model]) + 1.0) for row, _ in known])
    bins = np.minimum((told * _BINS).astype(int), _BINS - 1)
    off = sum(abs(float((right - told)[bins == at].sum())) for at in range(_BINS)) / len(known)
    return FitReport(
        fit_rows=len(fit),
        test_rows=len(known),
        seed=seed,
        log_loss=_log_loss(right, told),
        base_log_loss=_log_loss(right, base),
        brier=_round(float(((told - right) ** 2).mean())),
        calibration_error=_round(off),
    )


def _log_loss(right: NDArray[np.float64], told: NDArray[np.float64]) -> float:
    safe = np.clip(told, _LEAST, 1.0 - _LEAST)
    return _round(-float((right * np.log(safe) + (1.0 - right) * np.log1p(-safe)).mean()))


def _round(value: float) -> float:
    return 0.0 if value == 0.0 else round(value, max(0, 4 - math.ceil(math.log10(abs(value)))))
