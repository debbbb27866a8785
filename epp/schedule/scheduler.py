"""The use case: a measured request in, a decision with its reservation out, and its later reports.

Owns the requests in flight (decision id -> what must be given back) and composes filter, signals, policy,
draw and reservation into one synchronous step: between pricing and reserving nothing else can run, so a burst
cannot herd. The same object serves live, in the simulator and in replays. It takes ``now_s`` and never asks
for the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from epp.apis.usage import NO_USAGE, Usage
from epp.config.plan import Split
from epp.config.retries import MAX_LISTED
from epp.policies.base import Need, Ties
from epp.policies.registry import params_of
from epp.schedule.decision import Basis, Decision, Source, legs_of
from epp.schedule.feedback import (
    DONE,
    InFlight,
    SentLeg,
    is_absurd,
    learn_from,
    outcome_of,
    sent_of,
    with_cached,
)
from epp.schedule.filters import Filters
from epp.schedule.prompt_roots import PromptRoots
from epp.schedule.select import LEAST_SHARE, kinds_of, select, with_local
from epp.signals.datastore import Datastore
from epp.signals.duration import transfer_ms
from epp.signals.links import token_ms
from epp.signals.stored_responses import key_of
from epp.types import HELPERS, PREFILLING, PREFILLS, PREFIX_KEY_TOKENS, Role, Snapshot, answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.apis.failure import AnswerFailure
    from epp.config.schema import Config
    from epp.policies.base import Policy
    from epp.prefix_cache.index import PrefixIndex
    from epp.prefix_cache.sources import RequestMatch
    from epp.schedule.decision import Leg, Outcome
    from epp.schedule.filters import Candidates
    from epp.schedule.weights import WeightBook, Weights
    from epp.signals.engine_caches import Fused
    from epp.signals.paths import ConnectionTiming
    from epp.types import Endpoint, Floats, RequestInfo, Slots


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of a picker; `epp.config.schema.PolicySection` describes them."""

    tolerance: float = 0.01
    seed: int = 0
    fallbacks: int = 2
    warmup_s: float = 30.0

    @classmethod
    def of(cls, config: Config) -> SchedulerSettings:
        """Take them from a configuration."""
        policy = config.policy
        return cls(tolerance=policy.tolerance, fallbacks=policy.fallbacks, warmup_s=config.pool.warmup_s)


class Measured(Struct, frozen=True):
    """What a decision is made of.

    Attributes:
        request: completed by what the picker knows of it.
        found: who may serve it.
        seen: the signals of these.
        deepest: the last block of its prompt that was sent before, None where none was.
        parted: another prompt went on from there in a way of its own.
        fused: what engines' events say of its prompt, by role, `Role.WHOLE` for the candidates; empty where
            they say nothing.
    """

    request: RequestInfo
    found: Candidates
    seen: Snapshot
    deepest: int | None
    parted: bool = False
    fused: Mapping[Role, Fused] = {}


def datastore_of(config: Config, index: PrefixIndex) -> Datastore:
    """Make a fleet with its stores as configured."""
    datastore = Datastore(
        index,
        stale_after_s=config.scrape.stale_after_s,
        probe_interval_s=config.probe.interval_s,
        eject_s=config.probe.eject_s,
        capacity_stated=config.prefix.capacity_stated,
    )
    datastore.links.token_ms = token_ms(config.transfer.kv_bytes_per_token, config.transfer.link_gbps)
    return datastore


class Scheduler:
    """Decides and remembers what it reserved.

    Args:
        datastore: the signals.
        policy: prices endpoints.
        balance: used instead where the policy needs a prompt and there is none to read.
        weights: the weights in force.
        settings: constants.
        new_id: makes decision ids.
        name_block: a block's name as it may be recorded; live pickers pass the keyed one of their hasher.
        learn: called with a request and the tokens that an engine counted in its prompt.
    """

    def __init__(
        self,
        *,
        datastore: Datastore,
        policy: Policy,
        balance: Policy,
        weights: WeightBook,
        settings: SchedulerSettings,
        new_id: Callable[[], str],
        name_block: Callable[[int], str] = "{:016x}".format,
        learn: Callable[[RequestInfo, int], None] | None = None,
    ) -> None:
        self.datastore = datastore
        self.policy = policy
        self._params = params_of(policy)
        self.weights = weights
        self._balance = balance
        self._settings = settings
        self._new_id = new_id
        self._name_block = name_block
        self._learn = learn
        self.filters = Filters(policy)
        datastore.on_pool["filters"] = lambda: self.filters.set_pool(datastore.members)
        self._extras = policy.extra_columns()
        self._roots = PromptRoots()
        #: Called with what became of a request, and the instant.
        self.on_end: dict[str, Callable[[Outcome, float], None]] = {}
        #: Called with a decision and the id of the response that its engine stores.
        self.on_stored: dict[str, Callable[[str, str], None]] = {}
        self._in_flight: dict[str, InFlight] = {}
        self._ended: dict[str, InFlight] = {}
        self._sequence = 0

    def configure(self, config: Config) -> None:
        """Use a configuration's settings, and its checked weights, from now on."""
        self._settings = SchedulerSettings.of(config)
        self.weights.configure(config.policy.weights)

    def set_pool(self, endpoints: Sequence[Endpoint], now_s: float) -> None:
        """Replace the pool; what is known of endpoints that stay is kept."""
        policy = self.policy
        answering = (
            each.address for each in endpoints if policy.admits(each) and answers(policy.roles(each))
        )
        self.datastore.helpers = frozenset(each.address for each in endpoints).difference(answering)
        self.datastore.apply(endpoints, now_s)

    def replace_policy(self, policy: Policy) -> None:
        """Use the same policy with other parameters from the next decision on.

        Raises:
            ValueError: it is another policy, whose weights these are not.
        """
        if policy.name != self.policy.name:
            raise ValueError(f"the weights in force are those of {self.policy.name}, not of {policy.name}")
        self.policy, self._params = policy, params_of(policy)

    @property
    def tolerance(self) -> float:
        """Return the relative band of equals, of policies that have one."""
        return self._settings.tolerance

    @property
    def headers_read(self) -> frozenset[str]:
        """Name the request headers that the policy and its columns read."""
        return self.policy.headers if self._extras is None else self.policy.headers | self._extras.headers

    @property
    def session_tokens(self) -> frozenset[str]:
        """Name the response headers that tell clients their endpoint in base64."""
        return frozenset() if self._extras is None else self._extras.tokens

    @property
    def in_flight(self) -> int:
        """Requests decided and not ended."""
        return len(self._in_flight)

    def has_in_flight(self, decision_id: str) -> bool:
        """Tell whether a request was decided here and has not ended."""
        return decision_id in self._in_flight

    def decide(self, request: RequestInfo, now_s: float, wall_s: float) -> Decision:
        """Locate, measure, schedule and reserve, in one step that nothing can come between.

        Raises:
            NoEndpointError: nobody is eligible.
        """
        found = self.locate(request, now_s)
        measured = self.measure(request, found, now_s)
        decision = self.schedule(measured, now_s, wall_s)
        self.reserve(decision, measured, now_s)
        return decision

    def locate(self, request: RequestInfo, now_s: float) -> Candidates:
        """Find who may serve a request now.

        Raises:
            NoEndpointError: nobody is eligible.
        """
        datastore, about = self.datastore, request.previous_response
        healthy, paused = datastore.health.standing(now_s).healthy, datastore.retry_after.until_s(now_s)
        holder = datastore.stored.slot(about, now_s) if about else None
        return self.filters.candidates(request, healthy, paused, holder, datastore.unknown(now_s))

    def measure(self, request: RequestInfo, found: Candidates, now_s: float) -> Measured:
        """Look up the prompt's prefix, take the candidates' signals, and complete the request by both.

        A request that has an id keeps it.
        """
        datastore, slots, models = self.datastore, found.slots, found.served_models
        match = datastore.prefixes.match(request)
        cached, fused = self._cached(request, match, slots, now_s)
        given = request if self.policy.chances_after_failures else replace(request, tried_models=())
        success = datastore.capability.success(given, models, len(slots))
        seen = datastore.snapshot(slots, cached, request.prompt_tokens, now_s, models=models, success=success)
        if fused is not None:
            seen = replace(seen, cached_sources=fused.sources)
        if self._extras is not None:
            seen = replace(seen, extra=self._extras.columns(request, datastore, seen, slots, now_s))
        known = {} if fused is None else {Role.WHOLE: fused}
        if found.workers and (not request.came_s or self._need_partners(found.slots)):
            seen, of_workers = self._with_workers(seen, request, found, match, now_s)
            known |= of_workers
        depth = 0 if match is None else match.depth_blocks
        deepest = request.blocks[depth - 1] if depth else None
        parted = match is not None and match.parted
        return Measured(self._completed(request, deepest, now_s, found), found, seen, deepest, parted, known)

    def _cached(
        self, request: RequestInfo, match: RequestMatch | None, slots: Slots, now_s: float
    ) -> tuple[Floats | None, Fused | None]:
        """Return the cached tokens by slot, and what engines tell of them, None where they do not."""
        cached = None if match is None else match.cached_tokens(slots)
        caches = self.datastore.engine_caches
        if caches is None or cached is None:
            return cached, None
        fused = caches.fuse(request, slots, cached, now_s)
        return (cached if fused is None else fused.tokens), fused

    def _with_workers(
        self,
        seen: Snapshot,
        request: RequestInfo,
        found: Candidates,
        match: RequestMatch | None,
        now_s: float,
    ) -> tuple[Snapshot, dict[Role, Fused]]:
        """Add the signals of who may do a part for the candidates, and what joins them.

        Returns the signals, and what the workers' engines tell of the prompt, by role.
        """
        datastore = self.datastore
        workers: dict[Role, Snapshot] = {}
        known: dict[Role, Fused] = {}
        for role, slots in found.workers.items():
            cached, fused = self._cached(request, match, slots, now_s)
            other = datastore.snapshot(slots, cached, request.prompt_tokens, now_s)
            if fused is not None:
                known[role], other = fused, replace(other, cached_sources=fused.sources)
            if self._extras is not None:
                extra = self._extras.columns(request, datastore, other, slots, now_s)
                other = replace(other, extra=extra)
            if seen.models:
                names = tuple(each.served_name(request.model) for each in datastore.endpoints(slots))
                other = replace(other, models=names)
            workers[role] = self._joined(other, slots)
        return replace(self._joined(seen, found.slots), workers=workers), known

    def _need_partners(self, slots: Slots) -> bool:
        """Tell whether an endpoint cannot serve whole what has failed by parts."""
        return not all(each.prefills for each in self.datastore.endpoints(slots))

    def _joined(self, seen: Snapshot, slots: Slots) -> Snapshot:
        endpoints = self.datastore.endpoints(slots)
        revisions = tuple(each.revision for each in endpoints)
        prefills = np.array([each.prefills for each in endpoints], np.float64)
        extra = {**seen.extra, **self.datastore.links.columns(slots), PREFILLS: prefills}
        return replace(seen, extra=extra, revisions=revisions)

    def schedule(self, measured: Measured, now_s: float, wall_s: float) -> Decision:
        """Price the candidates, and choose."""
        settings, request, found, seen = self._settings, measured.request, measured.found, measured.seen
        if request.opaque and Need.PROMPT in self.policy.needs:
            policy, basis, params = self._balance, Basis.BALANCE, dict[str, object]()
            weights, arm = self.weights.current, ""
        else:
            policy, basis = self.policy.chosen(request), Basis.POLICY
            params = self._params if policy is self.policy else params_of(policy)
            weights, arm = self._weights_for(request, wall_s)
        values = weights.values if policy is self.policy else {}
        ranking = policy.rank(request, seen, values, settings.seed)
        shares = self._slow_start_weights(found.slots, now_s)
        band = settings.tolerance if policy.ties is Ties.BAND else 0.0
        selection = select(
            ranking.costs,
            shares,
            seen.endpoints,
            tolerance=band,
            fallbacks=MAX_LISTED - 1 if found.bound and settings.fallbacks else settings.fallbacks,
            seed=settings.seed,
            key=request.decision_id,
            kinds=kinds_of(seen),
        )
        if self.datastore.remote is not None:
            selection = with_local(selection, ranking.costs, seen)
        return Decision(
            at_wall_s=wall_s,
            basis=basis,
            policy=policy.name,
            params=params,
            request=request,
            snapshot=seen,
            weights=values,
            weights_version=weights.version,
            seed=settings.seed,
            tolerance=band,
            ranking=ranking,
            slow_start_weights=shares,
            legs=legs_of(request, seen, selection.chosen, selection.fallbacks, ranking.partners),
            tied=selection.tied,
            slow_start_excluded=selection.slow_start_excluded,
            arm=arm,
            excluded=found.excluded,
            bound=found.bound,
        )

    def reserve(self, decision: Decision, measured: Measured, now_s: float) -> None:
        """Reserve what every leg of a decision will take, and remember the request until it ends."""
        datastore, request, deepest = self.datastore, decision.request, measured.deepest
        self._sequence += 1
        if self._splits_by_prompt(request):
            self._roots.learn(request)
        if deepest is not None:
            datastore.popularity.count(deepest, now_s)
        if self._extras is not None:
            self._extras.note(decision.endpoint, request, decision.snapshot, now_s)
        if request.prompt_tokens:
            datastore.first_tokens.observe(request.model, decision.ranking.least_first_token_ms)
        found = measured.found
        legs = tuple(
            self._reserve(
                leg,
                decision,
                int(found.workers.get(leg.role, found.slots)[leg.index]),
                measured.fused.get(leg.role if leg.role in HELPERS else Role.WHOLE),
                now_s,
            )
            for leg in decision.legs
        )
        self._in_flight[decision.id] = InFlight(legs, request, now_s)
        for leg, sent in zip(decision.legs, legs, strict=True):
            if leg.role is Role.PREFILL:
                missing_tokens = request.prompt_tokens - legs[-1].cached_tokens
                datastore.links.reserve(decision.id, (sent.slot, legs[-1].slot), missing_tokens)

    def _reserve(self, leg: Leg, decision: Decision, slot: int, fused: Fused | None, now_s: float) -> SentLeg:
        datastore, request, prompt_tokens = self.datastore, decision.request, decision.request.prompt_tokens
        seen, helps = decision.seen(leg).at(leg.index), leg.role in HELPERS
        # Nobody connects to a helper through Envoy.
        idle = 0 if helps else datastore.paths.started(slot, now_s)
        state = sent_of(leg, decision.seen(leg), seen, idle)
        datastore.retry_after.sent(slot, decision.id, now_s)
        # A hit that the engine has lost is work that the next request waits for, too.
        uncached_tokens = round(datastore.calibration.to_prefill(slot, prompt_tokens, seen.cached_tokens))
        datastore.ledger.reserve(
            leg.reservation,
            slot,
            prompt_tokens,
            uncached_tokens if leg.role in PREFILLING else 0,
            now_s,
            answer_tokens=0.0 if helps else request.expected_output_tokens,
            sequences=request.sequences,
        )
        distance_tokens, prefix, caches = math.nan, None, datastore.engine_caches
        if prompt_tokens and leg.role is not Role.ENCODE:
            distance_tokens = self._insert(slot, request)
            if caches is not None and fused is not None:
                prefix = caches.sent(slot, request, fused, leg.index, now_s)
        endpoint, transfer = decision.address(leg), 0.0
        if leg.role is Role.PREFILL:
            decode = decision.snapshot.at(decision.chosen)
            transfer = transfer_ms(request, decision.snapshot, decision.chosen, leg.index)
            transfer += decode.prefill_base_ms
        return SentLeg(
            slot=slot,
            endpoint=endpoint,
            reservation=leg.reservation,
            cached_tokens=seen.cached_tokens,
            distance_tokens=distance_tokens,
            state=state,
            role=leg.role,
            transfer_ms=transfer,
            prefix=prefix,
        )

    def _settle_prefixes(self, entry: InFlight, now_s: float) -> None:
        """Let what was credited for a request end soon."""
        caches = self.datastore.engine_caches
        for leg in entry.legs:
            if caches is not None and leg.prefix is not None:
                caches.settle(leg.prefix, now_s)

    def _insert(self, slot: int, request: RequestInfo) -> float:
        """Insert a request's prompts; return what `PrefixIndex.insert` does of the first."""
        for one in request.more:
            self.datastore.index.insert(slot, one)
        return self.datastore.index.insert(slot, request)

    def told_endpoints(self, decision: Decision) -> Mapping[str, str]:
        """Return the endpoints that the chosen one is told of, by request header."""
        policy = self.policy.chosen(decision.request)
        return policy.told_endpoints(decision.request, decision.snapshot, decision.chosen, decision.seed)

    def _completed(
        self, request: RequestInfo, deepest: int | None, now_s: float, found: Candidates
    ) -> RequestInfo:
        """Fill in what this picker knows of a request; ``deepest`` is the last block that was sent before."""
        tried = request.tried_models
        if tried:
            known = frozenset(found.served_models)
            tried = tuple(name for name in tried if name in known)
        return replace(
            request,
            decision_id=request.decision_id or self._new_id(),
            prefix_key=self._prefix_key(request),
            sequence=self._sequence,
            expected_output_tokens=self.datastore.answers.expected(
                request.model, request.max_output_tokens, request.sequences
            ),
            prefix_sharing=0.0 if deepest is None else self.datastore.popularity.sharing(deepest, now_s),
            usual_first_token_ms=self.datastore.first_tokens.usual_ms(request.model),
            task=self.datastore.capability.task(request.task),
            tried_models=tried,
        )

    def _prefix_key(self, request: RequestInfo) -> str:
        if not request.blocks:
            return ""
        covered = max(int(PREFIX_KEY_TOKENS / request.block_tokens), 1)
        return self._name_block(request.blocks[min(covered, len(request.blocks)) - 1])

    def _weights_for(self, request: RequestInfo, wall_s: float) -> tuple[Weights, str]:
        """Choose the weights of a request's arm in a trial, with the arm's stamp.

        An arm is drawn by the client's session, else by the root of the prompt.
        """
        together = request.session
        if self.weights.plan.trial is None:
            return self.weights.current, ""
        if self._splits_by_prompt(request):
            root = self._roots.root(request)
            together = "" if root is None else self._name_block(root)
        return self.weights.choose(wall_s, together)

    def _splits_by_prompt(self, request: RequestInfo) -> bool:
        """Tell whether the root of a request's prompt draws its arm."""
        is_split = isinstance(self.weights.plan.trial, Split)
        return is_split and not request.session and bool(request.prompt_tokens)

    def _slow_start_weights(self, slots: Slots, now_s: float) -> Floats | None:
        """Return each candidate's share as `select` takes it."""
        warm = self.datastore.warm_share(now_s, self._settings.warmup_s)
        proven = self.datastore.health.standing(now_s).proven
        if warm is None and proven is None:
            return None
        shares = np.ones(len(slots)) if warm is None else warm[slots]
        if proven is not None and (proof := proven[slots]).any():
            shares = np.where(proof, np.maximum(shares, LEAST_SHARE), 0.0)
        return shares if bool((shares < 1.0).any()) else None

    def first_token(self, decision_id: str, now_s: float, source: Source = Source.FIRST_TOKEN) -> bool:
        """Note the first token; False when the decision is unknown, ended, or had its first token before."""
        entry = self._in_flight.get(decision_id)
        if entry is None or not math.isnan(entry.first_token_s):
            return False
        entry.first_token_s, entry.first_source = now_s, source
        self.datastore.ledger.first_token(entry.leg.reservation, now_s)
        self._end_parts(decision_id, entry, arrived=True)
        self._settle_prefixes(entry, now_s)
        return True

    def prefilled(self, decision_id: str) -> None:
        """End what is reserved at those who did a part for the endpoint that answers; unknown ids are fine.

        The answer's engine has the prompt's KV cache then.
        """
        entry = self._in_flight.get(decision_id)
        if entry is not None:
            self._end_parts(decision_id, entry, arrived=True)

    def _end_parts(self, decision_id: str, entry: InFlight, *, arrived: bool = False) -> None:
        for leg in entry.legs[:-1]:
            self.datastore.ledger.end(leg.reservation)
        if entry.legs[1:]:
            self.datastore.links.end(decision_id, arrived=arrived)

    def response_started(self, decision_id: str, status: int, served: str = "") -> str:
        """Note response headers; return who answers, "" for an unknown or ended decision."""
        entry = self._in_flight.get(decision_id)
        if entry is None:
            return ""
        entry.status = status or None
        self._end_parts(decision_id, entry, arrived=status < 400)
        self._served(entry, served)
        return entry.where

    def observed(
        self,
        decision_id: str,
        *,
        usage: Usage = NO_USAGE,
        chunks: int | None = None,
        response_bytes: int | None = None,
        last_chunk_s: float = math.nan,
        streamed: bool | None = None,
        failure: AnswerFailure | None = None,
        model: str = "",
    ) -> bool:
        """Note what the stream showed of the answer; False when the decision is unknown or ended.

        Args:
            decision_id: the decision.
            usage: as `usage` takes it.
            chunks: pieces of the answer that were not empty.
            response_bytes: their bytes.
            last_chunk_s: when the last of them came.
            streamed: it was an event stream; None where it is unknown, then what the client asked for counts.
            failure: what the engine said of it where it failed.
            model: what the answer calls the model.
        """
        entry = self._in_flight.get(decision_id)
        if entry is None:
            return False
        entry.chunks, entry.response_bytes, entry.last_chunk_s = chunks, response_bytes, last_chunk_s
        entry.streamed, entry.failure, entry.model = streamed, failure, model
        if failure is not None and not streamed:
            entry.first_token_s = math.nan  # it was the error's
        elif failure is None and usage != NO_USAGE:
            self.usage(decision_id, usage)
        return True

    def served(self, decision_id: str, address: str) -> None:
        """Note who really answers; an unknown decision is fine."""
        entry = self._known(decision_id)
        if entry is not None:
            self._served(entry, address)

    def _served(self, entry: InFlight, address: str) -> None:
        """Move the leg that answers to the endpoint that has it, and its prompt into that one's cache."""
        if not address or address == entry.where:
            entry.served = entry.served or address
            return
        entry.served = address
        slot = self.datastore.slot_of(address)
        if slot is None:
            return
        uncached = 0.0
        if entry.request.prompt_tokens:
            match = self.datastore.prefixes.match(entry.request)
            cached = 0.0 if match is None else float(match.cached_tokens(np.array([slot]))[0])
            uncached = self.datastore.calibration.to_prefill(slot, entry.request.prompt_tokens, cached)
            self._insert(slot, entry.request)
        self.datastore.ledger.move(entry.leg.reservation, slot, round(uncached))

    def connection(self, decision_id: str, timing: ConnectionTiming) -> None:
        """Note the request's connection; an unknown decision is fine."""
        entry = self._known(decision_id)
        if entry is not None:
            entry.connection = timing

    def usage(self, decision_id: str, usage: Usage) -> bool:
        """Take the engine's count, once into the prefix index; False when absurd, unknown or settled."""
        entry, datastore = self._known(decision_id), self.datastore
        if entry is None:
            return False
        leg = entry.leg
        if is_absurd(entry, usage, datastore):
            entry.usage_refused = True
            return False
        entry.usage = usage
        # Not of a restarted engine, nor of another one that took its slot while the request was elsewhere.
        current = datastore.address_of(leg.slot) == leg.endpoint
        if decision_id in self._in_flight:
            current = current and datastore.ledger.live(leg.reservation)
        elsewhere = entry.where != leg.endpoint  # nothing was predicted of that one
        if entry.request.prompt_tokens and current and not elsewhere:
            cached = with_cached(leg.slot, entry.request.api, usage, datastore).cached_tokens
            if cached is not None and not entry.confirmed and entry.tells_hits:
                entry.confirmed = True
                expected, caches = leg.cached_tokens, datastore.engine_caches
                if caches is not None and leg.prefix is not None:
                    caches.answered(leg.prefix, cached)
                    expected = leg.prefix.estimated_tokens
                datastore.index.confirm(leg.slot, expected, cached, leg.distance_tokens)
            if usage.completion_tokens is not None and entry.request.prompts == 1:
                tokens = usage.completion_tokens // entry.request.choices
                datastore.index.note_answer(leg.slot, entry.request, tokens)
        return True

    def stored(self, decision_id: str, response_id: str, now_s: float) -> None:
        """Note who stores a response; an unknown decision, or one that left no response there, is fine."""
        entry, datastore = self._known(decision_id), self.datastore
        if entry is None or not entry.request.stores:
            return
        for listener in self.on_stored.values():
            listener(decision_id, response_id)
        slot = datastore.slot_of(entry.where)
        current = decision_id in self._ended or datastore.ledger.live(
            entry.leg.reservation
        )  # no restart since
        if slot is not None and current:
            datastore.stored.store(slot, key_of(response_id), now_s)

    def workers_of(self, decision_id: str) -> Mapping[Role, str]:
        """Return who does a part of a request for the chosen endpoint, by role, until it is settled."""
        entry = self._known(decision_id)
        return {} if entry is None else entry.workers

    def chosen_for(self, decision_id: str) -> str:
        """Return the endpoint chosen for a request, until it is settled; ``""`` then."""
        entry = self._known(decision_id)
        return "" if entry is None else entry.leg.endpoint

    def request_of(self, decision_id: str) -> RequestInfo | None:
        """Return what a request was taken for, until it is settled."""
        entry = self._known(decision_id)
        return None if entry is None else entry.request

    def _known(self, decision_id: str) -> InFlight | None:
        return self._in_flight.get(decision_id) or self._ended.get(decision_id)

    def end(
        self, decision_id: str, cause: str, now_s: float, *, report_follows: bool = False
    ) -> Outcome | None:
        """End the request, however it ended; None when the decision is unknown or ended before.

        With ``report_follows`` the decision is remembered, for `usage`, until it is settled.
        """
        entry = self._in_flight.pop(decision_id, None)
        if entry is None:
            return None
        self._end_parts(decision_id, entry)
        self.datastore.ledger.end(entry.leg.reservation)
        self._settle_prefixes(entry, now_s)
        outcome = outcome_of(decision_id, entry, cause, now_s)
        self._tell_end(outcome, now_s)
        slot = self.datastore.slot_of(outcome.where)
        if slot is not None and cause in DONE:
            if outcome.where != entry.leg.endpoint:
                self.datastore.paths.started(
                    slot, now_s
                )  # it had a connection there, the idle one if any was
            self.datastore.paths.ended(slot, now_s)
        if report_follows:
            self._ended[decision_id] = entry
        else:
            learn_from(entry, outcome, self.datastore, self._learn)
        return outcome

    def settle(self, outcome: Outcome) -> None:
        """Learn from all that will ever be known of a request; unknown ones are fine."""
        entry = self._ended.pop(outcome.id, None)
        if entry is not None:
            learn_from(entry, outcome, self.datastore, self._learn)

    def expire(self, now_s: float) -> list[Outcome]:
        """End the requests whose reservations outlived their time."""
        found: list[Outcome] = []
        for lease in self.datastore.ledger.expire(now_s):
            if (entry := self._in_flight.pop(lease, None)) is not None:
                self._end_parts(lease, entry)
                self._settle_prefixes(entry, now_s)
                found.append(outcome_of(lease, entry, "expired", now_s))
        for outcome in found:
            self._tell_end(outcome, now_s)
        return found

    def _tell_end(self, outcome: Outcome, now_s: float) -> None:
        for listener in self.on_end.values():
            listener(outcome, now_s)
