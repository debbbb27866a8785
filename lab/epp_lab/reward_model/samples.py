"""One decided request as a learner sees it: the inputs of every candidate, who served it, what it felt like.

Owns what becomes of requests that were never answered, and which say nothing. What counts as failed or as
nobody's fault is decided by `epp_lab.tuner.samples`.

Rules
- Inputs are made from the decision's own snapshot by the picker's own function: what is trained on is what a
  model is asked about, by construction.
- No sample is dropped for being slow. One that has no first token says "at least so long": a client that
  left, or a request still running, at least the time waited; one that failed, at least as long as the
  slowest answers too, because a quick failure is not a fast one. A bound is an error only from below.
- A request that another endpoint served than was chosen teaches by that endpoint's inputs, and proves nothing
  about the choice.
- Unlike a tuner, a learner begins with what is on file: old requests teach as well as new ones. Decisions of
  all policies count; those of the one that is learned, and of the heuristic before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray  # noqa: TC002  # msgspec reads annotations at run time

from epp.errors import EppError
from epp.policies.lodestar import Lodestar
from epp.policies.prefix_cache import PrefixCacheAndLoad
from epp.policies.reward_model import inputs
from epp.records.files import record_files
from epp.records.schema import RecordError, decision_of
from epp.schedule.decision import outcome_record
from epp_lab.sidecar.feed import Feed
from epp_lab.tuner.samples import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from epp.schedule.decision import Decision, Outcome
    from epp_lab.sidecar.feed import FeedState
    from epp_lab.tuner.samples import Sample as Ended


#: Newest records on file that a first start reads.
HISTORY_BYTES = 256 * 1024 * 1024
_KEPT = ("id", "at", "basis", "weights_version", "endpoints", "chosen")
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
class Choice:
    """What is kept of a decision, for its outcome and for judging other choices.

    Attributes:
        endpoints: candidates.
        rows: their inputs, ``[candidates, features]``.
        engine_classes: theirs.
        propensities: chance of each to be chosen; all 0 where slow start blurs them.
        heuristic: chance of each to be the heuristic's choice instead.
        chosen: index of the chosen endpoint.
        output_tokens: expected of the answer.
        learned: a model chose.
        other: a policy that is neither the learned one nor its heuristic chose.
    """

    endpoints: tuple[str, ...]
    rows: NDArray[np.float64]
    engine_classes: tuple[str, ...]
    propensities: NDArray[np.float64]
    heuristic: NDArray[np.float64]
    chosen: int
    output_tokens: float = 0.0
    learned: bool = False
    other: bool = False


@dataclass(frozen=True, slots=True)
class Logged:
    """A sample with the choice that led to it.

    Attributes:
        sample: the row, by who served.
        choice: the decision.
        served_pick: the chosen endpoint is who served it.
        ended_wall_s: Unix time at which it was over, or was given up; NaN when not known.
        e2e_ms: time of the whole answer; NaN when its end was not seen, or it was cut short by its client.
        failed: it failed by the fleet's doing, before its first token or after.
    """

    sample: Sample
    choice: Choice
    served_pick: bool
    ended_wall_s: float = math.nan
    e2e_ms: float = math.nan
    failed: bool = False


def choice_of(decision: Decision, features: Sequence[str]) -> Choice:
    """Return what is kept of a decision that a policy priced."""
    snapshot, terms = decision.snapshot, decision.ranking.terms
    fallback, propensities = terms.get("fallback"), terms.get("probability")
    if decision.slow_start_weights is not None:
        propensities = np.zeros(len(snapshot.endpoints))
    elif propensities is None:
        propensities = decision.probabilities()
    return Choice(
        endpoints=snapshot.endpoints,
        rows=inputs(decision.request, snapshot, features, ()),
        engine_classes=snapshot.engine_classes,
        propensities=propensities,
        heuristic=_heuristic(decision),
        chosen=decision.chosen,
        output_tokens=decision.request.expected_output_tokens,
        # A model chose, or the floor of exploration beside it, and not the heuristic.
        learned=decision.policy == Lodestar.name and fallback is not None and not fallback[decision.chosen],
        other=decision.policy not in _POLICIES,
    )


def _heuristic(decision: Decision) -> NDArray[np.float64]:
    """Return what the learned policy would have done without a model, with the constants in force."""
    specs = _HEURISTIC.weight_specs
    ours = decision.weights if decision.policy in _POLICIES else {}
    weights = {name: ours.get(name, spec.default) for name, spec in specs.items()}
    costs = _HEURISTIC.rank(decision.request, decision.snapshot, weights, decision.seed).costs
    first = costs == costs.min()
    return np.asarray(first / np.count_nonzero(first), np.float64)


def log_of(decision: Decision, outcome: Outcome, features: Sequence[str]) -> Logged | None:
    """Return what a decision and its outcome teach a model with these features.

    Returns:
        None when it says nothing: not priced, refused as the client's fault, or watched by nobody.
    """
    ended = ended_of(decision, outcome)
    return None if ended is None else logged(choice_of(decision, features), ended)


def ended_of(decision: Decision, outcome: Outcome) -> Ended | None:
    """Return a decision and its outcome as a trial counts them, arm and all, without the way through records.

    Returns:
        None when it says nothing of the policy.
    """
    plain = {
        "basis": decision.basis.value,
        "at": decision.at_wall_s,
        "id": decision.id,
        "weights_version": decision.weights_version,
        "arm": decision.arm,
        "request": {"prompt_tokens": decision.request.prompt_tokens},
        "endpoints": [decision.endpoint],
        "chosen": 0,
    }
    return sample_of(plain, outcome_record(outcome, decision.at_wall_s))


def logged(choice: Choice, ended: Ended) -> Logged | None:
    """Join a choice and how its request ended; None where that says nothing of the endpoint's state."""
    # Who was no candidate has no known state; a row that is not finite would spoil every training.
    if ended.endpoint not in choice.endpoints or not np.isfinite(choice.rows).all():
        return None
    served, waited_ms = choice.endpoints.index(ended.endpoint), math.nan
    if math.isnan(ended.ttft_ms):
        waited_ms = ended.e2e_ms
        if math.isnan(waited_ms):
            waited_ms = max((ended.ended_wall_s - ended.dispatched_wall_s) * 1000.0, 0.0)
        if math.isnan(waited_ms) or not (ended.failed or ended.censored):
            return None  # it ended somehow, and nobody saw the first token
    sample = Sample(
        at_wall_s=ended.dispatched_wall_s,
        row=choice.rows[served].copy(),  # not all rows, for as long as this one is kept
        engine_class=choice.engine_classes[served],
        ttft_ms=ended.ttft_ms,
        itl_ms=ended.itl_ms,
        waited_ms=waited_ms,
        failed=ended.failed and math.isnan(ended.ttft_ms),
        output_tokens=choice.output_tokens,
    )
    lasted_ms = ended.e2e_ms if math.isnan(waited_ms) else waited_ms
    return Logged(
        sample,
        choice,
        served == choice.chosen,
        ended.dispatched_wall_s + lasted_ms / 1000.0,
        math.nan if ended.censored else ended.e2e_ms,
        ended.failed,
    )


def plain(value: Any) -> Any:
    """Return an array as plain values; the hook of an encoder."""
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, np.float64).tobytes()
    raise NotImplementedError(type(value))


def array(kind: Any, value: Any) -> Any:
    """Return an array from its plain values; the hook of a decoder."""
    if getattr(kind, "__origin__", kind) is np.ndarray:
        shape, data = value
        return np.frombuffer(data, np.float64).reshape(shape)
    raise NotImplementedError(kind)


def newest_files(folder: Path, most_bytes: float) -> frozenset[str]:
    """Names of the newest files of records, of about this size together; one at least, where there is one."""
    names, size = set(), 0
    try:
        for path in reversed(record_files(folder)):
            names.add(path.name)
            size += path.stat().st_size
            if size >= most_bytes:
                break
    except (EppError, OSError):  # rotation was faster, or there is no folder yet
        pass
    return frozenset(names)


class LogFeed(Feed[Logged]):
    """New requests of a folder.

    Args:
        folder: of the flight recorder; may not exist yet.
        features: of the model.
        report: takes sentences for the log, each once.
        state: where an earlier feed was; None to begin with the newest files.
        history_bytes: of those.
    """

    #: Each holds some 700 bytes of every candidate.
    max_waiting = 20_000

    def __init__(
        self,
        folder: Path,
        *,
        features: Sequence[str],
        report: Callable[[str], None],
        state: FeedState | None = None,
        history_bytes: float = HISTORY_BYTES,
    ) -> None:
        self._features = features
        super().__init__(folder, report=report, state=state, first=newest_files(folder, history_bytes))

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the inputs of all candidates, in plain values so that they can be persisted."""
        if record["basis"] != "policy":
            return None
        try:
            choice = choice_of(decision_of(record), self._features)
        except RecordError as error:
            raise ValueError(str(error)) from error
        return {
            **{key: record[key] for key in _KEPT},
            "request": {"prompt_tokens": record["request"]["prompt_tokens"]},
            "choice": msgspec.to_builtins(choice, builtin_types=(bytes,), enc_hook=plain),
        }

    def make(
        self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float
    ) -> Logged | None:
        """Return the request."""
        ended = sample_of(kept, outcome, now_wall_s)
        if ended is None:
            return None
        return logged(msgspec.convert(kept["choice"], Choice, dec_hook=array), ended)


def all_on_file(folder: Path, features: Sequence[str], report: Callable[[str], None]) -> list[Logged]:
    """Read every request that has ended, in the order of time."""
    feed = LogFeed(folder, features=features, report=report, history_bytes=math.inf)
    found = list(feed.new(0.0, give_up_s=math.inf))
    while feed.behind:
        found += feed.new(0.0, give_up_s=math.inf)
    if feed.state.damaged:
        report(f"{feed.state.damaged} damaged lines were passed over")
    return sorted(found, key=lambda entry: entry.sample.at_wall_s)
