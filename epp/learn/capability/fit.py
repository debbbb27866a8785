"""Each model's chance of a right answer by language, length bucket and task, fitted to checked answers.

One logistic regression a model (source [R], section 5.2), L2-regularised; how strongly is chosen by
cross-validation over questions. Features: language, length bucket, the bucket's logarithm, language with
bucket, and task where there are several. Chances are calibrated: a line through the log odds that questions
got from fits without them (Platt). Intervals are 95 %, from the curvature at the fit's optimum.

Nothing is said beyond what was seen: of a model, chances are told for the languages and tasks that it was
asked in, from the shortest to the longest bucket of each.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.config.capability import CapabilityFile, ChanceEntry
from epp.errors import EppError
from epp.keyed_uniform import keyed_uniform
from epp.learn.capability.split import halves, judged
from epp.signals.capability import Cell
from epp.types import length_bucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from epp.learn.capability.results import Row

    Floats = NDArray[np.float64]

#: Inverse strengths of the regularisation that are tried.
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0)
_FOLDS = 5
#: Fewer right and wrong answers than this, or fewer questions, are no evidence to calibrate by.
_LEAST_QUESTIONS = 10
_SLOPES = (0.5, 1.5)
_Z95 = 1.96
#: Half an answer of each kind, for models that were always right or always wrong.
_PRIOR = 0.5
#: Language with bucket may differ, but less readily than either alone.
_INTERACTION = 0.7


@dataclass(frozen=True, slots=True)
class _Tally:
    """Answers by fold and cell.

    Attributes:
        cells: the cells seen.
        right: ``[fold, cell]`` right answers.
        wrong: likewise.
    """

    cells: tuple[Cell, ...]
    right: Floats
    wrong: Floats


def fit(rows: Sequence[Row], seed: int = 0) -> CapabilityFile:
    """The capability file of these answers: fitted on half of the questions, reported on the other.

    Raises:
        EppError: scikit-learn is not installed, or there are fewer than two questions.
    """
    fitted, test = halves(rows, seed)
    if not test:
        raise EppError("one question is not enough: half of them are held out")
    by_model: dict[str, list[Row]] = defaultdict(list)
    for row in fitted:
        by_model[row.model].append(row)
    models = {model: fit_model(by_model[model], seed) for model in sorted(by_model)}
    chances = {
        model: {Cell(e.language, e.bucket_tokens, e.task): e.success for e in entries}
        for model, entries in models.items()
    }
    report = judged(fitted, test, lambda row: chances.get(row.model, {}).get(_cell(row)), seed)
    return CapabilityFile(models=models, report=report)


def fit_model(rows: Sequence[Row], seed: int) -> list[ChanceEntry]:
    """One model's cells.

    Raises:
        EppError: scikit-learn is not installed.
    """
    tally = _tally(rows, seed)
    told = _cells_within(tally.cells)
    features = _Features(told)
    seen = features.matrix(tally.cells)
    total = (tally.right.sum(axis=0), tally.wrong.sum(axis=0))
    strength, intercept_slope = _chosen(seen, tally, len({row.question for row in rows}))
    weights, covariance = _regression(seen, *total, strength)
    a, b = intercept_slope
    design = np.hstack([np.ones((len(told), 1)), features.matrix(told)])
    log_odds = a + b * (design @ weights)
    error = b * np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
    counts = dict(zip(tally.cells, total[0] + total[1], strict=True))
    entries = []
    for cell, centre, spread in zip(told, log_odds.tolist(), error.tolist(), strict=True):
        low, middle, high = (round(_chance(centre + z * spread), 4) for z in (-_Z95, 0.0, _Z95))
        entries.append(
            ChanceEntry(
                language=cell.language,
                bucket_tokens=cell.bucket_tokens,
                task=cell.task,
                success=middle,
                low=low,
                high=high,
                rows=int(counts.get(cell, 0)),
            )
        )
    return entries


def _cell(row: Row) -> Cell:
    return Cell(row.language, length_bucket(row.prompt_tokens), row.task)


def _tally(rows: Sequence[Row], seed: int) -> _Tally:
    cells = tuple(sorted({_cell(row) for row in rows}, key=lambda c: (c.task, c.language, c.bucket_tokens)))
    place = {cell: number for number, cell in enumerate(cells)}
    counts = np.zeros((2, _FOLDS, len(cells)))
    for row in rows:
        fold = int(keyed_uniform(seed, row.question, "laar fold") * _FOLDS)
        counts[int(row.correct), fold, place[_cell(row)]] += 1.0
    return _Tally(cells, counts[1], counts[0])


def _cells_within(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Those seen, and the buckets between the shortest and the longest of each language and task."""
    ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        ends[cell.task, cell.language].append(cell.bucket_tokens)
    found = []
    for (task, language), buckets in sorted(ends.items()):
        bucket = min(buckets)
        while bucket <= max(buckets):
            found.append(Cell(language, bucket, task))
            bucket *= 2
    return tuple(found)


class _Features:
    """Cells to numbers.

    Args:
        cells: all that will be asked for.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._languages = sorted({cell.language for cell in cells})
        self._buckets = sorted({cell.bucket_tokens for cell in cells})
        self._tasks = sorted({cell.task for cell in cells})
        logs = np.log2(self._buckets)
        self._middle, self._spread = float(logs.mean()), float(logs.std()) or 1.0

    def matrix(self, cells: Sequence[Cell]) -> Floats:
        """``[cell, feature]``."""
        return np.array([self._row(cell) for cell in cells], np.float64)

    def _row(self, cell: Cell) -> list[float]:
        languages = [float(cell.language == name) for name in self._languages]
        buckets = [float(cell.bucket_tokens == size) for size in self._buckets]
        length = (float(np.log2(cell.bucket_tokens)) - self._middle) / self._spread
        both = [_INTERACTION * is_language * is_bucket for is_language in languages for is_bucket in buckets]
        tasks = [float(cell.task == name) for name in self._tasks] if len(self._tasks) > 1 else []
        slopes = [_INTERACTION * is_task * length for is_task in tasks]
        by_language = [_INTERACTION * is_language * length for is_language in languages]
        return [length, *languages, *buckets, *both, *by_language, *tasks, *slopes]


def _regression(x: Floats, right: Floats, wrong: Floats, strength: float) -> tuple[Floats, Floats]:
    """Intercept and coefficients, and their covariance."""
    model = _classifier(strength)
    count = len(x)
    stacked = np.vstack([x, x, np.zeros((2, x.shape[1]))])
    labels = np.repeat([1, 0, 1, 0], [count, count, 1, 1])
    counts = np.concatenate([right, wrong, [_PRIOR, _PRIOR]])
    model.fit(stacked, labels, sample_weight=counts)
    weights = np.concatenate([model.intercept_, model.coef_[0]])
    design = np.hstack([np.ones((len(stacked), 1)), stacked])
    chance = 1.0 / (1.0 + np.exp(-(design @ weights)))
    curvature = design.T @ (design * (counts * chance * (1.0 - chance))[:, None])
    penalty = np.diag([1e-9, *([1.0 / strength] * x.shape[1])])
    return weights, np.linalg.inv(curvature + penalty)


def _classifier(strength: float) -> Any:
    try:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise EppError("fitting needs scikit-learn: pip install 'gorgo-epp[laar]'") from error
    return LogisticRegression(C=strength, solver="newton-cholesky", max_iter=100, tol=1e-6)


def _chosen(x: Floats, tally: _Tally, questions: int) -> tuple[float, tuple[float, float]]:
    """The strength that tells left-out folds best, and the line that calibrates it."""
    best = (np.inf, 1.0, np.zeros_like(tally.right))
    for strength in STRENGTHS:
        log_odds = np.zeros_like(tally.right)
        for fold in range(_FOLDS):
            kept = [other for other in range(_FOLDS) if other != fold]
            weights, _ = _regression(
                x, tally.right[kept].sum(axis=0), tally.wrong[kept].sum(axis=0), strength
            )
            log_odds[fold] = weights[0] + x @ weights[1:]
        loss = float(
            (tally.right * np.logaddexp(0, -log_odds) + tally.wrong * np.logaddexp(0, log_odds)).sum()
        )
        if loss < best[0]:
            best = (loss, strength, log_odds)
    return best[1], _calibrated(best[2], tally, questions)


def _calibrated(log_odds: Floats, tally: _Tally, questions: int) -> tuple[float, float]:
    """Intercept and slope of Platt's line, kept near the identity; the identity without evidence."""
    if questions < _LEAST_QUESTIONS or min(tally.right.sum(), tally.wrong.sum()) < _LEAST_QUESTIONS:
        return 0.0, 1.0
    weights, _ = _regression(log_odds.reshape(-1, 1), tally.right.ravel(), tally.wrong.ravel(), 100.0)
    slope = float(np.clip(weights[1], *_SLOPES))
    return float(weights[0]) if slope == weights[1] else 0.0, slope


def _chance(log_odds: float) -> float:
    return float(1.0 / (1.0 + np.exp(-log_odds)))
