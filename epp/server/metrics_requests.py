"""What is counted of each request: llm-d's names where the meaning is the same, ours for what is new.

Owns the metrics of requests and what must be remembered of an open one to count its end. The hot path is two
calls, `decided` and `finished`, each one dictionary look-up and a handful of list increments.

Labels: llm-d's four (R) are ``model_name``, ``target_model_name``, ``fairness_id`` and ``priority``. Names of
models come from clients: those that the pool serves become labels, and so do the first
`MAX_STRANGE_MODELS` of the others, as one model has some 400 series; the rest are ``other``. Priorities
are those of InferenceObjectives, of which the first `MAX_PRIORITIES` become labels; endpoints
are addresses of the pool, and their series go when they go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.address import split_address
from epp.decide.records import Source
from epp.llmd.words import CODE_NAMES
from epp.server.metrics_hot import Capped, Counters, Gauges, Histograms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.decide.records import Basis, Decision, Outcome
    from epp.server.metrics_hot import Family, Histogram, Value
    from epp.signals.duration import Duration

MAX_STRANGE_MODELS = 20
MAX_PRIORITIES = 16
#: What llm-d says where a request names neither.
FAIRNESS_ID, PRIORITY = "default-flow", "0"
#: Endpoint of an outcome that came after its endpoint had left.
GONE = "gone"

R = ("model_name", "target_model_name", "fairness_id", "priority")

# Buckets as llm-d has them (source [E]), the token typo put right.
DURATION_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
    120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
TTFT_S = DURATION_S[: DURATION_S.index(120) + 1]
TOKEN_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.6, 0.8, 1, 1.5, 2,
)  # fmt: skip
PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
INPUT_TOKENS = (1, *(8 << power for power in range(18)))
OUTPUT_TOKENS = (1, *(8 << power for power in range(11)))
REQUEST_BYTES = tuple(64 << power for power in range(25))
RATIO = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

ERROR_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
TTFT_RATIO = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 10)
TIED = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)

#: llm-d's times begin where its picker receives a request, which is just after it came to Envoy.
_SINCE = "From its arrival at Envoy, or from the decision where Envoy tells no times,"

#: Ways of ending that are errors though the status, if any, was good.
_BROKEN = {
    "upstream-reset": "UpstreamReset",
    "unreachable": "Unreachable",
    "timed-out": "TimedOut",
    "protocol-error": "ProtocolError",
}


class _Route:
    """Children of one model's labels, at one priority."""

    __slots__ = (
        "_families", "_labels", "attempts", "cached", "duration", "errors", "input", "itl", "ntpot",
        "output", "plain_ttft", "running", "size", "streamed_ttft", "total", "tpot",
    )  # fmt: skip

    def __init__(self, families: RequestMetrics, model: str, priority: str) -> None:
        labels = self._labels = (model, model, FAIRNESS_ID, priority)
        self._families = families
        self.total: Value = families.total.child(*labels)
        self.running: Value = families.running.child(*labels)
        self.size: Histogram = families.size.child(*labels)
        self.duration: Histogram = families.duration.child(*labels)
        self.input: Histogram = families.input.child(*labels)
        self.output: Histogram = families.output.child(*labels)
        self.cached: Histogram = families.cached.child(*labels)
        self.streamed_ttft: Histogram = families.ttft.child(*labels, "true")
        self.plain_ttft: Histogram = families.ttft.child(*labels, "false")
        self.ntpot: Histogram = families.ntpot.child(*labels)
        self.tpot: Histogram = families.tpot.child(*labels)
        self.itl: Histogram = families.itl.child(*labels)
        self.errors: dict[str, Value] = {}
        self.attempts: dict[str, Value] = {}

    def error(self, code: str) -> None:
        child = self.errors.get(code)
        if child is None:
            child = self.errors[code] = self._families.errors.child(*self._labels, code)
        child.inc()

    def attempt(self, endpoint: str) -> None:
        child = self.attempts.get(endpoint)
        if child is None:
            host, port = _parts(endpoint)
            child = self._families.attempts.child("success", self._labels[1], host, "", port)
            self.attempts[endpoint] = child
        child.inc()


@dataclass(slots=True)
class _Open:
    route: _Route
    endpoint: str
    streamed: bool
    prompt_tokens: int
    cached_tokens: float
    ttft_ms: float


class RequestMetrics:
    """The families of requests, and the requests that are open."""

    def __init__(self) -> None:
        self._llm_d_families()
        self._own_families()
        #: Models that are labels.
        self.models = Capped(MAX_STRANGE_MODELS)
        self._cap_priority = Capped(MAX_PRIORITIES)
        self._routes: dict[tuple[str, int | str], _Route] = {}
        self._decisions: dict[tuple[str, Basis], Value] = {}
        self._outcomes: dict[str, dict[tuple[str, int | None], Value]] = {GONE: {}}
        self._open: dict[str, _Open] = {}
        hit = self.hit_ratio.child("prefix-index", "prefix-index")
        self._hit, self._tied = hit, self.tied.child()
        self._shares = [self.cache_tokens.child(kind) for kind in ("prompt", "believed", "reported")]
        self._usage = [self.usage.child(known) for known in ("cached_tokens", "tokens", "nothing", "refused")]
        self._too_few = self.uncached_error.child("too_few")
        self._too_many = self.uncached_error.child("too_many")
        self._ttft_ratio, self._ttft_error = self.ttft_ratio.child(), self.ttft_error.child()

    def _llm_d_families(self) -> None:
        name = "llm_d_epp_request_{}".format
        self.total = Counters(name("total"), "Requests, refused ones included.", R)
        self.errors = Counters(name("error_total"), "Requests that failed, by error.", (*R, "error_code"))
        self.running = Gauges(name("running"), "Requests decided and not ended.", R)
        self.size = Histograms(name("size_bytes"), "Bytes of the request body.", REQUEST_BYTES, R)
        self.duration = Histograms(
            name("duration_seconds"),
            f"{_SINCE} to the request's end.",
            DURATION_S,
            R,
        )
        self.ttft = Histograms(
            name("ttft_seconds"), f"{_SINCE} to the first token.", TTFT_S, (*R, "streaming")
        )
        self.input = Histograms(
            name("input_tokens"),
            "Prompt tokens: the engine's count, where it tells none the picker's.",
            INPUT_TOKENS,
            R,
        )
        self.output = Histograms(name("output_tokens"), "Answer tokens, where told.", OUTPUT_TOKENS, R)
        self.cached = Histograms(
            name("cached_tokens"), "Prompt tokens that the engine says it had cached.", INPUT_TOKENS, R
        )
        self.ntpot = Histograms(
            name("ntpot_seconds"), "Duration per answer token, prefill included.", PER_TOKEN_S, R
        )
        self.tpot = Histograms(
            name("streaming_tpot_seconds"), "Time per answer token after the first.", TOKEN_S, R
        )
        self.itl = Histograms(
            name("streaming_itl_seconds"),
            "Mean time between the tokens of a streamed answer, one observation a request.",
            TOKEN_S,
            R,
        )
        self.attempts = Counters(
            "llm_d_epp_scheduler_attempts_total",
            "Requests scheduled, by the endpoint picked.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        )
        self.hit_ratio = Histograms(
            "llm_d_epp_prefix_indexer_hit_ratio",
            "Share of the prompt that the prefix index expects in the cache of the endpoint picked.",
            RATIO,
            ("plugin_name", "plugin_type"),
        )

    def _own_families(self) -> None:
        self.decisions = Counters(
            "epp_decisions_total",
            "Requests given an endpoint, by policy and by what the decision rests on.",
            ("policy", "basis"),
        )
        self.outcomes = Counters(
            "epp_outcomes_total",
            "Requests ended, by endpoint, cause and class of the status.",
            ("endpoint", "cause", "status"),
        )
        self.tied = Histograms(
            "epp_tied_endpoints", "Endpoints so equal in cost that the draw chose among them.", TIED
        )
        self.usage = Counters(
            "epp_usage_total",
            "Requests ended, by what the engine told of their tokens; refused counts were below 0 or above "
            "the model's context.",
            ("known",),
        )
        self.cache_tokens = Counters(
            "epp_cache_tokens_total",
            "Over requests with cached tokens told: prompt tokens, those believed cached, those reported so.",
            ("kind",),
        )
        self.uncached_error = Histograms(
            "epp_uncached_prediction_error_tokens",
            "Uncached tokens expected against reported, by the direction of the error; none is too_many 0.",
            ERROR_TOKENS,
            ("direction",),
        )
        self.ttft_ratio = Histograms(
            "epp_ttft_prediction_ratio",
            "TTFT seen over the TTFT foretold from round trip, uncached tokens ahead and learned rates.",
            TTFT_RATIO,
        )
        self.ttft_error = Histograms(
            "epp_ttft_prediction_error_seconds", "TTFT foretold against seen, without sign.", TTFT_S
        )

    def families(self) -> Iterator[Family[Value] | Family[Histogram]]:
        """All of them, in the order in which they are shown."""
        yield from (self.total, self.errors, self.running, self.size, self.duration, self.ttft, self.input)
        yield from (self.output, self.cached, self.ntpot, self.tpot, self.itl, self.attempts, self.hit_ratio)
        yield from (self.decisions, self.outcomes, self.tied, self.usage, self.cache_tokens)
        yield from (self.uncached_error, self.ttft_ratio, self.ttft_error)

    @property
    def open(self) -> int:
        """Requests decided and not finished."""
        return len(self._open)

    def decided(self, decision: Decision, expected: Duration, *, streamed: bool, priority: int = 0) -> None:
        """A request was given an endpoint, from which so much is expected."""
        request, fleet, chosen = decision.request, decision.fleet, decision.chosen
        route = self._routes.get((request.model, priority)) or self._route(request.model, priority)
        key = (decision.policy, decision.basis)
        counted = self._decisions.get(key)
        if counted is None:
            counted = self._decisions[key] = self.decisions.child(decision.policy, decision.basis.value)
        endpoint = fleet.endpoints[chosen]
        counted.value += 1.0
        route.total.value += 1.0
        route.running.value += 1.0
        route.attempt(endpoint)
        route.size.observe(request.body_bytes)
        self._tied.observe(decision.tied)
        tokens, cached = request.prompt_tokens, fleet.cached_tokens.item(chosen)
        if tokens:
            self._hit.observe(cached / tokens)
        if endpoint not in self._outcomes:
            self._outcomes[endpoint] = {}
        ttft_ms = expected.first_token_s * 1e3 if tokens else math.nan
        self._open[decision.id] = _Open(route, endpoint, streamed, tokens, cached, ttft_ms)

    def refused(self, model: str, status: int, priority: int = 0) -> None:
        """A request was answered with an error instead of an endpoint."""
        route = self._routes.get((model, priority)) or self._route(model, priority)
        route.total.inc()
        route.error(CODE_NAMES.get(status, str(status)))

    def finished(self, outcome: Outcome) -> None:
        """A request ended, however it did; outcomes of unknown decisions are ignored."""
        entry = self._open.pop(outcome.id, None)
        if entry is None:
            return
        route, status = entry.route, outcome.status
        route.running.value -= 1.0
        if outcome.sources.get("e2e_ms") is not Source.PREDICTED:
            route.duration.observe(outcome.e2e_ms / 1e3)
        where = outcome.where
        children = self._outcomes.get(where)
        if children is None:
            children, where = self._outcomes[GONE], GONE
        key = (outcome.cause, status and status // 100)
        counted = children.get(key)
        if counted is None:
            shown = f"{status // 100}xx" if status else "none"
            counted = children[key] = self.outcomes.child(where, outcome.cause, shown)
        counted.value += 1.0
        if status is not None and status >= 400:
            route.error(CODE_NAMES.get(status) or (str(status) if status < 600 else "Internal"))
        elif outcome.cause in _BROKEN:
            route.error(_BROKEN[outcome.cause])
        self._latencies(entry, outcome)
        self._tokens(entry, outcome)

    def _latencies(self, entry: _Open, outcome: Outcome) -> None:
        ttft_ms = outcome.ttft_ms
        if math.isnan(ttft_ms):
            return
        route, answer = entry.route, outcome.usage.completion_tokens
        (route.streamed_ttft if entry.streamed else route.plain_ttft).observe(ttft_ms / 1e3)
        if answer:
            route.ntpot.observe(outcome.e2e_ms / 1e3 / answer)
            if entry.streamed and answer > 1:
                per_token_s = max(outcome.e2e_ms - ttft_ms, 0.0) / 1e3 / (answer - 1)
                route.tpot.observe(per_token_s)
        if not math.isnan(outcome.itl_ms):
            route.itl.observe(outcome.itl_ms / 1e3)
        if not entry.streamed or not entry.prompt_tokens or outcome.where != entry.endpoint:
            return  # a whole answer's first byte comes with its last token
        ttft_ms = outcome.sent_ttft_ms  # what was foretold counts from the decision
        self._ttft_error.observe(abs(ttft_ms - entry.ttft_ms) / 1e3)
        self._ttft_ratio.observe(ttft_ms / max(entry.ttft_ms, 1e-3))

    def _tokens(self, entry: _Open, outcome: Outcome) -> None:
        route, usage = entry.route, outcome.usage
        prompt = entry.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        if prompt:
            route.input.observe(prompt)
        if usage.completion_tokens is not None:
            route.output.observe(usage.completion_tokens)
        cached = usage.cached_tokens
        if cached is None:
            told = usage.prompt_tokens is not None or usage.completion_tokens is not None
            self._usage[1 if told else 3 if outcome.usage_refused else 2].value += 1.0
            return
        self._usage[0].value += 1.0
        route.cached.observe(cached)
        if usage.prompt_tokens is None or outcome.where != entry.endpoint:
            return
        # Both in the engine's tokens: an estimate's error in counting is not one in foretelling the cache.
        scale = usage.prompt_tokens / entry.prompt_tokens if entry.prompt_tokens else 0.0
        believed = entry.cached_tokens * scale
        for child, tokens in zip(self._shares, (usage.prompt_tokens, believed, cached), strict=True):
            child.value += tokens
        missing = believed - cached
        if missing > 0:
            self._too_few.observe(missing)
        else:
            self._too_many.observe(-missing)

    def new_endpoint(self, address: str) -> None:
        """The endpoint joined; who only answers for others has outcomes, too, without ever being picked."""
        self._outcomes.setdefault(address, {})

    def forget_endpoint(self, address: str) -> None:
        """The endpoint left: its series go."""
        self._outcomes.pop(address, None)
        self.outcomes.forget(endpoint=address)
        host, port = _parts(address)
        for route in self._routes.values():
            if route.attempts.pop(address, None) is not None:
                self.attempts.forget(endpoint_name=host, port=port)

    def _route(self, model: str, priority: int) -> _Route:
        label, shown = self.models(model), self._cap_priority(str(priority))
        key = (label, Capped.OTHER if shown == Capped.OTHER else priority)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route(self, label, shown)
        return route


def _parts(address: str) -> tuple[str, str]:
    host, port = split_address(address)
    return host, str(port)
