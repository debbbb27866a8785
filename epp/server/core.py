"""From an HTTP request to a pick or a refusal: parse, measure, decide, in the API's own words.

Owns no socket and no stream: the gRPC servicer calls it once per request, the tests call it directly.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from epp.apis.canonical import text_bytes
from epp.apis.error_bodies import openai_error
from epp.apis.language import language_of
from epp.apis.registry import affinity_key, error_words, find_parser, is_upgrade
from epp.apis.tried import task_of, tried_models
from epp.config.schema import Protocol
from epp.errors import ClientError, NoEndpointError
from epp.extproc.types import PickAt
from epp.policies.base import Need
from epp.schedule.filters import allowed_regions
from epp.schedule.picker import Ask
from epp.server.gateway import Gateway
from epp.server.outcomes import Outcomes
from epp.server.retry import told
from epp.server.rewrite import rewritten
from epp.signals.duration import foretell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.apis.types import CountedPrompt, ParsedRequest, Parser
    from epp.clock import Clock
    from epp.config.schema import RegionRule
    from epp.extproc.types import HttpRequest, Pick, Refusal
    from epp.prefix_cache.blocks import BlockHasher
    from epp.records.recorder import Recorder
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.schedule.saturation import Admit
    from epp.server.metrics import Metrics
    from epp.server.relays import RelayPaths
    from epp.server.resolve import Resolver
    from epp.server.tokenizers import Count, Tokenizers
    from epp.signals.duration import Duration
    from epp.tokens.estimate import EstimateCounter

#: Newest decisions that are remembered, and their endpoints together: some 230 bytes each, so that a decision
#: on 1,000 endpoints writes to memory that the processor's caches still hold.
RECENT_DECISIONS, RECENT_ENDPOINTS = 1000, 64_000
#: What policies need that only bodies tell: a session may be named there, and falls back on the prompt.
_OF_BODIES = frozenset({Need.PROMPT, Need.SESSION})


class RecentDecisions:
    """The newest decisions, for `epp explain` against a running picker; those before are in the records.

    Args:
        size: decisions at most.
        endpoints: endpoints that they are over, together; the newest stays however many it has.
    """

    def __init__(self, size: int = RECENT_DECISIONS, endpoints: int = RECENT_ENDPOINTS) -> None:
        self._size, self._most_endpoints = size, endpoints
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._endpoints = 0

    def add(self, decision: Decision) -> None:
        """Remember a decision, forget the oldest."""
        decisions = self._decisions
        decisions[decision.id] = decision
        self._endpoints += len(decision.fleet)
        while len(decisions) > self._size or (self._endpoints > self._most_endpoints and len(decisions) > 1):
            self._endpoints -= len(decisions.popitem(last=False)[1].fleet)

    def get(self, decision_id: str) -> Decision | None:
        """A decision by id, the newest for ``"last"``."""
        if decision_id == "last":
            return next(reversed(self._decisions.values()), None)
        return self._decisions.get(decision_id)


@dataclass(slots=True)
class Reading:
    """A request that has been read and is to be decided.

    Attributes:
        started_s: when it was there.
        parser: of its API, None for what passes through unread.
        parsed: in canonical form, None for what passes through and for what is refused.
        refusal: why it gets no decision, None when it does.
        counted: what its model's tokenizer says; None when the estimate has to do.
    """

    started_s: float
    parser: Parser | None
    parsed: ParsedRequest | None = None
    refusal: Refusal | None = None
    counted: CountedPrompt | None = None


class Decided(Struct, frozen=True):
    """A decision, the answer that tells Envoy of it, and how long the request is expected to take."""

    decision: Decision
    pick: Pick
    expected: Duration


class Core:
    """Decides requests and takes reports on them.

    Args:
        picker: decides.
        counter: counts prompt tokens.
        hasher: hashes prompts into blocks.
        regions: region rules.
        tenant_header: header that separates cache namespaces, none when empty.
        inject_usage: ask engines for the usage of event streams whose clients do not.
        tell_model: tell clients which model answers (`epp.server.retry`).
        metrics: counted into.
        recorder: decisions and outcomes go there.
        clock: the time.
        resolver: host names to what Envoy knows.
        protocol: options of the endpoint picker protocol.
        admission: refuses requests before they are read, nobody when None.
        tokenizers: count where a model has its own; the counter counts all when None.
        relays: the way to each region, where there are relays.
        observers: told of every decision; they take note and do no work.
        read_bodies: read them even where neither the policy nor the pool, nor a rule, asks what is in them.
    """

    def __init__(
        self,
        *,
        picker: Picker,
        counter: EstimateCounter,
        hasher: BlockHasher,
        regions: Sequence[RegionRule],
        tenant_header: str,
        inject_usage: bool = False,
        tell_model: bool = False,
        metrics: Metrics,
        recorder: Recorder,
        clock: Clock,
        resolver: Resolver,
        protocol: Protocol | None = None,
        admission: Admit | None = None,
        tokenizers: Tokenizers | None = None,
        relays: RelayPaths | None = None,
        observers: Sequence[Callable[[Decision], None]] = (),
        read_bodies: bool = True,
    ) -> None:
        self.picker = picker
        self._observers = observers
        self._bodies_wanted = read_bodies or inject_usage or any(rule.model for rule in regions)
        self._tokenizers = tokenizers
        self._admission = admission
        self._relays = relays
        self.gateway = Gateway(protocol or Protocol(), picker, resolver)
        self.resolver = resolver
        self.recent = RecentDecisions()
        self._counter, self._hasher = counter, hasher
        self._regions, self._tenant_header = regions, tenant_header.lower()
        self._inject_usage, self._tell_model = inject_usage, tell_model
        self._metrics, self._recorder, self._clock = metrics, recorder, clock
        self._schedule_seconds = metrics.histogram("llm_d_epp_scheduler_e2e_duration_seconds")
        self._decision_seconds = metrics.histogram("llm_d_epp_request_processing_duration_seconds")
        self.outcomes = Outcomes(
            picker=picker, metrics=metrics, recorder=recorder, clock=clock, resolver=resolver
        )

    def pick_at(self, request: HttpRequest) -> PickAt:
        """What the pick of a request waits for, by its headers."""
        if is_upgrade(request.method, request.headers):
            return PickAt.UPGRADE
        if find_parser(request.method, request.path, request.headers) is None:
            return PickAt.HEADERS
        return PickAt.BODY if self._reads_bodies() else PickAt.EITHER

    def _reads_bodies(self) -> bool:
        """Whether anyone asks what is in a body; the pool and its models may change at any time."""
        return bool(self._bodies_wanted or _OF_BODIES & self.picker.policy.needs or self.picker.names_models)

    def begin(self, request: HttpRequest) -> tuple[Reading, Count | None]:
        """Read a request; besides, what brings its tokens where its model has a tokenizer."""
        reading = self._read(request)
        if reading.parsed is None or self._tokenizers is None:
            return reading, None
        reading.parsed = self._tokenizers.with_first(reading.parsed)
        return reading, self._tokenizers.start(reading.parsed)

    async def read(self, request: HttpRequest) -> Reading:
        """Read a request and wait for its tokens where its model has a tokenizer, never beyond its budget."""
        reading, counting = self.begin(request)
        if counting is not None:
            reading.counted = await counting
        return reading

    def _read(self, request: HttpRequest) -> Reading:
        reading = Reading(self._clock.mono_s(), find_parser(request.method, request.path, request.headers))
        parser = reading.parser
        if self._admission is not None and (request.body is not None or not request.whole):
            reason = self._admission.refusal(request.headers, reading.started_s)
            if reason:
                reading.refusal = self._refuse(request, 429, reason, rule="saturated")
                return reading
        if parser is not None and (request.whole or request.body is not None):
            try:
                reading.parsed = parser.parse(request.body or b"", request.headers)
            except ClientError as error:
                if not request.whole:
                    return reading  # it was cut off on its way: what the engine gets may be in order
                reading.refusal = self._refuse(
                    request, error.status, error.message, rule="client", param=error.param
                )
        return reading

    def decide(self, request: HttpRequest, reading: Reading | None = None) -> Decided | Refusal:
        """Pick an endpoint for a request, or say why not.

        Args:
            request: the request.
            reading: what `read` gave; without it the request is read here and its tokens are estimated.
        """
        if reading is None:
            reading = self._read(request)
        if reading.refusal is not None:
            return reading.refusal
        started_s, model = reading.started_s, ""
        try:
            ask = self._ask(request, reading)
            model, asked_s = ask.model, self._clock.mono_s()
            decision = self.picker.pick(ask, asked_s, self._clock.wall_s())
        except ClientError as error:
            return self._refuse(request, error.status, error.message, rule="client", param=error.param)
        except NoEndpointError as error:
            if error.rule == "model":
                words = f"The model '{model}' does not exist or you do not have access to it."
                return self._refuse(request, 404, words, rule=error.rule, param="model", model=model)
            words = f"no endpoint available: {error.message}"
            return self._refuse(request, 503, words, rule=error.rule, model=model)
        decided_s = self._clock.mono_s()
        self._schedule_seconds.observe(decided_s - asked_s)
        self._decision_seconds.observe(decided_s - started_s)
        expected = foretell(decision.request, decision.fleet, decision.chosen)
        self._metrics.requests.decided(
            decision, expected, streamed=ask.stream, priority=self._priority(request)
        )
        self.recent.add(decision)
        self._recorder.decision(decision, ask)
        for observe in self._observers:
            observe(decision)
        pick = self.gateway.pick(decision, self._destination(decision), request)
        if self._relays is not None:
            pick = self._relays.through(pick, decision, ask.regions)
        if self._tell_model:
            pick = told(pick, decision)
        pick = rewritten(pick, request, decision, ask, inject_usage=self._inject_usage)
        return Decided(decision, pick, expected)

    def _destination(self, decision: Decision) -> str:
        """The pick and its fallbacks as Envoy knows them."""
        if not self.resolver.any_names:
            return decision.destination
        return ",".join(self.resolver.known_as(name) for name in decision.destination.split(","))

    def _ask(self, request: HttpRequest, reading: Reading) -> Ask:
        headers, parsed = request.headers, reading.parsed
        body_bytes = len(request.body or b"") if request.whole else announced_bytes(headers)
        if parsed is None:
            regions = self._allowed("", request)
            subset = self.gateway.subset(request)
            opaque = request.body is not None or not request.whole
            return Ask(body_bytes=body_bytes, regions=regions, subset=subset, opaque=opaque)
        tenant = headers.get(self._tenant_header, "") if self._tenant_header else ""
        prompt = self._hasher.measure(parsed, self._counter, tenant, reading.counted)
        export = self._hasher.export_name  # decisions are recorded: no client's word goes into one as it is
        key = affinity_key(parsed, prompt)
        return Ask(
            model=parsed.model,
            prompt=prompt,
            body_bytes=body_bytes,
            max_output_tokens=parsed.max_output_tokens,
            affinity_key=export(key) if key else "",
            session=export(parsed.session) if parsed.session else "",
            regions=self._allowed(parsed.model, request),
            subset=self.gateway.subset(request),
            api=parsed.api,
            stream=parsed.stream,
            text_bytes=len(parsed.canonical) if parsed.text_only else text_bytes(parsed.canonical),
            language=language_of(parsed.canonical),
            task=task_of(headers),
            tried_models=tried_models(headers),
            choices=parsed.choices,
        )

    def _priority(self, request: HttpRequest) -> int:
        return self._admission.priority(request.headers) if self._admission is not None else 0

    def _allowed(self, model: str, request: HttpRequest) -> frozenset[str] | None:
        if not self._regions:
            return None
        return allowed_regions(self._regions, model=model, path=request.path, headers=request.headers)

    def _refuse(
        self,
        request: HttpRequest,
        status: int,
        message: str,
        *,
        rule: str,
        param: str | None = None,
        model: str = "",
    ) -> Refusal:
        self._metrics.requests.refused(status, rule, model, self._priority(request))
        make = error_words(request.path) or openai_error  # also for what passes through unread
        return self.gateway.refusal(status, make(status, message, param), message, rule)

    def no_room(self, request: HttpRequest) -> Refusal:
        """The refusal of a request that finds no room beside all that are held."""
        words = "too many requests wait for their rest; try again"
        return self._refuse(request, 503, words, rule="held-bodies")

    def too_large(self, request: HttpRequest, limit_bytes: int) -> Refusal:
        """The refusal of a body over the limit, which nobody has read."""
        refusal = self.gateway.too_large(request, limit_bytes)
        self._metrics.requests.refused(refusal.status, refusal.details, priority=self._priority(request))
        return refusal

    def response_started(
        self, decision_id: str, status: int, served: str = "", retry_after: str = ""
    ) -> None:
        """Response headers came, of the endpoint ``served`` where the proxy tells it."""
        known = self.resolver.endpoint_of(served) if served else ""
        where = self.picker.response_started(decision_id, status, known)
        if where:
            self.outcomes.answered(decision_id, where, status, retry_after)
        else:
            self._metrics.value("epp_late_reports_total").inc()


def announced_bytes(headers: Mapping[str, str]) -> int:
    """The body's length as the headers tell it, 0 when they do not."""
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() and len(length) <= 18 else 0
