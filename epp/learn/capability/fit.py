"""Each model's chance of a right answer by language, length bucket and task, fitted to checked answers.

One logistic regression a model (source [R], section 5.2), L2-regularised; how strongly is chosen by
cross-validation over questions. Features: language, length bucket, the bucket's logarithm, language with
bucket, and task where there are several. Chances are calibrated: a line through the log odds that questions
got from fits without them (Platt). Intervals are 95 %, from the curvature at the fit's optimum.

First attempts alone are fitted: a retry meets only what others failed. Retries, and answers of several models
to one question, fit how far questions differ in ease (`fit_ease`).

A model gets chances for the languages and tasks that it was asked in, from the shortest to the longest bucket
of each, and none beyond.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from epp.config.capability import CapabilityFile, ChanceEntry, FitReport, chances_of
from epp.errors import EppError
from epp.keyed_uniform import keyed_uniform
from epp.signals.capability import EASE_WEIGHTS, by_ease
from epp.types import Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
#: Bins of the calibration error.
_BINS = 10
#: A chance of 0 that was wrong would cost all there is.
_LEAST = 1e-3
#: Spreads of ease that are tried, and the deviation of the normal prior that holds them near 0.
_SPREADS = np.arange(0.0, 5.01, 0.1)
_PRIOR_SPREAD = 2.0


def fit(rows: Sequence[Row], seed: int = 0) -> CapabilityFile:
    """Fit the capability file of these answers on half of the questions, and report on the other.

    Raises:
        EppError: scikit-learn is not installed, or there are first attempts at fewer than two questions.
    """
    first = [row for row in rows if not row.tried_models]
    # Questions are split, not rows: all answers to one question go to the same side.
    questions = sorted(
        {row.question for row in first}, key=lambda name: keyed_uniform(seed, name, "laar split")
    )
    half = frozenset(questions[: (len(questions) + 1) // 2])
    fitted = [row for row in first if row.question in half]
    test = [row for row in first if row.question not in half]
    if not test:
        raise EppError("first attempts at two questions are the least: half of them are held out")
    models = {
        model: fit_model([row for row in fitted if row.model == model], seed)
        for model in sorted({row.model for row in fitted})
    }
    chances = chances_of(CapabilityFile(models=models)).by_model
    known = [(row, chances[row.model][row.cell]) for row in test if row.cell in chances.get(row.model, ())]
    spread = fit_ease([row for row in rows if row.question in half], chances)
    return CapabilityFile(models=models, ease_spread=spread, report=_report(fitted, known, seed))


def fit_ease(rows: Iterable[Row], chances: Mapping[str, Mapping[Cell, float]]) -> float:
    """Return the spread of questions' ease under which the answers are likeliest (`epp.types.Chances`).

    Answers to one question are independent given its ease (`by_ease`). Whom a retry asks hangs on the
    failures before it alone, so that retries need no correction. A normal prior gives 0 without evidence.

    Args:
        rows: checked answers, one at least with a chance; the models that a retry names as tried were wrong.
        chances: of first attempts, by model and cell.
    """
    answers: dict[tuple[str, Cell], dict[str, bool]] = defaultdict(dict)
    for row in rows:
        told = {**dict.fromkeys(row.tried_models, False), row.model: row.correct}
        answers[row.question, row.cell].update(told)
    known = [
        (number, chances[model][cell], correct)
        for number, ((_, cell), told) in enumerate(answers.items())
        for model, correct in told.items()
        if cell in chances.get(model, ())
    ]
    numbers, values, correct = (np.array(column) for column in zip(*known, strict=True))

    def log_posterior(spread: float) -> float:
        eased = by_ease(values, spread)
        likely = np.ones((len(answers), len(EASE_WEIGHTS)))
        np.multiply.at(likely, numbers, np.where(correct[:, None], eased, 1.0 - eased))
        return float(np.log(likely @ EASE_WEIGHTS).sum()) - 0.5 * (spread / _PRIOR_SPREAD) ** 2

    return round(float(max(_SPREADS, key=log_posterior)), 1)


def _report(fitted: Sequence[Row], known: Sequence[tuple[Row, float]], seed: int) -> FitReport:
    """Report how well chances predict held-out answers, beside each model's share of right ones."""
    if not known:
        return FitReport(fit_rows=len(fitted), test_rows=0, seed=seed)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in fitted:
        counts[row.model][row.correct] += 1
    right = np.array([row.correct for row, _ in known], np.float64)
    predicted = np.array([value for _, value in known])
    base = np.array([(counts[row.model][1] + 0.5) / (sum(counts[row.model]) + 1.0) for row, _ in known])
    bins = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
    off = sum(abs(float((right - predicted)[bins == at].sum())) for at in range(_BINS)) / len(known)
    return FitReport(
        fit_rows=len(fitted),
        test_rows=len(known),
        seed=seed,
        log_loss=_log_loss(right, predicted),
        base_log_loss=_log_loss(right, base),
        brier=_rounded(float(((predicted - right) ** 2).mean())),
        calibration_error=_rounded(off),
    )


def _log_loss(right: Floats, predicted: Floats) -> float:
    safe = np.clip(predicted, _LEAST, 1.0 - _LEAST)
    return _rounded(-float((right * np.log(safe) + (1.0 - right) * np.log1p(-safe)).mean()))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def fit_model(rows: Sequence[Row], seed: int) -> list[ChanceEntry]:
    """Fit one model's cells.

    Raises:
        EppError: scikit-learn is not installed.
    """
    seen = sorted({row.cell for row in rows}, key=lambda c: (c.task, c.language, c.bucket_tokens))
    place = {cell: number for number, cell in enumerate(seen)}
    counts = np.zeros((2, _FOLDS, len(seen)))  # wrong and right answers by fold and cell
    for row in rows:
        fold = int(keyed_uniform(seed, row.question, "laar fold") * _FOLDS)
        counts[int(row.correct), fold, place[row.cell]] += 1.0
    cells = _cells_within(seen)
    x, all_x = _features(seen, cells), _features(cells, cells)
    strength, (a, b) = _chosen(x, counts, len({row.question for row in rows}))
    weights, covariance = _regression(x, counts.sum(axis=1), strength)
    design = np.hstack([np.ones((len(cells), 1)), all_x])
    log_odds = a + b * (design @ weights)
    error = b * np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
    low, middle, high = (1.0 / (1.0 + np.exp(-(log_odds + z * error))) for z in (-_Z95, 0.0, _Z95))
    answers = dict(zip(seen, counts.sum(axis=(0, 1)), strict=True))
    return [
        ChanceEntry(
            language=cell.language,
            bucket_tokens=cell.bucket_tokens,
            task=cell.task,
            success=round(float(middle[at]), 4),
            low=round(float(low[at]), 4),
            high=round(float(high[at]), 4),
            rows=int(answers.get(cell, 0)),
        )
        for at, cell in enumerate(cells)
    ]


def _cells_within(cells: Iterable[Cell]) -> list[Cell]:
    """Return those seen, and the buckets between the shortest and the longest of each language and task."""
    ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        ends[cell.task, cell.language].append(cell.bucket_tokens)
    found = []
    for (task, language), buckets in sorted(ends.items()):
        bucket = min(buckets)
        while bucket <= max(buckets):
            found.append(Cell(language, bucket, task))
            bucket *= 2
    return found


def _features(cells: Sequence[Cell], known: Sequence[Cell]) -> Floats:
    """Return cells as numbers ``[cell, feature]``.

    Args:
        cells: what is asked for.
        known: all that will be asked for.
    """
    languages, buckets = sorted({c.language for c in known}), sorted({c.bucket_tokens for c in known})
    tasks = sorted({c.task for c in known})
    logs = np.log2(buckets)
    length = (np.log2([c.bucket_tokens for c in cells])[:, None] - logs.mean()) / (logs.std() or 1.0)
    is_language = np.array([[c.language == name for name in languages] for c in cells], np.float64)
    is_bucket = np.array([[c.bucket_tokens == size for size in buckets] for c in cells], np.float64)
    is_task = np.array([[c.task == name for name in tasks] for c in cells], np.float64)
    both = (is_language[:, :, None] * is_bucket[:, None, :]).reshape(len(cells), -1)
    columns = [length, is_language, is_bucket, _INTERACTION * both, _INTERACTION * is_language * length]
    if len(tasks) > 1:
        columns += [is_task, _INTERACTION * is_task * length]
    return np.hstack(columns)


def _regression(x: Floats, counts: Floats, strength: float) -> tuple[Floats, Floats]:
    """Fit intercept and coefficients, and their covariance, to wrong and right answers ``[2, cell]``."""
    try:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise EppError("fitting needs scikit-learn: pip install 'gorgo-epp[laar]'") from error
    stacked = np.vstack([x, x, np.zeros((2, x.shape[1]))])
    labels = np.repeat([0, 1, 0, 1], [len(x), len(x), 1, 1])
    weight = np.concatenate([*counts, [_PRIOR, _PRIOR]])
    model = LogisticRegression(C=strength, solver="newton-cholesky", max_iter=100, tol=1e-6)
    model.fit(stacked, labels, sample_weight=weight)
    weights = np.concatenate([model.intercept_, model.coef_[0]])
    design = np.hstack([np.ones((len(stacked), 1)), stacked])
    chance = model.predict_proba(stacked)[:, 1]
    curvature = design.T @ (design * (weight * chance * (1.0 - chance))[:, None])
    penalty = np.diag([1e-9, *([1.0 / strength] * x.shape[1])])
    return weights, np.linalg.inv(curvature + penalty)


def _chosen(x: Floats, counts: Floats, questions: int) -> tuple[float, tuple[float, float]]:
    """Return the strength that predicts left-out folds best, and the line that calibrates it (Platt).

    It is the identity without evidence, as where all log odds are about the same and carry no slope.
    """
    wrong, right = counts
    best: tuple[float, float, Floats] = (np.inf, 1.0, np.zeros_like(right))
    for strength in STRENGTHS:
        log_odds = np.zeros_like(right)
        for fold in range(_FOLDS):
            weights, _ = _regression(x, np.delete(counts, fold, axis=1).sum(axis=1), strength)
            log_odds[fold] = weights[0] + x @ weights[1:]
        loss = float((right * np.logaddexp(0, -log_odds) + wrong * np.logaddexp(0, log_odds)).sum())
        if loss < best[0]:
            best = (loss, strength, log_odds)
    if questions < _LEAST_QUESTIONS or min(right.sum(), wrong.sum()) < _LEAST_QUESTIONS:
        return best[1], (0.0, 1.0)
    middle = best[2].mean()
    weights, _ = _regression((best[2] - middle).reshape(-1, 1), counts.reshape(2, -1), 100.0)
    intercept, slope = float(weights[0] - weights[1] * middle), float(weights[1])
    return best[1], (intercept, slope) if _SLOPES[0] < slope < _SLOPES[1] else (0.0, 1.0)
