"""A request's way, from its bytes to the answer that sends it on or refuses it, in the API's own words.

`Director.direct` is the list of its steps; what an outcome then teaches is `epp.request.outcomes`' business.

Owns the endpoint picker protocol's options: the subset hint, scores, the words of refusals
(proposal 004; llm-d's error texts [E]), the headers that name the model that answers, and when a body is
rewritten: where the chosen engine has its own name for the model, or a streaming client does not ask for the
usage. Has no socket and no stream: an exchange runs it once per request.
"""

from __future__ import annotations

import asyncio
import logging
import re
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec.structs import replace

from epp.apis.canonical import exact_ids
from epp.apis.decode import invalid
from epp.apis.failure import MODEL_NOT_FOUND
from epp.apis.listed_models import ANTHROPIC_HEADER, anthropic_models, openai_models
from epp.apis.paths import SHUT_WORDS, OpenPaths
from epp.apis.registry import (
    anthropic_error,
    error_words,
    find_parser,
    is_upgrade,
    openai_error,
    task_of,
    tried_models,
)
from epp.apis.responses import RESPONSES
from epp.apis.rewrite import restorer, rewrite
from epp.config.federation import PEER_HEADER
from epp.config.relays import UNSERVED_HEADER
from epp.config.retries import BOUND_HEADER
from epp.errors import ClientError, NoEndpointError, NotAdmittedError
from epp.extproc.messages import ENDPOINT_HEADER
from epp.extproc.types import DecideAt, Destination, LocalReply
from epp.feeds.model_lists import ModelLists
from epp.feeds.resolve import Resolver
from epp.llmd.words import DROPPED_REASON, PLAIN_TEXT, dropped_reason, endpoint_scores, error_text
from epp.logs import REPEATED
from epp.metrics.metrics import models_of
from epp.policies.base import Need
from epp.request.disaggregation import STRIPPED, worker_headers
from epp.request.outcomes import EstimatedReservations, Outcomes
from epp.request.recent import PREVIEW, RecentDecisions
from epp.request.retries import Retries
from epp.schedule.decision import Decision
from epp.schedule.filters import allowed_regions
from epp.schedule.model_rules import REWRITE_HEADERS, ModelRules
from epp.schedule.subset import Entry, Subset, subset_hint
from epp.schedule.upstream_models import is_wrong, upstream_models
from epp.schedule.waiting import Wait
from epp.signals.stored_responses import key_of
from epp.types import MAX_MODEL_CHARS, RequestInfo, split_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.apis.types import ParsedRequest, TokenCount
    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.extproc.types import HttpRequest
    from epp.metrics.metrics import Metrics
    from epp.prefix_cache.blocks import BlockHasher
    from epp.records.recorder import FileRecorder
    from epp.regions.hop import Hop
    from epp.request.queueing import Queueing
    from epp.request.regions import Regions
    from epp.request.relays import RelayPaths
    from epp.request.tokenizers import Tokenizers
    from epp.request.tracing import Tracing
    from epp.schedule.admission import AdmissionController
    from epp.schedule.decision import Outcome
    from epp.schedule.scheduler import Scheduler
    from epp.tokens.estimate import EstimateCounter
    from epp.types import Endpoint

log = logging.getLogger(__name__)

#: What policies need that only bodies tell: a session may be named there, and falls back on the prompt.
_OF_BODIES = frozenset({Need.PROMPT, Need.SESSION})

#: Engines and logs name a request by this header; Envoy makes it unless told otherwise.
REQUEST_ID_HEADER = "x-request-id"
#: Response header: what the engine that answers calls its model. A client sends it back after a wrong answer,
#: to go on with another one (`epp.apis.registry`); nothing is kept between attempts.
SERVED_MODEL_HEADER = "x-epp-served-model"
#: Response header: how many models are left that are worth a further attempt (`Decision.untried_models`).
UNTRIED_HEADER = "x-epp-untried-models"
#: Response header: the rule of a refusal, where clients are told.
REFUSAL_HEADER = "x-epp-refusal"
#: Fields of the decision's metadata: `epp/envoy/restore_model.lua` acts on the first, Envoy fills
#: `SERVED_MODEL_HEADER` and `UNTRIED_HEADER` from the others (`epp.envoy.retry`).
PUBLIC_MODEL_KEY, SERVED_MODEL_KEY, UNTRIED_KEY = "model_public", "model_served", "models_untried"
#: Rules by which no region would serve a request, and statuses of those that are no lack of endpoints.
_CLIENTS_FAULT = frozenset({"client", "epp_body_too_large"})
_STATUS = {"saturated": 429, "room": 429, "hop": 403}
#: Marks the last request of a session; no other header is known that does.
_LAST_TURN_HEADER = "x-dynamo-session-final"
#: Retrieves, cancels or deletes a stored response.
_STORED_RESPONSE = re.compile(r"/v1/responses/(resp_[\w-]+)")
#: Lists models, or describes one; what is before it is a gateway's.
_MODELS = re.compile(r"(?:.*?)/v1/models(?:/+(?P<name>[^?]*[^?/]))?/*(?:\?.*)?")
#: What no header carries: Envoy writes it into the response as it is, where lines end and begin headers.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Director:
    """Decides requests and takes reports on them.

    Args:
        config: regions, headers, bodies and the options of the endpoint picker protocol.
        scheduler: decides.
        counter: counts prompt tokens.
        hasher: hashes prompts into blocks.
        metrics: counted into.
        recorder: decisions and outcomes go there, if anywhere.
        clock: the time.
        admission: lets requests in where there is no queue.
        queueing: lets them wait, None where they do not.
        tokenizers: count where a model has its own.
        relays: the way to each region, where there are relays.
        regions: of which requests of peer regions are believed, and which may go there; None without peers.
        tracing: makes spans, if anything does.
        observers: called with every decision; they take note and do no work.
        alone: the proxy asks no other process of this host.

    Attributes:
        resolver: host names to what Envoy knows.
        model_lists: asks engines for their models anew.
        tracing: as given.
    """

    def __init__(
        self,
        config: Config,
        *,
        scheduler: Scheduler,
        counter: EstimateCounter,
        hasher: BlockHasher,
        metrics: Metrics,
        recorder: FileRecorder | None,
        clock: Clock,
        admission: AdmissionController,
        queueing: Queueing | None,
        tokenizers: Tokenizers,
        relays: RelayPaths | None,
        regions: Regions | None,
        tracing: Tracing | None,
        observers: Sequence[Callable[[Decision], None]],
        alone: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self._observers = observers
        self._regions = regions
        self._max_body_bytes = config.request.max_body_bytes
        self.configure(config)
        self._model_rules = ModelRules()
        self.tokenizers = tokenizers
        self._headers_read, self._session_tokens = scheduler.headers_read, scheduler.session_tokens
        self._admission, self._priority = admission, admission.priority
        self._queueing, self._queue = queueing, config.queue
        self._relays, self.tracing = relays, tracing
        self.resolver = Resolver()
        self.model_lists = ModelLists()
        self.recent = RecentDecisions()
        self._counter, self._hasher = counter, hasher
        self._metrics, self._recorder, self._clock = metrics, recorder, clock
        self._decision_seconds = metrics.histogram("llm_d_epp_request_processing_duration_seconds")
        self.outcomes = Outcomes(
            scheduler=scheduler, metrics=metrics, recorder=recorder, clock=clock, resolver=self.resolver
        )
        self.leases = EstimatedReservations(scheduler, self.outcomes, clock)
        self.outcomes.on_outcome["core"] = self._ended
        self.outcomes.on_no_model["core"] = partial(self._refuse_model, certain=False)
        self._retries = Retries(
            self.outcomes,
            relayed=relays is not None,
            peers=() if regions is None else regions.peers,
            queued=queueing is not None,
            alone=alone,
        )

    def configure(self, config: Config) -> None:
        """Use a configuration's keys that may change while requests are served."""
        self._inject_usage = config.request.inject_usage == "always"
        self._lists = config.policy.fallbacks > 0
        self._rules, self._tenant_header = config.regions, config.request.tenant_header.lower()
        self._tell_model, self._protocol = config.capability.tell_model, config.protocol
        self._open_paths = OpenPaths(config.request.open_paths)
        self._tell_endpoint = config.request.tell_endpoint
        self._model_wait_s = config.request.model_wait_s
        self._bodies_wanted = (
            bool(config.records.folder) or self._inject_usage or any(rule.model for rule in config.regions)
        )

    def decide_at(self, request: HttpRequest) -> DecideAt:
        """Choose what the decision of a request waits for, by its headers."""
        if is_upgrade(request.method, request.headers):
            return DecideAt.UPGRADE
        parser = find_parser(request.method, request.path, request.headers)
        if parser is None:
            return DecideAt.HEADERS
        renames = not request.headers.keys().isdisjoint(REWRITE_HEADERS)
        return (
            DecideAt.BODY if renames or self._reads_bodies() or parser.name == RESPONSES else DecideAt.EITHER
        )

    def _reads_bodies(self) -> bool:
        """Whether anyone asks what is in a body; the pool and its models may change at any time."""
        scheduler = self.scheduler
        return bool(
            self._bodies_wanted
            or _OF_BODIES & scheduler.policy.needs
            or scheduler.filters.names_models
            or self._model_rules.names
        )

    def use_model_rules(self, rules: ModelRules) -> None:
        """Give requests another model by these rules from now on."""
        self._model_rules = rules
        self._metrics.requests.models.keep(rules.names)

    async def direct(self, request: HttpRequest, *, since_s: float) -> Destination | LocalReply:
        """Take a request from its bytes to the answer that sends it on, or that refuses it.

        Each step is a method of its name. Of these, the awaited ones may wait (`epp.schedule.waiting`);
        between locating and reserving nothing can come.

        Args:
            request: the request.
            since_s: when it was there.
        """
        if (reply := self._reply_alone(request)) is not None:
            return reply
        parsed, models, hop = None, ("", ""), None
        try:
            if (asked := self._retries.returned(request)) is None:
                parsed = self.rewrite(request, self.parse(request))
                await self._wait_for_model(parsed, request)
                asked, hop = self._describe(request, parsed, await self._count(parsed))
            models, parsed = models_of(asked), None
            deciding = self._decide(asked, request)
            del asked  # nothing of both is held while a request waits
            decision = await deciding
        except ClientError as error:
            return self._refuse(request, error.status, error.message, rule="client", param=error.param)
        except NotAdmittedError as error:
            return self._refuse(
                request, 429, str(error), rule=error.rule, models=models, retry_after_s=error.retry_after_s
            )
        except NoEndpointError as error:
            return self._refuse_by(request, error, models_of(parsed) if parsed else models)
        self._note(decision, since_s=since_s)
        pick = self._answer(request, decision, hop, since_s)
        self._retries.put_back_once(pick, request, decision, since_s)
        return pick

    async def _decide(self, asked: RequestInfo, request: HttpRequest) -> Decision:
        """Admit, locate, measure, schedule and reserve; waits where there is a queue and no room.

        Raises:
            NotAdmittedError: it found no room.
            NoEndpointError: nobody is eligible.
        """
        queueing = self._queueing_of(request)
        if queueing is not None and (asked.api or asked.opaque):
            found = queueing.decide(asked, request.headers, len(request.body or b""))
            del asked
            return found if isinstance(found, Decision) else await found
        began_s = self._clock.mono_s()
        await self._admission.admit(asked, began_s)
        decision = self.scheduler.decide(asked, began_s, self._clock.wall_s())
        self._metrics.requests.scheduled(decision, self._clock.mono_s() - began_s)
        return decision

    def _queueing_of(self, request: HttpRequest) -> Queueing | None:
        """Return what lets a request wait for room, None where it may not wait."""
        return None if request.full_duplex and not self._queue.full_duplex else self._queueing

    def _reply_alone(self, request: HttpRequest) -> LocalReply | None:
        """Answer what no engine is needed for: a path that is not open, a question for models."""
        if request.path not in self._open_paths:
            return self._refuse(request, 404, SHUT_WORDS, rule="path")
        if request.method == "GET" and (asked := _MODELS.fullmatch(request.path)):
            return self._models(request, unquote(asked["name"] or ""))
        return None

    def parse(self, request: HttpRequest) -> ParsedRequest | None:
        """Parse a request; None for what passes through unread.

        Raises:
            ClientError: it is none of its API.
        """
        parser = find_parser(request.method, request.path, request.headers)
        if parser is None or not (request.whole or request.body is not None):
            return None
        try:
            return parser.parse(request.body or b"", request.headers, self.tokenizers.rendering)
        except ClientError:
            if request.whole:
                raise
            return None  # it was cut off on its way: what the engine gets may be in order

    async def preview(self, request: HttpRequest) -> Decision:
        """Decide a request as `direct` would now, under the id `PREVIEW`; nothing is reserved or counted.

        Raises:
            ClientError: it would be refused, as for the two below.
            NotAdmittedError: likewise.
            NoEndpointError: likewise.
        """
        if request.path not in self._open_paths:
            raise ClientError(404, SHUT_WORDS)
        parsed = self.rewrite(request, self.parse(request), counts=False)
        asked, _ = self._describe(request, parsed, await self._count(parsed))
        now_s = self._clock.mono_s()
        await self._admission.admit(asked, now_s)
        asked = replace(asked, decision_id=PREVIEW)
        measured = self.scheduler.measure(asked, self.scheduler.locate(asked, now_s), now_s)
        return self.scheduler.schedule(measured, now_s, self._clock.wall_s())

    def rewrite(
        self, request: HttpRequest, parsed: ParsedRequest | None, *, counts: bool = True
    ) -> ParsedRequest | None:
        """Give a request its model: that of the rule for it, of its header, or the pool's only one.

        Args:
            request: the request.
            parsed: of it.
            counts: count what a rule rewrites.

        Raises:
            ClientError: it names no model, or too long a one.
        """
        if parsed is None or not (parsed.model or parsed.named):
            return parsed  # of an API whose requests need no model
        headers, model = request.headers, parsed.model
        header = next((name for name in REWRITE_HEADERS if headers.get(name)), "")
        target = headers.get(header, "")
        if len(target) > MAX_MODEL_CHARS:
            raise invalid(f"'{header}' must not be longer than {MAX_MODEL_CHARS} characters", header)
        if rule := self._model_rules.find(model):
            key = parsed.session or headers.get(REQUEST_ID_HEADER) or parsed.canonical.decode("latin-1")
            target = rule.target(key) or target
            if counts:
                self._metrics.requests.rewritten(rule.name, model, target or model)
        if target not in ("", model):
            return replace(self._as_model(request, parsed, target), rewritten_from=model)
        if model:
            return parsed
        only = self.scheduler.filters.only_model
        if only is None:
            raise ClientError(400, "you must provide a model parameter", "model")
        return self._as_model(request, parsed, only)

    async def _wait_for_model(self, parsed: ParsedRequest | None, request: HttpRequest) -> None:
        """Wait while engines are asked for a model that none is known to serve (`ModelLists.wait_for`).

        The proxy grants time once: it is asked for that of a wait for room, too.
        """
        if parsed is None or self.scheduler.filters.serves(parsed.model):
            return
        listed = self.model_lists.wait_for(parsed.model)
        if listed is not None:
            wait_s, held_bytes = self._model_wait_s, len(parsed.canonical)
            start = partial(asyncio.wait, (listed,), timeout=wait_s)
            longest_s = wait_s + (self._queue.longest_s if self._queueing_of(request) else 0.0)
            await Wait(start, listed.cancel, held_bytes=held_bytes, longest_s=longest_s)
            listed.cancel()

    async def _count(self, parsed: ParsedRequest | None) -> TokenCount | None:
        """Count a prompt's tokens by its model's tokenizer; None where the estimate has to do."""
        count = None if parsed is None else self.tokenizers.start(parsed)
        if parsed is None or count is None:
            return None
        return await Wait(count.result, count.cancel, held_bytes=len(parsed.canonical))

    def _describe(
        self, request: HttpRequest, parsed: ParsedRequest | None, counted: TokenCount | None
    ) -> tuple[RequestInfo, Hop | None]:
        """Describe a request to filters and policies, and say which hop it came by.

        Raises:
            NoEndpointError: it comes from a peer region that is not believed, or finds no room.
        """
        headers, hop = request.headers, None
        opaque = parsed is None and (request.body is not None or not request.whole)
        regions = None
        if self._rules:
            model = parsed.model if parsed is not None else None if opaque else ""
            regions = allowed_regions(self._rules, model=model, path=request.path, headers=headers)
        if self._regions is not None:
            regions, hop = self._regions.admit(request, regions)
        known: dict[str, Any] = {
            "body_bytes": len(request.body or b"") if request.whole else announced_bytes(headers),
            "regions": regions,
            "subset": self._subset(request),
            "priority": self._priority(headers),
            "headers": {name: headers[name] for name in self._headers_read if name in headers},
        }
        if hop is not None:
            known |= {"origin_region": hop.origin, "origin_decision": hop.decision_id}
        if parsed is None:
            about = _STORED_RESPONSE.search(request.path)
            known["previous_response"] = key_of(about[1]) if about else 0
            return RequestInfo(opaque=opaque, **known), hop
        known |= {"task": task_of(headers), "tried_models": tried_models(headers), "stores": parsed.stores}
        known["last_turn"] = headers.get(_LAST_TURN_HEADER) == "true"
        if parsed.previous_response:
            known["previous_response"] = key_of(parsed.previous_response)
        caches = self.scheduler.datastore.engine_caches
        if caches is not None and parsed.prompts == 1 and parsed.kept_tokens is None:
            ids = exact_ids(parsed.canonical) if counted is None else counted.ids
            known["engine_blocks"] = caches.hashed(parsed.model, ids, parsed.cache_salt)
        tenant = headers.get(self._tenant_header, "") if self._tenant_header else ""
        return self._hasher.measure(parsed, self._counter, tenant, counted, **known), hop

    def _note(self, decision: Decision, *, since_s: float) -> None:
        """Let metrics, records and observers have a decision."""
        waited_s = decision.wait.waited_s if decision.wait else 0.0  # also before it came back
        self._decision_seconds.observe(max(self._clock.mono_s() - since_s - waited_s, 0.0))
        self._metrics.requests.decided(decision)
        self.leases.decided(decision)
        self.recent.add(decision)
        if self._recorder is not None:
            self._recorder.record(decision)
        for observe in self._observers:
            observe(decision)

    def _as_model(self, request: HttpRequest, parsed: ParsedRequest, model: str) -> ParsedRequest:
        """Return a request as one for another model than its body says."""
        rendering = self.tokenizers.rendering(model)
        if rendering != parsed.rendering:
            parser = find_parser(request.method, request.path, request.headers)
            if parser is not None:  # who was parsed has one
                parsed = parser.parse(request.body or b"", request.headers, lambda _: rendering)
        return replace(parsed, model=model)

    def _models(self, request: HttpRequest, name: str) -> LocalReply | None:
        """Answer who asks what the pool serves, or of a model by name; None while no names are known."""
        subset = self._subset(request)

        def may_serve(endpoint: Endpoint, model: str) -> bool:
            allowed = allowed_regions(self._rules, model=model, path=request.path, headers=request.headers)
            if subset is not None and endpoint.address not in subset:
                return False
            return allowed is None or endpoint.region in allowed

        models = upstream_models(self.scheduler.datastore, self._model_rules, may_serve)
        if models is None:
            return None
        if name and name not in models:
            return self._refuse(request, 404, _no_model(name), rule="model", param="model")
        write = anthropic_models if ANTHROPIC_HEADER in request.headers else openai_models
        return LocalReply(200, write(models, name), details="models")

    def _refuse_model(self, decision_id: str, where: str, *, certain: bool) -> None:
        """Take a request's model from an endpoint whose engine does not know it, until it lists it.

        Where it only answered 404, which may be of the path as well, its next list decides.
        """
        decision = self.recent.get(decision_id)
        if decision is None or not decision.upstream_model or where not in self.model_lists.engines:
            return
        if self.scheduler.filters.refuse(where, decision.upstream_model, certain=certain):
            self.model_lists.want()
            if certain:
                self._metrics.endpoint_event(where, "model-refused")

    def _compare_models(self, outcome: Outcome, asked: str) -> None:
        """Count an answer by another model than the one asked for."""
        datastore, where, answered = self.scheduler.datastore, outcome.where, outcome.model
        known = datastore.member(where)
        if (
            asked
            and known is not None
            and is_wrong(known[1], datastore.listed_models(known[0]), asked, answered)
        ):
            self._metrics.endpoint_event(where, "wrong-model")
            words = "endpoint %s answered a request for model %r by model %r"
            log.warning(words, where, asked, answered, extra=REPEATED)

    def _ended(self, outcome: Outcome) -> None:
        self.recent.ended(outcome, self._clock.wall_s())
        if outcome.model and (decision := self.recent.get(outcome.id)) is not None:
            self._compare_models(outcome, decision.request.model)
        if outcome.failure is not None and outcome.failure.code == MODEL_NOT_FOUND:
            self._refuse_model(outcome.id, outcome.where, certain=True)

    def _answer(
        self, request: HttpRequest, decision: Decision, hop: Hop | None, since_s: float
    ) -> Destination:
        """Build the answer that carries a decision.

        Args:
            request: the request.
            decision: of it.
            hop: by which it came from a peer region.
            since_s: when it was there.
        """
        pick = self._destination(request, decision)
        if self._regions is not None:
            self._regions.set_hop(pick, request, decision, hop)
        if self.tracing is not None and (parent := self.tracing.picked(request.headers, decision, since_s)):
            pick.set_headers["traceparent"] = parent
        return pick

    def _destination(self, request: HttpRequest, decision: Decision) -> Destination:
        """Name the endpoints of a decision as Envoy knows them, and what changes on the way there."""
        protocol, resolver, others = self._protocol, self.resolver, dict[str, str]()
        if resolver.any_aliases and protocol.subset_hint:
            others = self._other_addresses(request)
        self.outcomes.retry_budget.request(self._clock.mono_s())
        allowed = self._retries.headers(decision)
        endpoints = self._destinations(request, decision, last_resort=self._lists and not allowed)
        if decision.bound:
            allowed[BOUND_HEADER] = "true"
        if resolver.renames:
            endpoints = [resolver.known_as(name) for name in endpoints]
        if others:
            endpoints = [others.get(address, address) for address in endpoints]
        pick = Destination(",".join(endpoints), decision.id, proxy_headers=allowed)
        for header, address in self.scheduler.told_endpoints(decision).items():
            pick.set_headers[header] = resolver.known_as(address)
        if self.scheduler.filters.has_roles or self.scheduler.filters.has_ranks:
            pick.set_headers |= worker_headers(decision, resolver.known_as)
            pick.remove_headers = (STRIPPED & request.headers.keys()) - pick.set_headers.keys()
        if not request.headers.get(REQUEST_ID_HEADER):
            pick.set_headers[REQUEST_ID_HEADER] = decision.id
        if protocol.emit_scores:
            known = map(resolver.known_as, decision.snapshot.endpoints)
            names = [others.get(address, address) for address in known]
            pick.scores = endpoint_scores(names, decision.ranking, decision.policy, decision.weights)
        if self._session_tokens:
            token = b64encode(decision.endpoint.encode()).decode()
            pick.response_headers |= dict.fromkeys(self._session_tokens, token)
        if self._relays is not None:
            self._relays.set_path(pick, decision)
        if self._tell_model:
            set_models(pick, decision)
        if self._tell_endpoint:
            pick.response_headers[ENDPOINT_HEADER] = endpoints[0]
        rewrite_bodies(pick, request, decision, inject_usage=self._inject_usage)
        return pick

    def _subset(self, request: HttpRequest) -> tuple[str, ...] | None:
        """List the endpoints of the pool that the gateway's hint allows, None without one."""
        hint = subset_hint(request.metadata) if self._protocol.subset_hint else None
        return None if hint is None else self.scheduler.filters.addresses(self._understood(hint))

    def _destinations(self, request: HttpRequest, decision: Decision, *, last_resort: bool) -> Sequence[str]:  # noqa: ARG002
        """List the chosen endpoint and its fallbacks, where asked for those of last resort behind them."""
        endpoints = decision.destination.split(",")
        return [*endpoints, *self._retries.last_resort(decision)] if last_resort else endpoints

    def _other_addresses(self, request: HttpRequest) -> dict[str, str]:
        """Map endpoints that the hint lists by a further address alone to it: the gateway knows no other."""
        hint = subset_hint(request.metadata)
        if hint is None:
            return {}
        others = self.resolver.aliases_in(hint)
        own = {split_rank(name)[0] for name in self.scheduler.filters.addresses(hint)}
        return {address: other for address, other in others.items() if address not in own}

    def _understood(self, subset: Subset) -> Subset:
        """Add our endpoints that a subset lists by what their names resolve to, or by another address."""
        resolver, names = self.resolver, list[str]()
        if resolver.renames:
            names += [name for entry in subset.entries for name in resolver.names_of(entry.host, entry.port)]
        if resolver.any_aliases:
            names += resolver.aliases_in(subset)
        return Subset((*subset.entries, *map(Entry.of, names))) if names else subset

    def _refuse_by(self, request: HttpRequest, error: NoEndpointError, models: tuple[str, str]) -> LocalReply:
        """Refuse a request that no endpoint may serve."""
        rule = error.rule
        if rule == "model":
            return self._refuse(request, 404, _no_model(models[0]), rule=rule, param="model", models=models)
        words = f"no endpoint available: {error.message}"
        return self._refuse(request, _STATUS.get(rule, 503), words, rule=rule, models=models)

    def _refuse(
        self,
        request: HttpRequest,
        status: int,
        message: str,
        *,
        rule: str,
        param: str | None = None,
        models: tuple[str, str] = ("", ""),
        retry_after_s: int = 0,
    ) -> LocalReply:
        self._metrics.requests.refused(status, rule, models, self._priority(request.headers))
        if self.tracing is not None:
            self.tracing.refused(request.headers, status, rule)
        usual = anthropic_error if ANTHROPIC_HEADER in request.headers else openai_error
        make = error_words(request.path) or usual  # also for what passes through unread
        reason = dropped_reason(status, rule)
        headers = {DROPPED_REASON: reason} if reason else {}
        if retry_after_s:
            headers["retry-after"] = str(retry_after_s)
        if self._tell_endpoint:
            headers[REFUSAL_HEADER] = rule
        if self._regions is not None and PEER_HEADER in request.headers and rule not in _CLIENTS_FAULT:
            headers[UNSERVED_HEADER] = "true"
        if self._protocol.errors == "api":
            return LocalReply(status, make(status, message, param), headers=headers, details=rule)
        return LocalReply(status, error_text(status, message, rule), PLAIN_TEXT, headers, rule)

    def refuse_unread(self, request: HttpRequest, status: int) -> LocalReply:
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
        known = self.resolver.endpoint_of(served, self.scheduler.chosen_for(decision_id)) if served else ""
        where = self.scheduler.response_started(decision_id, status, known)
        if where:
            self.outcomes.answered(decision_id, where, status, retry_after)
        else:
            self.outcomes.count_late_report(decision_id)


def _no_model(name: str) -> str:
    return f"The model '{name}' does not exist or you do not have access to it."


def announced_bytes(headers: Mapping[str, str]) -> int:
    """Read the body's length from the headers, 0 when they do not say."""
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() and len(length) <= 18 else 0


def set_models(pick: Destination, decision: Decision) -> None:
    """Name the model that answers, and how many are left to try; not where the request names none.

    A pool that names no models serves any, by the name that the client writes: one that would be more than
    a header's value is left out.
    """
    model = decision.upstream_model
    if not model or _CONTROL.search(model):
        return
    untried = str(len(decision.untried_models))
    pick.metadata |= {SERVED_MODEL_KEY: model, UNTRIED_KEY: untried}
    pick.response_headers |= {SERVED_MODEL_HEADER: model, UNTRIED_HEADER: untried}


#: APIs with ``stream_options.include_usage``; the others tell the usage of event streams unasked.
USAGE_APIS = frozenset({"openai-chat", "openai-completions"})


def rewrite_bodies(
    pick: Destination, request: HttpRequest, decision: Decision, *, inject_usage: bool = False
) -> None:
    """Let a decision carry the body that its engine understands.

    With another model name the answer must come uncompressed, so that the public name can be put back.

    Args:
        pick: the destination; changed.
        request: as it came.
        decision: what was decided of it.
        inject_usage: ask for the usage of event streams.
    """
    info, served = decision.request, decision.upstream_model
    public = info.model if info.rewritten_from is None else info.rewritten_from
    renamed = bool(info.model) and served != public
    usage = inject_usage and info.stream and info.api in USAGE_APIS
    if not request.body or not (renamed or usage):
        return
    try:
        pick.body = rewrite(request.body, model=served if renamed else None, include_usage=usage)
    except ClientError:
        return  # bytes that are no text, where no parser of ours looks: the engine refuses them
    if renamed and public:
        if "accept-encoding" in request.headers:
            pick.set_headers["accept-encoding"] = "identity"
        pick.metadata |= {PUBLIC_MODEL_KEY: public, SERVED_MODEL_KEY: served}
        pick.rewrite_response = partial(restorer, public)
