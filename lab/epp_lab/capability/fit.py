"""Each model's chance of a right answer by language, length bucket and task, fitted to checked answers.

One logistic regression a model (source [R], section 5.2), L2-regularised; how strongly is chosen by
cross-validation over questions. Features: language, length bucket, the bucket's logarithm, language with
bucket, and task where there are several. Chances are calibrated: a line through the log odds that questions
got from fits without them (Platt). Intervals are 95 %, from the curvature at the fit's optimum.

A retry meets only what others failed. So retries, and answers of several models to one question, first fit
how far questions differ in ease (`fit_ease`), by the chances of first attempts. Retries are then weighted to
stand for first attempts (`_first_attempts`). A model that only retries asked so gets the chance which, after
these failures, is the share that it had right.

A model gets chances for the languages and tasks that it was asked in, from the shortest to the longest bucket
of each, and none beyond.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from epp.config.capability import CapabilityFile, ChanceEntry, FitReport, chances_of
from epp.errors import EppError
from epp.keyed_uniform import keyed_uniform
from epp.signals.capability import EASE_WEIGHTS, after_failures, by_ease
from epp.types import SuccessCell, SuccessRates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from epp_lab.capability.results import Row

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
#: Spreads of ease that are tried; mean of the normal prior, which stands where no answers tell; deviation.
_SPREADS = np.arange(0.0, 5.01, 0.1)
_USUAL_SPREAD, _PRIOR_SPREAD = 1.5, 2.0
#: Retries to a first attempt, from which on a model's first attempts are too few to tell the spread by.
_MOST_RETRIES = 10
#: Rounds of weighting retries by the chances of the round before; each leaves a fifth of the error or less.
_ROUNDS = 4


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
    held_out = frozenset(questions[(len(questions) + 1) // 2 :])
    if not held_out:
        raise EppError("first attempts at two questions are the least: half of them are held out")
    # Whether a model may be right that has failed before, nothing says.
    asked = [row for row in rows if row.question not in held_out and row.model not in row.tried_models]
    fitted = [row for row in asked if not row.tried_models]
    parsed = fit_models(fitted, seed, SuccessRates({}))
    counts = Counter((row.model, bool(row.tried_models)) for row in asked)
    # A few first attempts, by chance, would explain what failures say of many retries.
    sure = {
        model: cells
        for model, cells in chances_of(parsed).by_model.items()
        if counts[model, True] < _MOST_RETRIES * counts[model, False]
    }
    parsed = replace(parsed, ease_spread=fit_ease(asked, sure))
    for _ in range(_ROUNDS if len(asked) > len(fitted) else 0):
        parsed = fit_models(asked, seed, chances_of(parsed))
    chances, test = chances_of(parsed).by_model, [row for row in first if row.question in held_out]
    known = [(row, chances[row.model][row.cell]) for row in test if row.cell in chances.get(row.model, ())]
    return replace(parsed, report=_report(fitted, known, seed))


def fit_models(rows: Iterable[Row], seed: int, before: SuccessRates) -> CapabilityFile:
    """Fit each model's chances at first attempts.

    Args:
        rows: checked answers.
        seed: of the folds.
        before: chances that weight retries; their spread is kept.

    Raises:
        EppError: scikit-learn is not installed.
    """
    weight = cache(partial(_first_attempts, before))
    by_model: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row in rows:
        asked = row.model, *row.tried_models
        by_model[row.model].append((row, weight(row.cell, asked, row.correct)))
    models = {model: _fit_model(by_model[model], seed) for model in sorted(by_model)}
    return CapabilityFile(models=models, ease_spread=before.ease_spread)


def _first_attempts(before: SuccessRates, cell: SuccessCell, models: tuple[str, ...], correct: bool) -> float:
    """Return how many first attempts an answer of the first model stands for, after the others' failures.

    It is so many times likelier at any question than at one that they failed. Rounds end where the chance
    after these failures is the share of right answers seen.
    """
    chances = np.array([before.by_model.get(model, {}).get(cell, np.nan) for model in models])
    failed = ~np.isnan(chances)
    failed[0] = False
    chance, after = chances[0], after_failures(chances, failed, before.ease_spread)[0]
    if np.isnan(chance) or not failed.any():
        return 1.0
    return float(chance / after if correct else (1.0 - chance) / (1.0 - after))


def fit_ease(rows: Iterable[Row], chances: Mapping[str, Mapping[SuccessCell, float]]) -> float:
    """Return the spread of questions' ease under which the answers are likeliest (`epp.types.SuccessRates`).

    Answers to one question are independent given its ease (`by_ease`). Whom a retry asks hangs on the
    failures before it alone, so that retries need no correction. A normal prior stands without evidence.

    Args:
        rows: checked answers; the models that a retry names as tried were wrong.
        chances: of first attempts, by model and cell.
    """
    answers: dict[tuple[str, SuccessCell], dict[str, bool]] = defaultdict(dict)
    for row in rows:
        told = {**dict.fromkeys(row.tried_models, False), row.model: row.correct}
        answers[row.question, row.cell].update(told)
    known = [
        (number, chances[model][cell], correct)
        for number, ((_, cell), told) in enumerate(answers.items())
        for model, correct in told.items()
        if cell in chances.get(model, ())
    ]
    if not known:
        return _USUAL_SPREAD
    numbers, values, correct = (np.array(column) for column in zip(*known, strict=True))

    def log_posterior(spread: float) -> float:
        eased = by_ease(values, spread)
        likely = np.where(correct[:, None], eased, 1.0 - eased)
        together = np.ones((len(answers), len(EASE_WEIGHTS)))
        np.multiply.at(together, numbers, likely)
        # Over each answer alone, which is about as likely as its chance says: that error is no evidence.
        gain = np.log(together @ EASE_WEIGHTS).sum() - np.log(likely @ EASE_WEIGHTS).sum()
        return float(gain) - 0.5 * ((spread - _USUAL_SPREAD) / _PRIOR_SPREAD) ** 2

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


def _fit_model(rows: Sequence[tuple[Row, float]], seed: int) -> list[ChanceEntry]:
    """Fit one model's cells to weighted answers."""
    answers = Counter(row.cell for row, _ in rows)
    seen = sorted(answers, key=lambda c: (c.task, c.language, c.bucket_tokens))
    place = {cell: number for number, cell in enumerate(seen)}
    counts = np.zeros((2, _FOLDS, len(seen)))  # wrong and right answers by fold and cell
    for row, weight in rows:
        fold = int(keyed_uniform(seed, row.question, "laar fold") * _FOLDS)
        counts[int(row.correct), fold, place[row.cell]] += weight
    cells = _cells_within(seen)
    x, all_x = _features(seen, cells), _features(cells, cells)
    strength, (a, b) = _chosen(x, counts, len({row.question for row, _ in rows}))
    weights, covariance = _regression(x, counts.sum(axis=1), strength)
    design = np.hstack([np.ones((len(cells), 1)), all_x])
    log_odds = a + b * (design @ weights)
    error = b * np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
    low, middle, high = (1.0 / (1.0 + np.exp(-(log_odds + z * error))) for z in (-_Z95, 0.0, _Z95))
    return [
        ChanceEntry(
            language=cell.language,
            bucket_tokens=cell.bucket_tokens,
            task=cell.task,
            success=round(float(middle[at]), 4),
            low=round(float(low[at]), 4),
            high=round(float(high[at]), 4),
            rows=answers[cell],
        )
        for at, cell in enumerate(cells)
    ]


def _cells_within(cells: Iterable[SuccessCell]) -> list[SuccessCell]:
    """Return those seen, and the buckets between the shortest and the longest of each language and task."""
    ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        ends[cell.task, cell.language].append(cell.bucket_tokens)
    found = []
    for (task, language), buckets in sorted(ends.items()):
        bucket = min(buckets)
        while bucket <= max(buckets):
            found.append(SuccessCell(language, bucket, task))
            bucket *= 2
    return found


def _features(cells: Sequence[SuccessCell], known: Sequence[SuccessCell]) -> Floats:
    """Return cells as numbers ``[cell, feature]``.

    Args:
        cells: what is asked for.
        known: all that will be asked for.
    """

    def hot(name: str) -> Floats:
        values = sorted({getattr(cell, name) for cell in known})
        return np.array([[getattr(cell, name) == value for value in values] for cell in cells], np.float64)

    logs = np.log2(sorted({cell.bucket_tokens for cell in known}))
    length = (np.log2([c.bucket_tokens for c in cells])[:, None] - logs.mean()) / (logs.std() or 1.0)
    is_language, is_bucket, is_task = hot("language"), hot("bucket_tokens"), hot("task")
    both = (is_language[:, :, None] * is_bucket[:, None, :]).reshape(len(cells), -1)
    columns = [length, is_language, is_bucket, _INTERACTION * both, _INTERACTION * is_language * length]
    if is_task.shape[1] > 1:
        columns += [is_task, _INTERACTION * is_task * length]
    return np.hstack(columns)


def _regression(x: Floats, counts: Floats, strength: float) -> tuple[Floats, Floats]:
    """Fit intercept and coefficients, and their covariance, to wrong and right answers ``[2, cell]``."""
    try:
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise EppError("fitting needs scikit-learn: pip install 'gorgo-epp-lab[laar]'") from error
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
