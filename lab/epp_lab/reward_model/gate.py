"""Whether a trained model may replace the one in force: held-out error first, then what it would have cost.

Owns both comparisons, the words of a refusal, and how predictions are compared with what came.

Rules
- Judged is what was not trained on: the newest samples, in the order of time, not a random part of all.
- Both models are judged on the same samples, which neither has seen, and differ significantly or not at all.
- The off-policy screen can refuse and never promote.

The screen is switch-DR. With costs ``c_i``, logged propensities ``mu_i`` of the choices made and chances
``pi_i`` that the policy on trial would have made them, the weight of a choice is ``rho_i = pi_i / mu_i``.
The estimate (Wang, Agarwal and Dudik, ICML 2017, section 4) is the predicted cost of the policy's choices,
plus the weighted error of the prediction where ``rho`` is at most the clip; choices that would weigh more,
and those that the log never tried, rest on the prediction alone.

The predictions must not be those of a model that chose, here or in the log: it chooses where it errs low, and
would praise itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp_lab.reward_model.fitting import stack, targets_of, with_classes
from epp_lab.reward_model.network import residuals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from epp.policies.reward_model import RewardModel
    from epp_lab.reward_model.samples import Choice, Logged, Sample
    from epp_lab.reward_model.settings import LearnerSettings

    Floats = NDArray[np.float64]

#: A rise of the error that is within so many standard errors of the allowed one passes.
_Z = 2.0
#: The heuristic gets back when cheaper by this share of the logged cost, and by so many standard errors.
_REGRET, _REGRET_Z = 0.02, 3.0
#: Of predictions, in the comparison of predicted with seen.
_BINS = 10


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the gate says.

    Attributes:
        passed: whether the model may go on.
        reason: in words.
        figures: behind it, milliseconds unless the name says otherwise.
        short: the logged choices overlap too little with the model's: more of them are needed.
        regretted: the heuristic would have cost less than what ran, by the model in force.
    """

    passed: bool
    reason: str
    figures: dict[str, float] = field(default_factory=dict)
    short: bool = False
    regretted: bool = False


def judge(
    candidate: RewardModel,
    incumbent: RewardModel | None,
    judge_model: RewardModel,
    *,
    held_out: Sequence[Sample],
    log: Sequence[Logged],
    settings: LearnerSettings,
    constant_ms: float,
    fresh: int = 0,
) -> GateVerdict:
    """Make both comparisons.

    Args:
        candidate: the model on trial.
        incumbent: the one in force, None before the first.
        judge_model: predicts for switch-DR; neither the candidate nor the incumbent.
        held_out: samples that the candidate has not seen.
        log: choices that it has not seen.
        settings: margins.
        constant_ms: mean TTFT of what was trained on: what a model must beat to be one.
        fresh: newest samples that the incumbent has not seen either; 0 where it has seen none of them.
    """
    gate = settings.gate
    if incumbent is not None and fresh:
        held_out = held_out[-fresh:]
    figures, refusal = _held_out(candidate, incumbent, held_out, settings, constant_ms)
    found = _estimate(log, judge_model, lambda choice: greedy(candidate, choice), settings)
    effective = 0.0 if found is None else found.effective
    figures["effective_samples"] = effective
    if found is not None:
        figures |= {"choices": float(found.choices), "logged_cost_ms": found.logged_ms}
        figures |= {"cost_rise_ms": found.rise_ms, "cost_rise_error_ms": found.error_ms}
    if not refusal and effective < gate.min_effective and not _saturates(found, figures, settings):
        refusal = (
            f"too little overlap with what ran: {effective:.0f} effective samples of {gate.min_effective:.0f}"
        )
    if not refusal and found is not None and found.rise_ms > gate.z * found.error_ms:
        refusal = (
            f"off policy it would cost {found.rise_ms:+.1f} ms (standard error {found.error_ms:.1f}) "
            f"more than the logged {found.logged_ms:.1f} ms"
        )
    if refusal and gate.on:
        return GateVerdict(False, f"refused: {refusal}", figures, short=effective < gate.min_effective)
    if refusal:
        return GateVerdict(True, f"passed: the gate is open ({refusal})", figures)
    return GateVerdict(
        True,
        f"passed: error {figures['error_ms']:.0f} ms held out, cost {figures['cost_rise_ms']:+.0f} ms "
        f"off policy, {effective:.0f} effective samples",
        figures,
    )


def _saturates(found: Estimate | None, figures: Mapping[str, float], settings: LearnerSettings) -> bool:
    """Check that the model would save half of the logged cost at least, and errs half as much as one number.

    So it is where the incumbent lets queues grow. It then does little of what a model would: overlap is least
    where a model is needed most, and little is enough for a difference of that size. A model that is blind to
    the queues would seem to save as much, but cannot predict what they cost.
    """
    gate, error_ms = settings.gate, figures["error_ms"]
    if found is None or found.effective < gate.least_effective:
        return False
    saved_ms = -found.rise_ms - gate.z * found.error_ms
    return saved_ms > max(found.logged_ms / 2.0, error_ms) and error_ms < figures["hindsight_error_ms"] / 2.0


def _held_out(
    candidate: RewardModel,
    incumbent: RewardModel | None,
    held_out: Sequence[Sample],
    settings: LearnerSettings,
    constant_ms: float,
) -> tuple[dict[str, float], str]:
    answered_ms = [sample.ttft_ms for sample in held_out if sample.answered]
    if not answered_ms:
        return {}, "no answered request held out to judge it on"
    mine = errors_ms(candidate, held_out)
    constant = _errors_of(np.full(len(held_out), constant_ms), held_out)
    hindsight = _errors_of(np.full(len(held_out), np.median(answered_ms)), held_out)
    figures = {
        "error_ms": float(mine.mean()),
        "constant_error_ms": float(constant.mean()),
        "hindsight_error_ms": float(hindsight.mean()),
    }
    if incumbent is None:
        return figures, _worse(mine, constant, 0.0, "the error of one constant number")
    theirs = errors_ms(incumbent, held_out)
    figures["incumbent_error_ms"] = float(theirs.mean())
    return figures, _worse(mine, theirs, settings.gate.worse, "the incumbent's error")


def _worse(mine: Floats, theirs: Floats, allowed: float, name: str) -> str:
    """Say where the errors exceed the allowed ones beyond chance, request by request; else empty."""
    rise = mine - (1.0 + allowed) * theirs
    error = float(rise.std(ddof=1) / np.sqrt(len(rise))) if len(rise) > 1 else 0.0
    if float(rise.mean()) <= _Z * error:
        return ""
    return f"held-out error {mine.mean():.1f} ms, above {name}, {theirs.mean():.1f} ms"


def errors_ms(model: RewardModel, samples: Sequence[Sample]) -> Floats:
    """Return absolute error of the predicted TTFT of each sample; 0 where a bound is respected."""
    return _errors_of(model.predict(stack(samples, model.classes))[:, 0], samples)


def _errors_of(predicted_ms: Floats, samples: Sequence[Sample]) -> Floats:
    values, bounds = targets_of(samples, ("ttft_ms",))
    found = residuals(np.asarray(predicted_ms, np.float32)[:, None], values.astype(np.float32), bounds)
    return np.abs(found[:, 0]).astype(np.float64)


def calibration(model: RewardModel, samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return mean prediction and mean of what came, by bins of like predictions; answered requests alone."""
    answered = [sample for sample in samples if sample.answered]
    seen = np.array([sample.ttft_ms for sample in answered])
    predicted = model.predict(stack(answered, model.classes))[:, 0]
    parts = np.array_split(np.argsort(predicted, kind="stable"), _BINS)
    return [(float(predicted[part].mean()), float(seen[part].mean())) for part in parts if len(part)]


def greedy(candidate: RewardModel, choice: Choice) -> Floats:
    """Return chance of each candidate under the model, equals in equal shares.

    Endpoints unlike the training are the heuristic's, as they are for the policy: chosen exactly when it
    would choose one of them, and else not.
    """
    x = with_classes(choice.rows, choice.engine_classes, candidate.classes)
    inside = ~candidate.out_of_distribution(x)
    if not (inside & (choice.heuristic > 0.0)).any():
        return choice.heuristic
    mine = _predicted_cost_ms(candidate, x, choice.output_tokens)
    price = candidate.congestion(x)
    if price is not None:
        mine = mine + price
    best = inside & (mine <= mine[inside].min())
    return np.asarray(best / best.sum(), np.float64)


def regret(
    log: Sequence[Logged], judge_model: RewardModel, settings: LearnerSettings
) -> tuple[dict[str, float], bool]:
    """Return what the heuristic would have cost where a model chose, and whether that is to be regretted.

    Sees single choices: harm that a policy does to its own later requests is for the trial to find.

    Args:
        log: choices, newest last.
        judge_model: predicts for switch-DR; has chosen none of them.
        settings: margins.
    """
    chosen = [entry for entry in log if entry.choice.learned]
    found = _estimate(chosen, judge_model, lambda choice: choice.heuristic, settings)
    if found is None:
        return {}, False
    figures = {
        "regret_ms": -found.rise_ms,
        "regret_error_ms": found.error_ms,
        "regret_effective_samples": found.effective,
    }
    least_ms = max(_REGRET * found.logged_ms, _REGRET_Z * found.error_ms)
    return figures, found.effective >= settings.gate.min_effective and -found.rise_ms > least_ms


def _estimate(
    log: Sequence[Logged],
    judge_model: RewardModel,
    policy: Callable[[Choice], Floats],
    settings: LearnerSettings,
) -> Estimate | None:
    """Estimate what a policy would have cost; None without choices to judge it by.

    Left out are requests that another endpoint served than was chosen, and those without a first token, whose
    cost nobody knows.
    """
    rows = []
    for entry in log:
        choice, at = entry.choice, entry.choice.chosen
        propensity, cost_ms = float(choice.propensities[at]), _cost_ms(entry.sample, judge_model)
        if not entry.served_pick or np.isnan(cost_ms) or not propensity > 0.0:
            continue
        x = with_classes(choice.rows, choice.engine_classes, judge_model.classes)
        predicted_ms, target = _predicted_cost_ms(judge_model, x, choice.output_tokens), policy(choice)
        rows.append((cost_ms, target[at] / propensity, target @ predicted_ms, predicted_ms[at]))
    return estimate(*np.array(rows).T, clip=settings.gate.clip) if len(rows) > 1 else None


def _predicted_cost_ms(model: RewardModel, x: Floats, output_tokens: float) -> Floats:
    """Return what a model expects users to feel, counted as the policy does: TTFT and the expected answer."""
    predicted = model.predict(x)
    if predicted.shape[1] == 1:
        return predicted[:, 0]
    return np.asarray(predicted[:, 0] + output_tokens * predicted[:, 1], np.float64)


def _cost_ms(sample: Sample, model: RewardModel) -> float:
    """Return what the request felt, in the model's own terms; NaN when not known."""
    if len(model.heads) == 1 or not sample.output_tokens:
        return sample.ttft_ms
    return sample.ttft_ms + sample.output_tokens * sample.itl_ms


class Estimate(NamedTuple):
    """What the policy on trial would have cost.

    Attributes:
        choices: that were looked at.
        effective: effective sample size of the clipped weights, ``sum(w)^2 / sum(w^2)``.
        logged_ms: mean cost of what ran.
        rise_ms: by how much the policy would have cost more.
        error_ms: standard error of that.
    """

    choices: int
    effective: float
    logged_ms: float
    rise_ms: float
    error_ms: float


def estimate(
    costs_ms: Floats, rho: Floats, direct_ms: Floats, predicted_ms: Floats, *, clip: float
) -> Estimate:
    """Estimate over two choices at least.

    Args:
        costs_ms: what the choices made did cost.
        rho: weight of each.
        direct_ms: predicted cost of what the policy on trial would do.
        predicted_ms: predicted cost of the choices made.
        clip: largest weight.
    """
    weights, count = np.minimum(rho, clip), len(costs_ms)
    squares = float((weights**2).sum())
    rise = direct_ms + np.where(rho <= clip, rho, 0.0) * (costs_ms - predicted_ms) - costs_ms
    return Estimate(
        choices=count,
        effective=float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0,
        logged_ms=float(costs_ms.mean()),
        rise_ms=float(rise.mean()),
        error_ms=float(rise.std(ddof=1) / np.sqrt(count)),
    )
