"""What is remembered of a request: the decision, taken once and never changed, and its outcome.

A `Decision` holds columns, not a record per candidate: it is built on the request path, whereas `rows` and
`to_record` are for people and files and are called off it, as is `rerun`: the proof of a record, and what
another policy had said.
"""

from __future__ import annotations

import math
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from epp.config.retries import MAX_LISTED
from epp.policies.base import WORTH_TERM, Ties
from epp.policies.pairs import groups_of
from epp.policies.registry import draws, params_of
from epp.schedule.propensities import propensities
from epp.schedule.select import kinds_of, select, with_local
from epp.signals.duration import Duration, predict_duration
from epp.types import (
    CACHED_SOURCES,
    HELPERS,
    NUMERIC_COLUMNS,
    PEER_CLASS,
    PREFILLS,
    RTT_SOURCES,
    Role,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from epp.apis.failure import AnswerFailure
    from epp.apis.usage import Usage
    from epp.policies.base import Policy
    from epp.types import Floats, Ranking, RequestInfo, Rows, Snapshot


#: Version of the records' schema, `docs/records.md`; another number means that readers must be told.
SCHEMA_VERSION = 2

#: What a record says of a request by itself.
ASKED = (
    "model",
    "prompt_tokens",
    "block_tokens",
    "body_bytes",
    "max_output_tokens",
    "affinity_key",
    "prefix_key",
    "sequence",
    "expected_output_tokens",
    "prefix_sharing",
    "usual_first_token_ms",
    "language",
    "task",
    "tried_models",
)
#: What it says of one that another region forwarded.
ORIGIN = ("origin_region", "origin_decision")

FAILED_ANSWER = "failed-answer"
"""Cause of a request whose answer, begun as a good one, says that it failed."""
#: The least HTTP status of an error.
FIRST_ERROR = 400
#: Ends of answers that came whole.
_COMPLETE = frozenset({"completed", "retried-elsewhere"})
#: Bytes of the shortest answer with a token in it: a JSON object of any API has more, ``{}`` and a stream of
#: the end mark alone have fewer.
_LEAST_ANSWER_BYTES = 32


class Basis(Enum):
    """What a decision rests on."""

    POLICY = "policy"  # the configured policy, with all that it needs
    BALANCE = "balance"  # plain balancing: no prompt to price (unknown path, body that is not JSON)


class Leg(Struct, frozen=True):
    """One endpoint's part in a request.

    Attributes:
        index: the endpoint, among the decision's candidates, or the workers of its role that others have.
        fallbacks: indices of those that may take its place, in order.
        role: what it does.
        reservation: key of what is reserved there (`epp.signals.ledger`).
        expected: when its first token and its end are expected.
    """

    index: int
    fallbacks: tuple[int, ...]
    role: Role
    reservation: str
    expected: Duration


class QueueWait(Struct, frozen=True):
    """How a request waited in the picker.

    Attributes:
        waited_s: how long.
        engine: address of the engine that served it best when it came, ``""`` for any.
        reason: what ended the wait: a clause for people.
        held: it was an agent's turn that waited for a place of its context.
    """

    waited_s: float
    engine: str
    reason: str
    held: bool = False


class Decision(Struct, frozen=True):
    """Where a request goes, with everything that this was made from.

    Attributes:
        at_wall_s: Unix time of the decision.
        basis: whether the policy or plain balancing chose.
        policy: name of the policy that ranked.
        request: what it knew of the request.
        snapshot: what it knew of the endpoints.
        weights: values used.
        weights_version: their digest.
        seed: seed of the draws.
        tolerance: relative band of equals.
        ranking: costs and terms.
        slow_start_weights: slow-start share of each candidate, 0 for those without proof that they answer
            while others have it; None when all are 1.
        legs: who does what of the request; the last one answers it.
        tied: number of candidates among which the draw chose.
        slow_start_excluded: indices of the candidates whose share kept them out of this decision.
        arm: arm of an experiment that the weights belong to, ``""`` outside of one.
        excluded: endpoints removed before pricing, by rule.
        params: the policy's parameters that differ from their defaults.
        bound: no endpoint that is not named may serve the request; not recorded.
        wait: its time in the queue, None where it did not wait.
    """

    at_wall_s: float
    basis: Basis
    policy: str
    request: RequestInfo
    snapshot: Snapshot
    weights: Mapping[str, float]
    weights_version: str
    seed: int
    tolerance: float
    ranking: Ranking
    slow_start_weights: Floats | None
    legs: tuple[Leg, ...]
    tied: int
    slow_start_excluded: tuple[int, ...] = ()
    arm: str = ""
    excluded: Mapping[str, tuple[str, ...]] = {}
    params: Mapping[str, object] = {}
    bound: bool = False
    wait: QueueWait | None = None

    @property
    def id(self) -> str:
        """Key of the request in every later report."""
        return self.request.decision_id

    @property
    def chosen(self) -> int:
        """Index of the endpoint that answers."""
        return self.legs[-1].index

    @property
    def fallbacks(self) -> tuple[int, ...]:
        """Indices of those that may answer in its place, in order."""
        return self.legs[-1].fallbacks

    def seen(self, leg: Leg) -> Snapshot:
        """Return the signals among which a leg's endpoint is."""
        return self.snapshot.workers[leg.role] if leg.role in HELPERS else self.snapshot

    def address(self, leg: Leg) -> str:
        """Return the address of a leg's endpoint."""
        return self.seen(leg).endpoints[leg.index]

    @property
    def upstream_model(self) -> str:
        """What the chosen engine calls the model, its public name unless told otherwise."""
        return self.snapshot.models[self.chosen] if self.snapshot.models else self.request.model

    @property
    def untried_models(self) -> frozenset[str]:
        """Models that could serve the request again, neither tried nor chosen now, and worth the attempt.

        All are worth it unless the policy tells of some that they are not.
        """
        names = self.snapshot.models
        worth = self.ranking.terms.get(WORTH_TERM)
        if worth is not None:
            names = tuple(name for name, share in zip(names, worth.tolist(), strict=True) if share)
        return frozenset(names).difference(self.request.tried_models, (self.upstream_model,))

    @property
    def endpoint(self) -> str:
        """Address of the chosen endpoint."""
        return self.snapshot.endpoints[self.chosen]

    @property
    def destination(self) -> str:
        """The chosen endpoint and its fallbacks as the ordered comma list that Envoy is sent."""
        names = self.snapshot.endpoints
        return ",".join((names[self.chosen], *(names[index] for index in self.fallbacks)))

    def probabilities(self) -> Floats:
        """Compute the chance of each candidate, over the policy's draw and the one among equals.

        Raises:
            KeyError: the ranking lacks a term of a policy that draws.
        """
        told = draws(self.policy)
        drawn = None if told is None else told(self.ranking, self.weights, self.params)
        costs, band = self.ranking.costs, self.tolerance
        return propensities(costs, tolerance=band, slow_start_excluded=self.slow_start_excluded, drawn=drawn)

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the chosen endpoint is expected to prefill."""
        return round(float(self.snapshot.uncached_tokens[self.chosen]))


def legs_of(
    request: RequestInfo,
    seen: Snapshot,
    chosen: int,
    fallbacks: tuple[int, ...],
    partners: Mapping[Role, Rows],
    *,
    most: int = MAX_LISTED,
) -> tuple[Leg, ...]:
    """Make the legs of a request that a candidate answers, with those who do a part for it before its own.

    Of the fallbacks it keeps those that could answer after the same parts, and so many at most.
    """
    legs: list[Leg] = []
    for role in HELPERS:
        for number, row in enumerate(partners[role][chosen].tolist() if role in partners else ()):
            if row >= 0:
                expected = predict_duration(request, seen.workers[role], row)
                alone = Duration(expected.first_token_s, expected.first_token_s)
                legs.append(Leg(row, (), role, f"{request.decision_id} {role} {number}", alone))
    prefiller = next((leg.index for leg in legs if leg.role is Role.PREFILL), None)
    expected = predict_duration(request, seen, chosen, prefiller)
    role = Role.WHOLE if prefiller is None else Role.DECODE
    if seen.workers:
        fallbacks = _fitting(seen, chosen, fallbacks, legs)
    return (*legs, Leg(chosen, fallbacks[:most], role, request.decision_id, expected))


def _fitting(seen: Snapshot, chosen: int, fallbacks: tuple[int, ...], helpers: list[Leg]) -> tuple[int, ...]:
    """Keep fallbacks that fit who helps the chosen one, and that prefill where nobody does it for them."""
    groups, prefills = list(groups_of(Role.PREFILL, seen)), seen.extra[PREFILLS].tolist()
    names = {seen.workers[leg.role].endpoints[leg.index] for leg in helpers}
    prefilled = any(leg.role is Role.PREFILL for leg in helpers)
    return tuple(
        row
        for row in fallbacks
        if (prefilled or prefills[row])
        and (not helpers or groups[row] == groups[chosen])
        and seen.endpoints[row] not in names
    )


def to_record(
    decision: Decision, *, blocks: Sequence[str] = (), block_tokens: float = 0.0, prompt_id: str = ""
) -> dict[str, Any]:
    """A decision as plain values, ready for JSON: numbers as the policy saw them, no prompt, no headers.

    Args:
        decision: the decision.
        blocks: keyed ids of the prompt's prefixes, one more per step.
        block_tokens: tokens from one of these to the next.
        prompt_id: keyed id of the whole prompt, ``""`` without one.
    """
    snapshot, request = decision.snapshot, decision.request
    return {
        "schema": SCHEMA_VERSION,
        "kind": "decision",
        "id": decision.id,
        "at": round(decision.at_wall_s, 6),
        "api": request.api,
        "basis": decision.basis.value,
        "policy": decision.policy,
        "params": dict(decision.params),
        "arm": decision.arm,
        "weights": dict(decision.weights),
        "weights_version": decision.weights_version,
        "seed": decision.seed,
        "tie_band": decision.tolerance,
        "request": {name: getattr(request, name) for name in ASKED},
        "stream": request.stream,
        "session": request.session,
        "prompt_id": prompt_id,
        "blocks": blocks,
        "block_tokens": block_tokens,
        "text_bytes": request.text_bytes,
        **_seen(snapshot),
        "shares": None if decision.slow_start_weights is None else decision.slow_start_weights.tolist(),
        "held_back": decision.slow_start_excluded,
        "terms": _lists(decision.ranking.terms),
        "costs": decision.ranking.costs.tolist(),
        "least_first_token_ms": decision.ranking.least_first_token_ms,
        "chosen": decision.chosen,
        "fallbacks": decision.fallbacks,
        "tied": decision.tied,
        "probabilities": _probabilities(decision),
        "excluded": dict(decision.excluded),
        **_of_snapshot(snapshot),
        **({name: getattr(request, name) for name in ORIGIN} if request.origin_region else {}),
        **({"sequences": request.sequences} if request.sequences > 1 else {}),
        **({"last_turn": True} if request.last_turn else {}),
        **({} if decision.wait is None else {"wait": asdict(decision.wait)}),
        "served_model": decision.upstream_model,
        "served_models": snapshot.models,
        **(_parts(decision) if snapshot.workers else {}),
    }


def _parts(decision: Decision) -> dict[str, Any]:
    """Who does which part of a request, and all who might have, with the same fields as the candidates."""
    snapshot = decision.snapshot
    return {
        "media": decision.request.media,
        "revisions": snapshot.revisions,
        "legs": [{"role": leg.role, "endpoint": decision.address(leg)} for leg in decision.legs],
        "partners": {role: rows.tolist() for role, rows in decision.ranking.partners.items()},
        "workers": {
            role: {
                **_seen(seen),
                "revisions": seen.revisions,
                "served_models": seen.models,
                "extra": _lists(seen.extra),
            }
            for role, seen in snapshot.workers.items()
        },
    }


def _seen(snapshot: Snapshot) -> dict[str, Any]:
    """Return what every snapshot says of its endpoints."""
    return {
        "endpoints": snapshot.endpoints,
        "regions": snapshot.regions,
        "engine_classes": snapshot.engine_classes,
        "signals": dict(zip(NUMERIC_COLUMNS, snapshot.block.tolist(), strict=True)),
        "unknown": {
            name: mask.nonzero()[0].tolist() for name, mask in snapshot.unknown.items() if mask.any()
        },
        "rtt_sources": _rows_by(snapshot.rtt_sources, RTT_SOURCES),
    }


def _lists(columns: Mapping[str, Floats]) -> dict[str, list[float]]:
    return {name: column.tolist() for name, column in columns.items()}


def _of_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Columns that only some decisions have."""
    found: dict[str, Any] = {"extra": _lists(snapshot.extra)} if snapshot.extra else {}
    if snapshot.cached_sources is not None:
        found["cached_sources"] = _rows_by(snapshot.cached_sources, CACHED_SOURCES)
    return found


def _rows_by(codes: NDArray[np.int8] | None, names: Sequence[str]) -> dict[str, list[int]]:
    """Rows of endpoints by where a column's values come from; those of the first code are left out."""
    rows: dict[str, list[int]] = {}
    for row, code in enumerate(() if codes is None else codes.tolist()):
        if code:
            rows.setdefault(names[code], []).append(row)
    return rows


def _probabilities(decision: Decision) -> list[float]:
    if decision.tied == 1 and draws(decision.policy) is None:
        # The usual case, and the general one is dear.
        certain = [0.0] * len(decision.snapshot)
        certain[decision.chosen] = 1.0
        return certain
    told: list[float] = decision.probabilities().tolist()
    return told


class Source(StrEnum):
    """Where a fact of an outcome comes from."""

    ENVOY = (
        "envoy"  # Envoy's account of the finished request: access log, and the filter that watches answers
    )
    STREAM = "stream"  # the ext_proc stream of the request
    FIRST_TOKEN = "first-token"  # noqa: S105 - the call that Envoy makes at an answer's first token
    CHUNKS = "chunks"  # an ITL over pieces of the answer, because nobody told its tokens
    PREDICTED = "predicted"  # nobody saw it: what the picker expected


class Outcome(Struct, frozen=True):
    """How a request ended. What nobody saw is NaN, None or empty, and has no source.

    Attributes:
        id: its decision.
        endpoint: address of the chosen endpoint.
        cause: why it ended, as `epp.extproc.types.Cause` or `epp.request.access_log.Termination` spells it;
            ``expired`` where its reservation outlived its time.
        status: HTTP status of the response.
        ttft_ms: first piece of the answer: after the request's arrival at Envoy where Envoy tells it, else
            after the decision.
        e2e_ms: end of the request, likewise.
        usage: what the engine reported.
        served: address that really answered, or was tried last.
        attempts: endpoints tried.
        itl_ms: mean time between the tokens of a streamed answer.
        chunks: pieces in which the answer came.
        response_bytes: body bytes of the answer.
        streamed: the answer came token by token.
        sources: fact -> where it comes from; facts by their names in the record.
        unsent_ms: of the times that Envoy tells, what passed before all of the request was there to be sent:
            its client's upload, for the most part. Not recorded.
        usage_refused: the engine reported counts that cannot be, which are not in `usage`. Not recorded.
        generates: the request asked for tokens: no embedding, and no limit of 0. Not recorded.
        honoured: whether Envoy's first attempt went to the chosen endpoint, None when not told. It goes
            elsewhere where Envoy's cluster lacks that endpoint.
        answers: how many it got, of one length where nothing else is told; recorded where there are several.
        failure: what the engine said where it failed the request, in an answer of any status.
        model: what the answer calls the model, ``""`` where it does not say. Not recorded.
        came_back: an engine had refused it before. Not recorded.
        workers: addresses of those who did a part for the chosen endpoint, by role.
    """

    id: str
    endpoint: str
    cause: str
    status: int | None
    ttft_ms: float
    e2e_ms: float
    usage: Usage
    served: str = ""
    attempts: int | None = None
    itl_ms: float = math.nan
    chunks: int | None = None
    response_bytes: int | None = None
    streamed: bool = False
    sources: Mapping[str, Source] = {}
    unsent_ms: float = 0.0
    honoured: bool | None = None
    usage_refused: bool = False
    generates: bool = False
    answers: int = 1
    failure: AnswerFailure | None = None
    model: str = ""
    came_back: bool = False
    workers: Mapping[Role, str] = {}

    @property
    def empty(self) -> bool:
        """Whether a complete answer of status 200 has no token where tokens were asked for."""
        if not self.generates or self.status != 200 or self.cause not in _COMPLETE:
            return False
        tokens = self.usage.completion_tokens
        if tokens is not None:
            return tokens == 0
        return self.response_bytes is not None and self.response_bytes < _LEAST_ANSWER_BYTES

    @property
    def verdict(self) -> int:
        """The HTTP status that the answer came with, or means where it failed later; 0 for none."""
        return self.failure.status if self.failure is not None else self.status or 0

    @property
    def where(self) -> str:
        """Who served it, as far as is known: the chosen endpoint until something else is told."""
        return self.served or self.endpoint

    @property
    def at_fault(self) -> str:
        """Who is charged with an error: a worker, if one did a part, as no answer says whose the error is."""
        return next(iter(self.workers.values()), self.where)

    @property
    def sent_ttft_ms(self) -> float:
        """First piece of the answer, from when the request was decided and there to be sent, whoever told."""
        return self.ttft_ms - (self.unsent_ms if self.sources.get("ttft_ms") is Source.ENVOY else 0.0)

    @property
    def sent_e2e_ms(self) -> float:
        """End of the request, likewise."""
        return self.e2e_ms - (self.unsent_ms if self.sources.get("e2e_ms") is Source.ENVOY else 0.0)


def with_itl(outcome: Outcome, answering_ms: float, source: Source) -> Outcome:
    """The outcome with its ITL: the time from first to last token over the tokens after the first.

    Where the engine told no tokens the pieces stand for them, and the source says so.

    Args:
        outcome: what is known so far.
        answering_ms: from the first piece to the last.
        source: who timed it.
    """
    if not outcome.streamed:
        return outcome
    count = outcome.usage.completion_tokens
    if count is None:
        count, source = outcome.chunks, Source.CHUNKS
    count = None if count is None else count // outcome.answers
    if count is None or count < 2 or not answering_ms >= 0.0:
        return outcome
    sources = {**outcome.sources, "itl_ms": source}
    return replace(outcome, itl_ms=answering_ms / (count - 1), sources=sources)


def usage_sources(usage: Usage, source: Source) -> dict[str, Source]:
    """Sources of the counts that an engine told."""
    return {name: source for name in usage.__struct_fields__ if getattr(usage, name) is not None}


def outcome_record(outcome: Outcome, at_wall_s: float) -> dict[str, Any]:
    """An outcome as plain values, ready for JSON."""
    return {
        "schema": SCHEMA_VERSION,
        "kind": "outcome",
        "id": outcome.id,
        "at": round(at_wall_s, 6),
        "endpoint": outcome.endpoint,
        "served": outcome.served,
        "cause": outcome.cause,
        "status": outcome.status,
        "failure": None if outcome.failure is None else asdict(outcome.failure),
        "attempts": outcome.attempts,
        "honoured": outcome.honoured,
        "ttft_ms": _rounded(outcome.ttft_ms),
        "e2e_ms": _rounded(outcome.e2e_ms),
        "itl_ms": _rounded(outcome.itl_ms),
        "chunks": outcome.chunks,
        "response_bytes": outcome.response_bytes,
        "prompt_tokens": outcome.usage.prompt_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
        **({"answers": outcome.answers} if outcome.answers > 1 else {}),
        **({"workers": dict(outcome.workers)} if outcome.workers else {}),
        "sources": dict(outcome.sources),
    }


def _rounded(value_ms: float) -> float | None:
    return None if math.isnan(value_ms) else round(value_ms, 3)


def rerun(decision: Decision, policy: Policy, tolerance: float = 0.0) -> Decision:
    """Price and draw a recorded decision again, with the same or another policy; nothing is reserved.

    Args:
        decision: as it was taken.
        policy: that it is asked of.
        tolerance: relative band of equals of another policy that has one; the same one's is the decision's.
    """
    if policy.name == decision.policy:
        weights, band = decision.weights, decision.tolerance
    else:
        weights, band = policy.default_weights(), tolerance if policy.ties is Ties.BAND else 0.0
    ranking = policy.rank(decision.request, decision.snapshot, weights, decision.seed)
    selection = select(
        ranking.costs,
        decision.slow_start_weights,
        decision.snapshot.endpoints,
        tolerance=band,
        # Of pairs those that do not fit are left out afterwards.
        fallbacks=MAX_LISTED - 1 if decision.snapshot.workers else len(decision.fallbacks),
        seed=decision.seed,
        key=decision.id,
        kinds=kinds_of(decision.snapshot),
    )
    if PEER_CLASS in decision.snapshot.engine_classes:
        selection = with_local(selection, ranking.costs, decision.snapshot)
    return replace(
        decision,
        policy=policy.name,
        params=params_of(policy),
        weights=weights,
        tolerance=band,
        ranking=ranking,
        legs=legs_of(
            decision.request,
            decision.snapshot,
            selection.chosen,
            selection.fallbacks,
            ranking.partners,
            most=len(decision.fallbacks),
        ),
        tied=selection.tied,
        slow_start_excluded=selection.slow_start_excluded,
    )
