"""What is counted of each request, from its decision to its end.

Owns what must be remembered of an open request to count its end. The hot path is two calls, `decided` and
`finished`, each a dictionary look-up and a handful of list increments.

Names of models come from clients: those that the pool serves become labels, and so do the first
`MAX_STRANGE_MODELS` of the others, as one model has some 400 series; the rest are ``other``. Priorities are
those of InferenceObjectives, of which the first `MAX_PRIORITIES` become labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.config.address import split_address
from epp.llmd.words import CODE_NAMES
from epp.schedule.decision import Source
from epp.server.metrics_read import FAIRNESS_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.extproc.types import HttpRequest
    from epp.schedule.decision import Basis, Decision, Outcome
    from epp.server.metrics import Metrics, Value
    from epp.signals.duration import Duration

MAX_STRANGE_MODELS = 20
MAX_PRIORITIES = 16
#: Endpoint of an outcome that came after its endpoint had left.
GONE = "gone"

_NAME = "llm_d_epp_request_{}".format
_ATTEMPTS = "llm_d_epp_scheduler_attempts_total"

#: Ways of ending that are errors though the status, if any, was good.
_BROKEN = {
    "upstream-reset": "UpstreamReset",
    "unreachable": "Unreachable",
    "timed-out": "TimedOut",
    "protocol-error": "ProtocolError",
}


class Capped:
    """Bound of the distinct values that clients can give a label.

    Args:
        limit: distinct values beside those to keep; what comes after them is `OTHER`.
    """

    OTHER = "other"
    MAX_LENGTH = 128

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self._kept: set[str] = set()

    def keep(self, values: Iterable[str]) -> None:
        """Let these values be labels whatever clients send: an operator or an engine has named them."""
        self._kept.update(value for value in values if len(value) <= self.MAX_LENGTH)

    def __call__(self, value: str) -> str:
        """Return the value itself, or `OTHER` when there are enough or it is absurdly long."""
        if value in self._kept or value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > self.MAX_LENGTH:
            return self.OTHER
        self._seen.add(value)
        return value


class _Route:
    """Series of one model's labels, at one priority."""

    __slots__ = (
        "_labels", "_metrics", "attempts", "cached", "duration", "errors", "input", "itl", "ntpot",
        "output", "plain_ttft", "running", "size", "streamed_ttft", "total", "tpot",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, model: str, priority: str) -> None:
        labels = self._labels = (model, model, FAIRNESS_ID, priority)
        self._metrics = metrics
        self.total = metrics.value(_NAME("total"), *labels)
        self.running = metrics.value(_NAME("running"), *labels)
        self.size = metrics.histogram(_NAME("size_bytes"), *labels)
        self.duration = metrics.histogram(_NAME("duration_seconds"), *labels)
        self.input = metrics.histogram(_NAME("input_tokens"), *labels)
        self.output = metrics.histogram(_NAME("output_tokens"), *labels)
        self.cached = metrics.histogram(_NAME("cached_tokens"), *labels)
        self.streamed_ttft = metrics.histogram(_NAME("ttft_seconds"), *labels, "true")
        self.plain_ttft = metrics.histogram(_NAME("ttft_seconds"), *labels, "false")
        self.ntpot = metrics.histogram(_NAME("ntpot_seconds"), *labels)
        self.tpot = metrics.histogram(_NAME("streaming_tpot_seconds"), *labels)
        self.itl = metrics.histogram(_NAME("streaming_itl_seconds"), *labels)
        self.attempts: dict[str, Value] = {}

    def error(self, code: str) -> None:
        self._metrics.value(_NAME("error_total"), *self._labels, code).value += 1.0

    def attempt(self, endpoint: str) -> None:
        child = self.attempts.get(endpoint)
        if child is None:
            host, port = _parts(endpoint)
            child = self._metrics.value(_ATTEMPTS, "success", self._labels[1], host, "", port)
            self.attempts[endpoint] = child
        child.value += 1.0


@dataclass(slots=True)
class _Open:
    route: _Route
    endpoint: str
    streamed: bool
    prompt_tokens: int
    cached_tokens: float
    ttft_ms: float


class RequestMetrics:
    """Counts requests, and remembers those that are open.

    Args:
        metrics: counted into.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        #: Models that are labels.
        self.models = Capped(MAX_STRANGE_MODELS)
        self._cap_priority = Capped(MAX_PRIORITIES)
        self._routes: dict[tuple[str, int | str], _Route] = {}
        self._decisions: dict[tuple[str, Basis, str], Value] = {}
        self._outcomes: dict[str, dict[tuple[str, int | None], Value]] = {GONE: {}}
        self._open: dict[str, _Open] = {}
        self._hit = metrics.histogram("llm_d_epp_prefix_indexer_hit_ratio", "prefix-index", "prefix-index")
        self._ttft_ratio = metrics.histogram("epp_ttft_prediction_ratio")
        kinds = ("prompt", "expected", "reported")
        self._cache_tokens = [metrics.value("epp_cache_tokens_total", kind) for kind in kinds]

    @property
    def open(self) -> int:
        """Requests decided and not finished."""
        return len(self._open)

    def decided(
        self, decision: Decision, expected: Duration, *, streamed: bool = False, priority: int = 0
    ) -> None:
        """Count a request that was given an endpoint; ``streamed`` when it asked for an event stream."""
        request, fleet, chosen = decision.request, decision.fleet, decision.chosen
        route = self._routes.get((request.model, priority)) or self._route(request.model, priority)
        key = (decision.policy, decision.basis, arm_of(decision.arm))
        counted = self._decisions.get(key)
        if counted is None:
            labels = decision.policy, decision.basis.value, key[2]
            counted = self._decisions[key] = self._metrics.value("epp_decisions_total", *labels)
        endpoint = fleet.endpoints[chosen]
        counted.value += 1.0
        route.total.value += 1.0
        route.running.value += 1.0
        route.attempt(endpoint)
        route.size.observe(request.body_bytes)
        tokens, cached = request.prompt_tokens, fleet.cached_tokens.item(chosen)
        if tokens:
            self._hit.observe(cached / tokens)
        if endpoint not in self._outcomes:
            self._outcomes[endpoint] = {}
        ttft_ms = expected.first_token_s * 1e3 if tokens else math.nan
        self._open[decision.id] = _Open(route, endpoint, streamed, tokens, cached, ttft_ms)

    def seen(self, request: HttpRequest, *, observing: bool) -> None:
        """Count what was seen of the body of a request to be picked."""
        if request.body is None:
            seen = "none" if request.whole else "unread"
        else:
            seen = "whole" if request.whole else "cut"
        mode = "observability" if observing else "normal"
        self._metrics.value("epp_request_bodies_total", seen, mode).value += 1.0

    def refused(self, status: int, rule: str, model: str = "", priority: int = 0) -> None:
        """Count a request that was answered with an error; ``rule`` from a closed set."""
        self._metrics.value("epp_refusals_total", str(status), rule).value += 1.0
        route = self._routes.get((model, priority)) or self._route(model, priority)
        route.total.value += 1.0
        route.error(CODE_NAMES.get(status, str(status)))

    def finished(self, outcome: Outcome) -> None:
        """Count the end of a request, however it ended; outcomes of unknown decisions are ignored."""
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
            counted = children[key] = self._metrics.value("epp_outcomes_total", where, outcome.cause, shown)
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
        ttft_ms = outcome.sent_ttft_ms  # the prediction counts from the decision
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
            known = usage.prompt_tokens is not None or usage.completion_tokens is not None
            self._usage("tokens" if known else "refused" if outcome.usage_refused else "nothing")
            return
        self._usage("cached_tokens")
        route.cached.observe(cached)
        if usage.prompt_tokens is None or outcome.where != entry.endpoint:
            return
        # Both in the engine's tokens: an estimate's error in counting is not one in expecting the cache.
        scale = usage.prompt_tokens / entry.prompt_tokens if entry.prompt_tokens else 0.0
        expected = entry.cached_tokens * scale
        for child, tokens in zip(self._cache_tokens, (usage.prompt_tokens, expected, cached), strict=True):
            child.value += tokens

    def _usage(self, known: str) -> None:
        self._metrics.value("epp_usage_total", known).value += 1.0

    def new_endpoint(self, address: str) -> None:
        """Show an endpoint under its own name; one that only answers for others has outcomes, too."""
        self._outcomes.setdefault(address, {})

    def forget_endpoint(self, address: str) -> None:
        """Drop the series of an endpoint that left."""
        self._outcomes.pop(address, None)
        host, port = _parts(address)
        for route in self._routes.values():
            if route.attempts.pop(address, None) is not None:
                self._metrics.forget(_ATTEMPTS, endpoint_name=host, port=port)

    def _route(self, model: str, priority: int) -> _Route:
        label, shown = self.models(model), self._cap_priority(str(priority))
        key = (label, Capped.OTHER if shown == Capped.OTHER else priority)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route(self._metrics, label, shown)
        return route


def arm_of(stamp: str) -> str:
    """Return the arm of a decision's stamp (trial/arm/block); ``none`` outside of trials."""
    return stamp.split("/")[-2] if stamp else "none"


def _parts(address: str) -> tuple[str, str]:
    host, port = split_address(address)
    return host, str(port)
