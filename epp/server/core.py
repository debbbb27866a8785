"""From an HTTP request to a pick or a refusal: parse, measure, decide, in the API's own words.

Owns no socket and no stream: the gRPC servicer calls it once per request, the tests call it directly.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.apis.registry import error_words, find_parser, is_upgrade, openai_error
from epp.apis.tried import task_of, tried_models
from epp.errors import ClientError, NoEndpointError
from epp.extproc.types import PickAt, Refusal
from epp.policies.base import Need
from epp.schedule.filters import allowed_regions
from epp.server.gateway import Gateway, rewrite_bodies, set_models
from epp.server.outcomes import Outcomes
from epp.server.response_sampling import EstimatedLeases
from epp.signals.duration import predict_duration
from epp.types import RequestInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.apis.types import ParsedRequest, TokenCount
    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.extproc.types import HttpRequest, Pick
    from epp.prefix_cache.blocks import BlockHasher
    from epp.records.recorder import FileRecorder
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.schedule.saturation import Shedding
    from epp.server.metrics import Metrics
    from epp.server.relays import RelayPaths
    from epp.server.resolve import Resolver
    from epp.server.tokenizers import Count, Tokenizers
    from epp.tokens.estimate import EstimateCounter

#: Newest decisions that are remembered, and the memory of their endpoints and blocks together.
RECENT_DECISIONS, RECENT_BYTES = 1000, 16_000_000
_ENDPOINT_BYTES, _BLOCK_BYTES = 250, 40
#: What policies need that only bodies tell: a session may be named there, and falls back on the prompt.
_OF_BODIES = frozenset({Need.PROMPT, Need.SESSION})


class RecentDecisions:
    """The newest decisions, for `epp explain` against a running picker; those before are in the records.

    Args:
        size: decisions at most.
        max_bytes: memory that they take, about; the newest stays however large it is.
    """

    def __init__(self, size: int = RECENT_DECISIONS, max_bytes: int = RECENT_BYTES) -> None:
        self._size, self._max_bytes = size, max_bytes
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._bytes = 0

    def add(self, decision: Decision) -> None:
        """Remember a decision, forget the oldest."""
        decisions = self._decisions
        decisions[decision.id] = decision
        self._bytes += _bytes_of(decision)
        while len(decisions) > self._size or (self._bytes > self._max_bytes and len(decisions) > 1):
            self._bytes -= _bytes_of(decisions.popitem(last=False)[1])

    def get(self, decision_id: str) -> Decision | None:
        """Return a decision by id, the newest for ``"last"``."""
        if decision_id == "last":
            return next(reversed(self._decisions.values()), None)
        return self._decisions.get(decision_id)


def _bytes_of(decision: Decision) -> int:
    return _ENDPOINT_BYTES * len(decision.fleet) + _BLOCK_BYTES * len(decision.request.blocks)


class Core:
    """Decides requests and takes reports on them.

    Args:
        config: regions, headers, bodies and the options of the endpoint picker protocol.
        picker: decides.
        counter: counts prompt tokens.
        hasher: hashes prompts into blocks.
        metrics: counted into.
        recorder: decisions and outcomes go there, if anywhere.
        clock: the time.
        resolver: host names to what Envoy knows.
        admission: refuses requests before they are read, nobody when None.
        tokenizers: count where a model has its own; the counter counts all when None.
        relays: the way to each region, where there are relays.
        observers: called with every decision; they take note and do no work.
    """

    def __init__(
        self,
        config: Config,
        *,
        picker: Picker,
        counter: EstimateCounter,
        hasher: BlockHasher,
        metrics: Metrics,
        recorder: FileRecorder | None,
        clock: Clock,
        resolver: Resolver,
        admission: Shedding | None = None,
        tokenizers: Tokenizers | None = None,
        relays: RelayPaths | None = None,
        observers: Sequence[Callable[[Decision], None]] = (),
    ) -> None:
        self.picker = picker
        self._observers = observers
        asked = config.request
        self._inject_usage, self._max_body_bytes = asked.inject_usage == "always", asked.max_body_bytes
        self._regions, self._tenant_header = config.regions, asked.tenant_header.lower()
        self._tell_model = config.capability.tell_model
        self._bodies_wanted = (
            bool(config.records.folder) or self._inject_usage or any(rule.model for rule in config.regions)
        )
        self._tokenizers = tokenizers
        self._admission = admission
        self._relays = relays
        self.gateway = Gateway(config.protocol, picker, resolver)
        self.resolver = resolver
        self.recent = RecentDecisions()
        self._counter, self._hasher = counter, hasher
        self._metrics, self._recorder, self._clock = metrics, recorder, clock
        self._schedule_seconds = metrics.histogram("llm_d_epp_scheduler_e2e_duration_seconds")
        self._decision_seconds = metrics.histogram("llm_d_epp_request_processing_duration_seconds")
        self.outcomes = Outcomes(
            picker=picker, metrics=metrics, recorder=recorder, clock=clock, resolver=resolver
        )
        self.leases = EstimatedLeases(picker, self.outcomes, clock)

    def pick_at(self, request: HttpRequest) -> PickAt:
        """Choose what the pick of a request waits for, by its headers."""
        if is_upgrade(request.method, request.headers):
            return PickAt.UPGRADE
        if find_parser(request.method, request.path, request.headers) is None:
            return PickAt.HEADERS
        return PickAt.BODY if self._reads_bodies() else PickAt.EITHER

    def _reads_bodies(self) -> bool:
        """Whether anyone asks what is in a body; the pool and its models may change at any time."""
        return bool(
            self._bodies_wanted or _OF_BODIES & self.picker.policy.needs or self.picker.filters.names_models
        )

    def read(self, request: HttpRequest) -> ParsedRequest | Refusal | None:
        """Parse a request; None for what passes through unread, a refusal for what gets no decision."""
        parser = find_parser(request.method, request.path, request.headers)
        if self._admission is not None and (request.body is not None or not request.whole):
            reason = self._admission.refusal(request.headers, self._clock.mono_s())
            if reason:
                return self._refuse(request, 429, reason, rule="saturated")
        if parser is None or not (request.whole or request.body is not None):
            return None
        try:
            parsed = parser.parse(request.body or b"", request.headers)
        except ClientError as error:
            if not request.whole:
                return None  # it was cut off on its way: what the engine gets may be in order
            return self._refuse(request, error.status, error.message, rule="client", param=error.param)
        return parsed if self._tokenizers is None else self._tokenizers.with_first(parsed)

    def count(self, parsed: ParsedRequest) -> Count | None:
        """Begin to count a prompt's tokens; None where its model has no tokenizer."""
        return None if self._tokenizers is None else self._tokenizers.start(parsed)

    def decide(
        self,
        request: HttpRequest,
        parsed: ParsedRequest | Refusal | None,
        counted: TokenCount | None = None,
        *,
        since_s: float,
    ) -> Pick | Refusal:
        """Pick an endpoint for a request, or say why not.

        Args:
            request: the request.
            parsed: what `read` made of it.
            counted: what its model's tokenizer says; None when the estimate has to do.
            since_s: when it was there.
        """
        if isinstance(parsed, Refusal):
            return parsed
        try:
            asked = self._info(request, parsed, counted)
            asked_s = self._clock.mono_s()
            decision = self.picker.pick(asked, asked_s, self._clock.wall_s())
        except ClientError as error:
            return self._refuse(request, error.status, error.message, rule="client", param=error.param)
        except NoEndpointError as error:
            model = "" if parsed is None else parsed.model
            if error.rule == "model":
                words = f"The model '{model}' does not exist or you do not have access to it."
                return self._refuse(request, 404, words, rule=error.rule, param="model", model=model)
            words = f"no endpoint available: {error.message}"
            return self._refuse(request, 503, words, rule=error.rule, model=model)
        decided_s = self._clock.mono_s()
        self._schedule_seconds.observe(decided_s - asked_s)
        self._decision_seconds.observe(decided_s - since_s)
        expected = predict_duration(decision.request, decision.fleet, decision.chosen)
        self._metrics.requests.decided(decision, expected, priority=self._priority(request))
        self.leases.decided(decision, expected)
        self.recent.add(decision)
        if self._recorder is not None:
            self._recorder.decision(decision)
        for observe in self._observers:
            observe(decision)
        return self._pick(request, decision)

    def _pick(self, request: HttpRequest, decision: Decision) -> Pick:
        """Build the answer that carries a decision."""
        pick = self.gateway.pick(decision, self._destination(decision), request)
        if self._relays is not None:
            self._relays.set_path(pick, decision)
        if self._tell_model:
            set_models(pick, decision)
        rewrite_bodies(pick, request, decision, inject_usage=self._inject_usage)
        return pick

    def _destination(self, decision: Decision) -> str:
        """Name the pick and its fallbacks as Envoy knows them."""
        if not self.resolver.any_names:
            return decision.destination
        return ",".join(self.resolver.known_as(name) for name in decision.destination.split(","))

    def _info(
        self, request: HttpRequest, parsed: ParsedRequest | None, counted: TokenCount | None
    ) -> RequestInfo:
        """Describe a request to filters and policies."""
        headers = request.headers
        body_bytes = len(request.body or b"") if request.whole else announced_bytes(headers)
        regions = None
        if self._regions:
            model = "" if parsed is None else parsed.model
            regions = allowed_regions(self._regions, model=model, path=request.path, headers=headers)
        subset = self.gateway.subset(request)
        if parsed is None:
            opaque = request.body is not None or not request.whole
            return RequestInfo(body_bytes=body_bytes, regions=regions, subset=subset, opaque=opaque)
        tenant = headers.get(self._tenant_header, "") if self._tenant_header else ""
        return replace(
            self._hasher.measure(parsed, self._counter, tenant, counted),
            body_bytes=body_bytes,
            regions=regions,
            subset=subset,
            task=task_of(headers),
            tried_models=tried_models(headers),
        )

    def _priority(self, request: HttpRequest) -> int:
        return self._admission.priority(request.headers) if self._admission is not None else 0

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

    def refuse_unread(self, request: HttpRequest, status: int) -> Refusal:
        """Refuse a request that nobody has read: 413 for its length, 503 for want of room."""
        if status == 413:
            words = f"request body is larger than {self._max_body_bytes} bytes"
            return self._refuse(request, status, words, rule="epp_body_too_large")
        words = "too many requests wait for their rest; try again"
        return self._refuse(request, status, words, rule="held-bodies")

    def response_started(
        self, decision_id: str, status: int, served: str = "", retry_after: str = ""
    ) -> None:
        """Take response headers, of the endpoint ``served`` where the proxy names it."""
        known = self.resolver.endpoint_of(served) if served else ""
        where = self.picker.response_started(decision_id, status, known)
        if where:
            self.outcomes.answered(decision_id, where, status, retry_after)
        else:
            self.outcomes.late(decision_id)


def announced_bytes(headers: Mapping[str, str]) -> int:
    """Read the body's length from the headers, 0 when they do not say."""
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() and len(length) <= 18 else 0
