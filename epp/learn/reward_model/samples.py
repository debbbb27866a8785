"""One decided request as a learner sees it: the inputs of every candidate, who served it, what it felt like.

Owns what becomes of requests that were never answered, and which say nothing. What counts as failed or as
nobody's fault is the tuner's word (`epp.learn.tuner.samples`): one word for one thing. Pure.

Rules
- Inputs are made from the decision's own view by the picker's own function: what is trained on is what a
  model is asked about, by construction.
- No sample is dropped for being slow. One that has no first token says "at least so long": a client that
  left, or a request still running, at least the time waited; one that failed, at least as long as the
  slowest answers too, because a quick failure is not a fast one. A bound is an error only from below.
- A request that another endpoint served than was chosen teaches by that endpoint's inputs, and proves nothing
  about the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray  # noqa: TC002  # msgspec reads annotations at run time

from epp.learn.tuner.samples import sample_of
from epp.policies.lodestar import Lodestar
from epp.policies.prefix_cache import PrefixCacheAndLoad
from epp.policies.reward_model import inputs
from epp.schedule.decision import Basis, outcome_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.learn.tuner.samples import Sample as Ended
    from epp.schedule.decision import Decision, Outcome


_HEURISTIC = PrefixCacheAndLoad()
#: Policies whose weights have the heuristic's constants among them.
_POLICIES = (Lodestar.name, PrefixCacheAndLoad.name)


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of training.

    Attributes:
        at_wall_s: Unix time of the decision.
        row: inputs of the endpoint that served, before normalisation, ``[features]``.
        engine_class: of that endpoint.
        ttft_ms: time to first token; NaN when there was none.
        itl_ms: mean time between further tokens; NaN when not known.
        waited_ms: where there was no first token, how long it was waited for; else NaN.
        failed: there was none, by the fleet's doing.
        output_tokens: expected of the answer when the decision was made.
    """

    at_wall_s: float
    row: NDArray[np.float64]
    engine_class: str
    ttft_ms: float
    itl_ms: float = math.nan
    waited_ms: float = math.nan
    failed: bool = False
    output_tokens: float = 0.0

    @property
    def answered(self) -> bool:
        """Whether a first token came."""
        return not math.isnan(self.ttft_ms)


@dataclass(frozen=True, slots=True)
class Logged:
    """A sample with the choice that led to it, for judging other choices.

    Attributes:
        sample: the row, by who served.
        rows: inputs of every candidate, ``[candidates, features]``.
        engine_classes: of each.
        chances: chance of each to be chosen, as logged; sums to 1.
        heuristic: chance of each to be the heuristic's pick instead.
        chosen: index of the pick.
        served_pick: the pick is who served it.
        learned: a model chose.
        other: a policy that is neither the learned one nor its heuristic chose.
        ended_wall_s: Unix time at which it was over, or was given up; NaN where nobody tells.
    """

    sample: Sample
    rows: NDArray[np.float64]
    engine_classes: tuple[str, ...]
    chances: NDArray[np.float64]
    heuristic: NDArray[np.float64]
    chosen: int
    served_pick: bool
    learned: bool = False
    other: bool = False
    ended_wall_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Pending:
    """What is kept of a decision until its outcome comes.

    Attributes:
        at_wall_s: Unix time.
        endpoints: candidates.
        rows: their inputs, ``[candidates, features]``.
        engine_classes: theirs.
        chances: of each to be chosen; all 0 where slow start blurs them.
        heuristic: of each to be the heuristic's pick instead.
        chosen: index of the pick.
        output_tokens: expected of the answer.
        learned: a model chose.
        other: a policy that is neither the learned one nor its heuristic chose.
    """

    at_wall_s: float
    endpoints: tuple[str, ...]
    rows: NDArray[np.float64]
    engine_classes: tuple[str, ...]
    chances: NDArray[np.float64]
    heuristic: NDArray[np.float64]
    chosen: int
    output_tokens: float
    learned: bool = False
    other: bool = False


def pending_of(decision: Decision, features: Sequence[str]) -> Pending | None:
    """What a decision is kept as; None for one that no policy priced."""
    if decision.basis is not Basis.POLICY:
        return None
    fleet = decision.fleet
    return Pending(
        at_wall_s=decision.at_wall_s,
        endpoints=fleet.endpoints,
        rows=inputs(decision.request, fleet, features, ()),
        engine_classes=fleet.engine_classes,
        chances=_chances(decision),
        heuristic=_heuristic(decision),
        chosen=decision.chosen,
        output_tokens=decision.request.expected_output_tokens,
        learned=_learned(decision),
        other=decision.policy not in _POLICIES,
    )


def _learned(decision: Decision) -> bool:
    """Whether a model chose, or the floor of chance beside it, and not the heuristic."""
    told = decision.ranking.terms.get("fallback")
    return decision.policy == Lodestar.name and told is not None and not told[decision.chosen]


def _chances(decision: Decision) -> NDArray[np.float64]:
    """A policy that explores tells the chances itself; of others they follow from the ranking."""
    told = decision.ranking.terms.get("probability")
    if told is None:
        return decision.probabilities()
    return told if decision.shares is None else np.zeros(len(told))


def _heuristic(decision: Decision) -> NDArray[np.float64]:
    """What the learned policy would have done without a model, with the constants in force."""
    specs = _HEURISTIC.weight_specs
    ours = decision.weights if decision.policy in _POLICIES else {}
    weights = {name: ours.get(name, spec.default) for name, spec in specs.items()}
    costs = _HEURISTIC.rank(decision.request, decision.fleet, weights, decision.seed).costs
    first = costs == costs.min()
    return np.asarray(first / np.count_nonzero(first), np.float64)


def log_of(
    decision: Decision, outcome: Outcome | None, features: Sequence[str], *, waited_ms: float = math.nan
) -> Logged | None:
    """What a decision and its outcome teach.

    Args:
        decision: as made.
        outcome: how it ended; None for a request that was given up waiting for.
        features: of the model.
        waited_ms: how long such a request was waited for.

    Returns:
        None when it says nothing: not priced, refused as the client's fault, or watched by nobody.
    """
    choice = pending_of(decision, features)
    if choice is None:
        return None
    ended = ended_of(decision, outcome, waited_ms=waited_ms)
    return None if ended is None else logged(choice, ended)


def ended_of(decision: Decision, outcome: Outcome | None, *, waited_ms: float = math.nan) -> Ended | None:
    """A decision and its outcome as a trial counts them, arm and all, without the way through records.

    Args:
        decision: as made.
        outcome: how it ended; None for a request that was given up waiting for.
        waited_ms: how long such a request was waited for.

    Returns:
        None when it says nothing of the policy.
    """
    at_s = decision.at_wall_s
    told = {
        "basis": decision.basis.value,
        "at": at_s,
        "id": decision.id,
        "weights_version": decision.weights_version,
        "arm": decision.arm,
        "request": {
            "prompt_tokens": decision.request.prompt_tokens,
            "affinity_key": decision.request.affinity_key,
        },
        "endpoints": [decision.endpoint],
        "chosen": 0,
    }
    record = None if outcome is None else outcome_record(outcome, at_s)
    return sample_of(told, record, at_s + waited_ms / 1000.0)


def logged(choice: Pending, ended: Ended) -> Logged | None:
    """A choice and how its request ended; None where that says nothing of the endpoint's state."""
    try:
        served = choice.endpoints.index(ended.endpoint)
    except ValueError:  # somebody who was no candidate: nothing is known of its state
        return None
    if not np.isfinite(choice.rows).all():  # one such row would spoil every training that it is part of
        return None
    waited_ms = math.nan
    if math.isnan(ended.ttft_ms):
        waited_ms = ended.e2e_ms
        if math.isnan(waited_ms):
            waited_ms = max((ended.ended_wall_s - ended.dispatched_wall_s) * 1000.0, 0.0)
        if math.isnan(waited_ms) or not (ended.failed or ended.censored):
            return None  # it ended somehow, and nobody saw the first token
    sample = Sample(
        at_wall_s=choice.at_wall_s,
        row=choice.rows[served].copy(),  # not all rows, for as long as this one is kept
        engine_class=choice.engine_classes[served],
        ttft_ms=ended.ttft_ms,
        itl_ms=ended.itl_ms,
        waited_ms=waited_ms,
        failed=ended.failed and math.isnan(ended.ttft_ms),
        output_tokens=choice.output_tokens,
    )
    return Logged(
        sample=sample,
        rows=choice.rows,
        engine_classes=choice.engine_classes,
        chances=choice.chances,
        heuristic=choice.heuristic,
        chosen=choice.chosen,
        served_pick=served == choice.chosen,
        learned=choice.learned,
        other=choice.other,
        ended_wall_s=choice.at_wall_s + (ended.e2e_ms if math.isnan(waited_ms) else waited_ms) / 1000.0,
    )
