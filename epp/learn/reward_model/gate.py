"""Whether a trained model may replace the one in force: held-out error first, then what it would have cost.

Owns both comparisons and the words of a refusal. Pure.

Rules
- Judged is what was not trained on: the newest samples, in the order of time, not a random part of all.
- Both models are judged on the same samples, which neither has seen, and differ significantly or not at all.
- The off-policy screen can refuse and never promote. switch-DR decides; SNIPS is printed beside it, because
  it speaks only of the requests on which both policies agree, and these are often the easy ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from epp.learn.reward_model.fitting import with_classes
from epp.learn.reward_model.monitors import errors_ms, errors_of
from epp.learn.reward_model.off_policy import Choice, Estimate, estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from epp.learn.reward_model.samples import Logged, Sample
    from epp.learn.reward_model.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel

    Floats = NDArray[np.float64]

#: A rise of the error that is within so many standard errors of the allowed one is let pass.
_Z = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
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
    logged: Sequence[Logged],
    settings: LearnerSettings,
    constant_ms: float,
    fresh: int = 0,
) -> Verdict:
    """Both comparisons.

    Args:
        candidate: the model on trial.
        incumbent: the one in force, None before the first.
        judge_model: predicts for switch-DR; neither the candidate nor the incumbent.
        held_out: samples that the candidate has not seen.
        logged: choices that it has not seen.
        settings: margins.
        constant_ms: mean TTFT of what was trained on: what a model must beat to be one.
        fresh: newest samples that the incumbent has not seen either; 0 where it has seen none of them.
    """
    if incumbent is not None and fresh:
        held_out = held_out[-fresh:]
    figures, refusal = _held_out(candidate, incumbent, held_out, settings, constant_ms)
    choices = choices_of(logged, candidate, judge_model)
    if choices:
        found = estimate(choices, clip=settings.gate.clip)
        figures |= _figures(found)
        refusal = refusal or _screened(found, settings)
    else:
        figures["effective_samples"] = 0.0
        refusal = refusal or "no logged choice to judge it by"
    if not settings.gate.on:
        return Verdict(True, "passed: the gate is open" + (f" ({refusal})" if refusal else ""), figures)
    if refusal:
        short = figures["effective_samples"] < settings.gate.min_effective
        return Verdict(False, f"refused: {refusal}", figures, short)
    return Verdict(
        True,
        f"passed: error {figures['error_ms']:.0f} ms held out, cost {figures['cost_rise_ms']:+.0f} ms "
        f"off policy, {figures['effective_samples']:.0f} effective samples",
        figures,
    )


def _held_out(
    candidate: RewardModel,
    incumbent: RewardModel | None,
    held_out: Sequence[Sample],
    settings: LearnerSettings,
    constant_ms: float,
) -> tuple[dict[str, float], str]:
    quantile = settings.data.failed_quantile
    if not any(sample.answered for sample in held_out):
        return {}, "no answered request held out to judge it on"
    mine = errors_ms(candidate, held_out, quantile)
    constant = errors_of(np.full(len(held_out), constant_ms), held_out, quantile)
    seen_ms = [sample.ttft_ms for sample in held_out if sample.answered]
    hindsight = errors_of(np.full(len(held_out), np.median(seen_ms)), held_out, quantile)
    figures = {
        "error_ms": float(mine.mean()),
        "constant_error_ms": float(constant.mean()),
        "hindsight_error_ms": float(hindsight.mean()),
    }
    if incumbent is None:
        return figures, _worse(mine, constant, 0.0, "the error of one constant number")
    theirs = errors_ms(incumbent, held_out, quantile)
    figures["incumbent_error_ms"] = float(theirs.mean())
    return figures, _worse(mine, theirs, settings.gate.worse, "the incumbent's error")


def _worse(mine: Floats, theirs: Floats, allowed: float, name: str) -> str:
    """Words where the errors exceed the allowed ones beyond chance, request by request; else empty."""
    rise = mine - (1.0 + allowed) * theirs
    error = float(rise.std(ddof=1) / np.sqrt(len(rise))) if len(rise) > 1 else 0.0
    if float(rise.mean()) <= _Z * error:
        return ""
    return f"held-out error {mine.mean():.1f} ms, above {name}, {theirs.mean():.1f} ms"


def _screened(found: Estimate, settings: LearnerSettings) -> str:
    gate = settings.gate
    if found.effective < gate.min_effective:
        return (
            f"too little overlap with what ran: {found.effective:.0f} effective samples of "
            f"{gate.min_effective:.0f}"
        )
    if found.dr_rise_ms > gate.z * found.dr_error_ms:
        return (
            f"off policy it would cost {found.dr_rise_ms:+.1f} ms (standard error {found.dr_error_ms:.1f}) "
            f"more than the logged {found.logged_ms:.1f} ms"
        )
    return ""


def _figures(found: Estimate) -> dict[str, float]:
    figures = {
        "choices": float(found.choices),
        "effective_samples": found.effective,
        "overlap_share": found.overlap,
        "logged_cost_ms": found.logged_ms,
        "snips_cost_ms": found.snips_ms,
        "dr_cost_ms": found.dr_ms,
        "cost_rise_ms": found.dr_rise_ms,
        "cost_rise_error_ms": found.dr_error_ms,
    }
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def choices_of(logged: Sequence[Logged], candidate: RewardModel, judge_model: RewardModel) -> list[Choice]:
    """Logged choices beside the candidate's, greedy with equals in equal shares.

    Left out: requests that another endpoint served than was chosen, and those without a first token, whose
    cost nobody knows. Endpoints unlike the training are the heuristic's, as they are for the policy: picked
    exactly when it would pick one of them, and else not.
    """

    def greedy(entry: Logged) -> Floats:
        x = with_classes(entry.rows, entry.engine_classes, candidate.classes)
        inside = ~candidate.out_of_distribution(x)
        if not (inside & (entry.heuristic > 0.0)).any():
            return entry.heuristic
        mine = predicted_cost_ms(candidate, x, entry.sample.output_tokens)
        price = candidate.congestion(x)
        if price is not None:
            mine = mine + price
        best = inside & (mine <= mine[inside].min())
        return np.asarray(best / best.sum(), np.float64)

    return _choices(logged, judge_model, greedy)


def regret(
    logged: Sequence[Logged], judge_model: RewardModel, settings: LearnerSettings
) -> tuple[dict[str, float], bool]:
    """What the heuristic would have cost where a model chose, and whether that is to be regretted.

    Sees single choices: harm that a policy does to its own later requests is for the trial to find.

    Args:
        logged: choices, newest last.
        judge_model: predicts for switch-DR; has chosen none of them.
        settings: margins.
    """
    chosen = [entry for entry in logged if entry.learned]
    choices = _choices(chosen, judge_model, lambda entry: entry.heuristic)
    if not choices:
        return {}, False
    found = estimate(choices, clip=settings.gate.clip)
    figures = {"regret_ms": -found.dr_rise_ms, "regret_effective_samples": found.effective}
    if np.isfinite(found.dr_error_ms):
        figures["regret_error_ms"] = found.dr_error_ms
    monitors = settings.monitors
    least_ms = max(monitors.regret * found.logged_ms, monitors.regret_z * found.dr_error_ms)
    return figures, found.effective >= settings.gate.min_effective and -found.dr_rise_ms > least_ms


def _choices(
    logged: Sequence[Logged], judge_model: RewardModel, policy: Callable[[Logged], Floats]
) -> list[Choice]:
    choices = []
    for entry in logged:
        sample, chance = entry.sample, float(entry.chances[entry.chosen])
        cost_ms = _cost_ms(sample, judge_model)
        if not entry.served_pick or np.isnan(cost_ms) or not chance > 0.0:
            continue
        judged = with_classes(entry.rows, entry.engine_classes, judge_model.classes)
        foretold = predicted_cost_ms(judge_model, judged, sample.output_tokens)
        choices.append(Choice(cost_ms, chance, policy(entry), foretold, entry.chosen))
    return choices


def predicted_cost_ms(model: RewardModel, x: Floats, output_tokens: float) -> Floats:
    """What a model expects users to feel, counted as the policy does: TTFT and the expected answer."""
    predicted = model.predict(x)
    if predicted.shape[1] == 1:
        return predicted[:, 0]
    return np.asarray(predicted[:, 0] + output_tokens * predicted[:, 1], np.float64)


def _cost_ms(sample: Sample, model: RewardModel) -> float:
    """What the request felt, in the model's own terms; NaN when not known."""
    if len(model.heads) == 1 or not sample.output_tokens:
        return sample.ttft_ms
    return sample.ttft_ms + sample.output_tokens * sample.itl_ms
