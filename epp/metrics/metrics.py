"""The picker's metrics: what is counted, and the page that Prometheus reads.

Counts live on the event loop and cost a list increment; `Value.inc` alone may be called by any thread. What
the metrics are is in `epp.metrics.table`. The page is written a metric at a time, so that no request
waits for it.

Each request is counted from its decision to its end. On the hot path that is two calls, `decided` and
`finished`, each a dictionary look-up and a handful of list increments. Names of models come from clients:
those that the pool serves become labels, and so do the first `MAX_STRANGE_MODELS` of the others, as one model
has some 400 series; the rest are ``other``. Priorities are those of InferenceObjectives, of which the first
`MAX_PRIORITIES` become labels, as do the first `MAX_FLOWS` flows that clients name and that come to a queue.
"""

from __future__ import annotations

import asyncio
import math
import threading
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from epp import __version__
from epp.config.address import split_address
from epp.llmd.words import BROKEN, CODE_NAMES
from epp.metrics.old_names import OLD_NAMES, OldName
from epp.schedule.decision import FIRST_ERROR, Source
from epp.types import Role, split_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from epp.apis.types import ParsedRequest
    from epp.console.history import History
    from epp.extproc.types import HttpRequest
    from epp.schedule.decision import Basis, Decision, Outcome
    from epp.types import RequestInfo, Snapshot

    #: Label values and value of each series.
    Samples = Iterable[tuple[tuple[str, ...], float]]

#: What llm-d says where a request names neither.
FAIRNESS_ID, PRIORITY = "default-flow", "0"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_STRANGE_MODELS = 20
MAX_PRIORITIES = 16
MAX_FLOWS = 20
#: Pairs of a client's name and another that it was rewritten to.
MAX_RENAMED_MODELS = 100
#: Endpoint of an outcome that came after its endpoint had left.
GONE = "gone"

_NAME = "llm_d_epp_request_{}".format
_HISTOGRAMS = (
    "size_bytes", "duration_seconds", "input_tokens", "output_tokens", "cached_tokens", "ntpot_seconds",
    "streaming_tpot_seconds", "streaming_itl_seconds",
)  # fmt: skip
#: llm-d's types of the plugins that its metrics name, whatever a configuration calls them.
_MEDIA = "mm-embeddings-cache-producer"
_PREDICTED, _DISAGGREGATED = "predicted-latency-producer", "disagg-profile-handler"
_PAIRED = "pd-profile-handler"
#: llm-d's estimate of a token's length, by which it tells hits in bytes.
_TOKEN_BYTES = 4.0
_SLOS = ("ttft", "tpot")
_ATTEMPTS = "llm_d_epp_scheduler_attempts_total"

_IN_LABELS = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_lock = threading.Lock()


@dataclass(frozen=True)
class Row:
    """One metric.

    Attributes:
        name: as queries have it, of a histogram without a suffix.
        kind: ``counter``, ``gauge`` or ``histogram``.
        labels: names of its labels.
        text: what it means.
        bounds: upper bounds of a histogram's buckets.
        zeros: label values that are shown from the start: an alert needs the zero before the one.
        source: what ``read`` is given: the object shown under this name (`Metrics.show`).
        read: gives label values and value of each series; None for what is counted.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] = ()
    zeros: tuple[tuple[str, ...], ...] = ()
    source: str = ""
    read: Callable[[Any], Samples] | None = None


def counter(name: str, labels: str, text: str, zeros: str = "") -> Row:
    """Make a counter; ``zeros`` are label values by spaces, series by commas."""
    found = tuple(tuple(zero.split()) for zero in zeros.split(",") if zero)
    return Row(name, "counter", tuple(labels.split()), text, zeros=found)


def gauge(name: str, labels: str, text: str) -> Row:
    """Make a gauge that is set."""
    return Row(name, "gauge", tuple(labels.split()), text)


def histogram(name: str, labels: str, text: str, bounds: tuple[float, ...]) -> Row:
    """Make a histogram."""
    return Row(name, "histogram", tuple(labels.split()), text, bounds)


def shown(source: str, name: str, labels: str, text: str, how: Callable[[Any], Samples]) -> Row:
    """Make a metric that is read from a source, a counter where its name says so."""
    kind = "counter" if name.endswith("_total") else "gauge"
    return Row(name, kind, tuple(labels.split()), text, source=source, read=how)


class Value:
    """A counter or a gauge; the event loop may change `value` itself."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add, from any thread."""
        with _lock:
            self.value += amount


class Histogram:
    """Counts of observations by upper bound, and their sum.

    Args:
        bounds: upper bounds, ascending, without infinity.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count one observation; never NaN."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Family:
    """All series of one metric that is counted, by label values.

    Args:
        row: what the metric is.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.series: dict[tuple[str, ...], Any] = {}
        for values in row.zeros if row.labels else ((),):
            self.child(values)

    def child(self, values: tuple[str, ...]) -> Any:
        """Return the series of these label values, made when there is none; callers may keep it.

        Raises:
            ValueError: not as many values as labels.
        """
        found = self.series.get(values)
        if found is None:
            if len(values) != len(self.row.labels):
                raise ValueError(f"{self.row.name} has the labels {self.row.labels}, not {values}")
            found = Histogram(self.row.bounds) if self.row.kind == "histogram" else Value()
            self.series[values] = found
        return found

    def forget(self, **labels: str) -> None:
        """Drop the series with these values of these labels."""
        wanted = [(self.row.labels.index(label), value) for label, value in labels.items()]
        for values in list(self.series):
            if all(values[at] == value for at, value in wanted):
                del self.series[values]


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

    def __init__(self, metrics: Metrics, model: str, target: str, priority: str) -> None:
        labels = self._labels = (model, target, FAIRNESS_ID, priority)
        self._metrics, self.model, self.models = metrics, model, (model, target)
        self.total = metrics.value(_NAME("total"), *labels)
        self.running = metrics.value(_NAME("running"), *labels)
        self.seen = {name: metrics.histogram(_NAME(name), *labels) for name in _HISTOGRAMS}
        self.ttft = [metrics.histogram(_NAME("ttft_seconds"), *labels, kind) for kind in ("false", "true")]
        self.answered = metrics.histogram("llm_d_epp_response_size_bytes", *labels)
        self.attempts: dict[str, Value] = {}

    def error(self, code: str) -> None:
        self._metrics.value(_NAME("error_total"), *self._labels, code).value += 1.0

    def attempt(self, endpoint: str) -> None:
        child = self.attempts.get(endpoint)
        if child is None:
            host, port = split_address(split_rank(endpoint)[0])
            child = self._metrics.value(_ATTEMPTS, "success", self._labels[1], host, "", str(port))
            self.attempts[endpoint] = child
        child.value += 1.0


class _Model(NamedTuple):
    """Series of one model."""

    ttft: Histogram
    tpot: Histogram
    labels: tuple[str, str, str, str]
    last: dict[str, Value]


class Promise(NamedTuple):
    """What was predicted of a request, and what it asked for.

    Attributes:
        model: its series.
        slos_s: its objectives of time to first token and time per token, NaN where it has none.
    """

    model: _Model
    slos_s: tuple[float, float]


class PluginMetrics:
    """Counts what llm-d's plugins count, of requests that policies of ours decide in their place.

    Args:
        metrics: counted into.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._hit_bytes = metrics.histogram(
            "llm_d_epp_prefix_indexer_hit_bytes", "prefix-index", "prefix-index"
        )
        lookups = "llm_d_epp_kv_cache_index_{}_total".format
        self._lookups = metrics.value(lookups("lookup_requests"))
        self._best = [metrics.value(lookups(name)) for name in ("lookup_hits", "max_pod_hit_count")]
        self._models: dict[tuple[str, str], _Model] = {}

    def decided(self, decision: Decision, labels: tuple[str, str], cached_tokens: float) -> Promise:
        """Count a decision for a request of a model and what that was rewritten to."""
        request, snapshot, chosen = decision.request, decision.snapshot, decision.chosen
        if request.block_tokens and request.prompt_tokens:
            self._hit_bytes.observe(cached_tokens * _TOKEN_BYTES)
            self._lookups.value += 1.0
            blocks = snapshot.cached_tokens.max().item() // request.block_tokens
            for best in self._best:
                best.value += blocks
        if snapshot.workers:
            self._parted(decision, labels[1] or "unknown")
        if request.media:
            self._media(snapshot, len(request.media))
        model = self._models.get(labels) or self._model(labels)
        expected = decision.legs[-1].expected
        if request.prompt_tokens:
            model.ttft.observe(expected.first_token_s)
            self._last(model, "predicted_ttft", expected.first_token_s)
            if (more := request.expected_output_tokens / request.sequences - 1.0) > 0.0:
                tpot_s = (expected.end_s - expected.first_token_s) / more
                model.tpot.observe(tpot_s)
                self._last(model, "predicted_tpot", tpot_s)
        return Promise(model, (_slo_s(snapshot, "ttft", chosen), _slo_s(snapshot, "tpot", chosen)))

    def ended(self, promise: Promise, ttft_s: float, tpot_s: float) -> None:
        """Count the end of a request whose first token was seen; its time per token may be NaN."""
        for what, took_s, slo_s in zip(_SLOS, (ttft_s, tpot_s), promise.slos_s, strict=True):
            if math.isnan(took_s):
                continue
            self._last(promise.model, what, took_s)
            if not math.isnan(slo_s):
                self._last(promise.model, f"{what}_slo_violation", float(took_s > slo_s))
                violated = self._metrics.value(
                    "llm_d_epp_request_slo_violation_total", *promise.model.labels, what
                )
                violated.value += took_s > slo_s

    def _model(self, labels: tuple[str, str]) -> _Model:
        all_labels = _PREDICTED, _PREDICTED, *labels
        ttft, tpot = (
            self._metrics.histogram(f"llm_d_epp_request_predicted_{what}_seconds", *all_labels)
            for what in _SLOS
        )
        model = self._models[labels] = _Model(ttft, tpot, all_labels, {})
        return model

    def _last(self, model: _Model, what: str, value: float) -> None:
        child = model.last.get(what)
        if child is None:
            name = "llm_d_epp_inference_request_metric"
            child = model.last[what] = self._metrics.value(name, *model.labels, what)
        child.value = value

    def _parted(self, decision: Decision, model: str) -> None:
        """Count who does what of a request; llm-d's handler of pairs knows no stage of media."""
        roles = {leg.role for leg in decision.legs}
        helped = Role.PREFILL in roles
        prefills = "prefill-decode" if helped else "decode-only"
        kind = f"encode-{'prefill-' if helped else ''}decode" if Role.ENCODE in roles else prefills
        for name, plugin, how in (("disagg", _DISAGGREGATED, kind), ("pd", _PAIRED, prefills)):
            self._metrics.value(f"llm_d_epp_{name}_decision_total", plugin, plugin, model, how).value += 1.0

    def _media(self, snapshot: Snapshot, asked: int) -> None:
        """Count the media that a request names, and those of them that each candidate is known to hold."""
        column = next((name for name in snapshot.extra if name.startswith("media:")), None)
        if column is None:
            return
        self._metrics.value("llm_d_epp_encoder_cache_queries_total", _MEDIA, _MEDIA, "").value += asked
        shares = self._metrics.histogram("llm_d_epp_encoder_cache_hit_ratio", _MEDIA, _MEDIA)
        for endpoint, share in zip(snapshot.endpoints, snapshot.extra[column].tolist(), strict=True):
            shares.observe(share)
            if share:
                labels = _MEDIA, _MEDIA, endpoint, ""
                self._metrics.value("llm_d_epp_encoder_cache_hits_total", *labels).value += share * asked


def _slo_s(snapshot: Snapshot, what: str, chosen: int) -> float:
    """Return an objective, NaN where no plugin reads it, or the request has none."""
    told = snapshot.extra.get(f"{what}_slo_ms")
    slo_ms = 0.0 if told is None else float(told[chosen])
    return slo_ms / 1e3 if slo_ms > 0.0 else math.nan


@dataclass(slots=True)
class _Open:
    route: _Route
    endpoint: str
    streamed: bool
    prompt_tokens: int
    cached_tokens: float
    ttft_ms: float
    promise: Promise


class RequestMetrics:
    """Counts requests, and remembers those that are open.

    Args:
        metrics: counted into.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        #: Models that are labels.
        self.models = Capped(MAX_STRANGE_MODELS)
        self._cap_priority, self._cap_flow = Capped(MAX_PRIORITIES), Capped(MAX_FLOWS)
        self._cap_flow.keep([FAIRNESS_ID])
        self._renamed = set[tuple[str, str]]()
        self._routes: dict[tuple[tuple[str, str], int | str], _Route] = {}
        self._decisions: dict[tuple[str, Basis, str], Value] = {}
        self._outcomes: dict[str, dict[tuple[str, int | None], Value]] = {GONE: {}}
        self._open: dict[str, _Open] = {}
        self._plugins = PluginMetrics(metrics)
        #: Keeps the last hour for the live page; None where there is no page.
        self.history: History | None = None
        self._hit = metrics.histogram("llm_d_epp_prefix_indexer_hit_ratio", "prefix-index", "prefix-index")
        self._schedule = metrics.histogram("llm_d_epp_scheduler_e2e_duration_seconds")
        self._by_policy: dict[str, Histogram] = {}
        self._ttft_ratio = metrics.histogram("epp_ttft_prediction_ratio")
        kinds = ("prompt", "expected", "reported")
        self._cache_tokens = [metrics.value("epp_cache_tokens_total", kind) for kind in kinds]

    def decided(self, decision: Decision) -> None:
        """Count a request that was given an endpoint."""
        request, snapshot, chosen = decision.request, decision.snapshot, decision.chosen
        models, priority = models_of(request), request.priority
        route = self._routes.get((models, priority)) or self._route(models, priority)
        key = (decision.policy, decision.basis, arm_of(decision.arm))
        counted = self._decisions.get(key)
        if counted is None:
            labels = decision.policy, decision.basis.value, key[2]
            counted = self._decisions[key] = self._metrics.value("epp_decisions_total", *labels)
        endpoint = snapshot.endpoints[chosen]
        counted.value += 1.0
        route.total.value += 1.0
        route.running.value += 1.0
        route.attempt(endpoint)
        route.seen["size_bytes"].observe(request.body_bytes)
        tokens, cached = request.prompt_tokens, snapshot.cached_tokens.item(chosen)
        if tokens:
            self._hit.observe(cached / tokens)
        if endpoint not in self._outcomes:
            self._outcomes[endpoint] = {}
        ttft_ms = decision.legs[-1].expected.first_token_s * 1e3 if tokens else math.nan
        promise = self._plugins.decided(decision, route.models, cached)
        self._open[decision.id] = _Open(route, endpoint, request.stream, tokens, cached, ttft_ms, promise)

    def scheduled(self, decision: Decision, took_s: float) -> None:
        """Count the time that a decision took."""
        self._schedule.observe(took_s)
        policy = decision.policy
        if (found := self._by_policy.get(policy)) is None:
            labels = "llm_d_epp_plugin_duration_seconds", "Schedule", policy, policy
            found = self._by_policy[policy] = self._metrics.histogram(*labels)
        found.observe(took_s)

    def seen(self, request: HttpRequest, *, observing: bool) -> None:
        """Count what was seen of the body of a request to be decided."""
        if request.body is None:
            seen = "none" if request.whole else "unread"
        else:
            seen = "whole" if request.whole else "cut"
        mode = "observability" if observing else "normal"
        self._metrics.value("epp_request_bodies_total", seen, mode).value += 1.0

    def rewritten(self, rule: str, model: str, target: str) -> None:
        """Count a request that an InferenceModelRewrite gave a model, which may be the client's."""
        labels = rule, self.models(model), self.models(target)
        self._metrics.value("llm_d_epp_model_rewrite_decisions_total", *labels).value += 1.0

    def refused(self, status: int, rule: str, models: tuple[str, str] = ("", ""), priority: int = 0) -> None:
        """Count a request that was answered with an error; ``rule`` from a closed set."""
        self._metrics.value("epp_refusals_total", str(status), rule).value += 1.0
        route = self._routes.get((models, priority)) or self._route(models, priority)
        route.total.value += 1.0
        route.error(CODE_NAMES.get(status, str(status)))
        if self.history is not None:
            self.history.refused(route.model, status, rule)

    def finished(self, outcome: Outcome) -> None:
        """Count the end of a request, however it ended; outcomes of unknown decisions are ignored."""
        entry = self._open.pop(outcome.id, None)
        if entry is None:
            return
        route, status, error = entry.route, outcome.status, outcome.verdict
        route.running.value -= 1.0
        if outcome.sources.get("e2e_ms") is not Source.PREDICTED:
            route.seen["duration_seconds"].observe(outcome.e2e_ms / 1e3)
        if outcome.response_bytes is not None:
            route.answered.observe(outcome.response_bytes)
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
        if error >= FIRST_ERROR:
            route.error(CODE_NAMES.get(error) or (str(error) if error < 600 else "Internal"))
        elif outcome.cause in BROKEN:
            route.error(BROKEN[outcome.cause])
        if self.history is not None:
            self.history.ended(route.model, entry.prompt_tokens, entry.cached_tokens, outcome)
        self._latencies(entry, outcome)
        self._tokens(entry, outcome)

    def _latencies(self, entry: _Open, outcome: Outcome) -> None:
        ttft_ms = outcome.ttft_ms
        if math.isnan(ttft_ms):
            return
        route, answer = entry.route, outcome.usage.completion_tokens
        route.ttft[entry.streamed].observe(ttft_ms / 1e3)
        per_token_s = math.nan
        if answer:
            route.seen["ntpot_seconds"].observe(outcome.e2e_ms / 1e3 / answer)
            if entry.streamed and answer > 1:
                per_token_s = max(outcome.e2e_ms - ttft_ms, 0.0) / 1e3 / (answer - 1)
                route.seen["streaming_tpot_seconds"].observe(per_token_s)
        self._plugins.ended(entry.promise, ttft_ms / 1e3, per_token_s)
        if not math.isnan(outcome.itl_ms):
            route.seen["streaming_itl_seconds"].observe(outcome.itl_ms / 1e3)
        if not entry.streamed or not entry.prompt_tokens or outcome.where != entry.endpoint:
            return  # a whole answer's first byte comes with its last token
        ttft_ms = outcome.sent_ttft_ms  # the prediction counts from the decision
        self._ttft_ratio.observe(ttft_ms / max(entry.ttft_ms, 1e-3))

    def _tokens(self, entry: _Open, outcome: Outcome) -> None:
        route, usage = entry.route, outcome.usage
        prompt = entry.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        if prompt:
            route.seen["input_tokens"].observe(prompt)
        if usage.completion_tokens is not None:
            route.seen["output_tokens"].observe(usage.completion_tokens)
        cached = usage.cached_tokens
        if cached is None:
            known = usage.prompt_tokens is not None or usage.completion_tokens is not None
            self._usage("tokens" if known else "refused" if outcome.usage_refused else "nothing")
            return
        self._usage("cached_tokens")
        route.seen["cached_tokens"].observe(cached)
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
        shared = split_rank(address)[0]
        host, port = split_address(shared)
        for route in self._routes.values():
            gone = route.attempts.pop(address, None) is not None
            if gone and all(split_rank(rank)[0] != shared for rank in route.attempts):
                self._metrics.forget(_ATTEMPTS, endpoint_name=host, port=str(port))

    def flow_labels(self, request: RequestInfo, flow: str) -> tuple[str, ...]:
        """Name a request's flow, its priority, its model, and what that was rewritten to."""
        priority, models = self._cap_priority(str(request.priority)), self._labels(*models_of(request))
        return self.flow_label(flow), priority, *models

    def flow_label(self, flow: str) -> str:
        """Name a flow; those after the first `MAX_FLOWS` are one."""
        return self._cap_flow(flow or FAIRNESS_ID)

    def _route(self, models: tuple[str, str], priority: int) -> _Route:
        labels, shown = self._labels(*models), self._cap_priority(str(priority))
        key = (labels, Capped.OTHER if shown == Capped.OTHER else priority)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route(self._metrics, *labels, shown)
        return route

    def _labels(self, model: str, target: str) -> tuple[str, str]:
        """Name a model and what it was rewritten to; clients may choose both, so pairs are bounded, too."""
        labels = self.models(model), self.models(target)
        if model != target and labels not in self._renamed:
            if len(self._renamed) >= MAX_RENAMED_MODELS:
                return Capped.OTHER, Capped.OTHER
            self._renamed.add(labels)
        return labels


def models_of(request: ParsedRequest | RequestInfo | None) -> tuple[str, str]:
    """Return a request's model as its client names it, and as endpoints are chosen for it."""
    if request is None:
        return "", ""
    public, model = request.rewritten_from, request.model
    return (model if public is None else public), model


def arm_of(stamp: str) -> str:
    """Return the arm of a decision's stamp (trial/arm/block); ``none`` outside of trials."""
    return stamp.split("/")[-2] if stamp else "none"


class Metrics:
    """Every metric of a picker.

    Args:
        table: what the metrics are.
        old_names: whether llm-d's old names stand beside the new ones.
    """

    def __init__(self, table: Iterable[Row], *, old_names: bool = False) -> None:
        self._table, self._old_names = tuple(table), OLD_NAMES if old_names else {}
        self._families = {row.name: Family(row) for row in self._table if row.read is None}
        self._sources: dict[str, Any] = {}
        #: Receivers of reports by name, each with its counts.
        self.receivers: dict[str, Any] = {}
        self.requests = RequestMetrics(self)
        self.streams = self.value("llm_d_epp_extproc_streams_inflight")
        self._stream_seconds = self.histogram("llm_d_epp_extproc_stream_duration_seconds")
        self.value("llm_d_epp_info", "", f"gorgo-epp {__version__}").value = 1.0
        self.show("receivers", self.receivers)

    def value(self, name: str, *labels: str) -> Value:
        """Return a counter's or a gauge's series."""
        found: Value = self._families[name].child(labels)
        return found

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return a histogram's series."""
        found: Histogram = self._families[name].child(labels)
        return found

    def series(self, name: str) -> Iterable[tuple[tuple[str, ...], Any]]:
        """Return label values and value of each series of a metric that is counted."""
        return self._families[name].series.items()

    def forget(self, name: str, **labels: str) -> None:
        """Drop a metric's series with these labels."""
        self._families[name].forget(**labels)

    def show(self, source: str, state: object) -> None:
        """Let the rows of this source be read from ``state``."""
        self._sources[source] = state

    def stream_ended(self, code: str, seconds: float) -> None:
        """Count the end of an ext_proc stream with a gRPC status, named as Go names it."""
        self.streams.value -= 1.0
        self.value("llm_d_epp_extproc_streams_total", code).inc()
        self._stream_seconds.observe(seconds)

    def endpoint_event(self, address: str, event: str) -> None:
        """Count what happened to an endpoint."""
        self.value("epp_endpoint_events_total", address, event).inc()

    def file_good(self, file: str, *, there: bool = True) -> None:
        """Show that a watched file's content is in force, or that there is no such file."""
        if there:
            self.value("epp_file_ok", file).value = 1.0
        else:
            self.forget("epp_file_ok", file=file)

    def file_failed(self, file: str) -> None:
        """Show that a watched file's content is unusable."""
        self.value("epp_file_ok", file).value = 0.0

    def forget_endpoint(self, address: str) -> None:
        """Drop the series of an endpoint that left."""
        for family in self._families.values():
            for label in {"endpoint", "pod"}.intersection(family.row.labels):
                family.forget(**{label: address})
        self.requests.forget_endpoint(address)

    async def page(self) -> bytes:
        """Write everything in Prometheus' text format, version 0.0.4."""
        pieces = []
        for piece in self.pieces():
            pieces.append(piece)
            await asyncio.sleep(0)
        return "".join(pieces).encode()

    def pieces(self) -> Iterator[str]:
        """Write the page a metric at a time."""
        for row in self._table:
            old = self._old_names.get(row.name)
            if row.read is None and row.bounds:
                histograms = self._families[row.name].series
                yield _head(row) + _histograms(row, histograms)
                if old is not None:
                    then = _then(row, old)
                    yield _head(then) + _histograms(then, _merged(row, old, histograms.items(), _add))
            elif row.read is None or row.source in self._sources:
                samples = [*(_values(self._families[row.name].series) if row.read is None
                             else row.read(self._sources[row.source]))]  # fmt: skip
                yield _head(row) + _lines(row, samples)
                if old is not None:
                    then = _then(row, old)
                    yield _head(then) + _lines(then, _merged(row, old, samples, float.__add__).items())


def _then(row: Row, old: OldName) -> Row:
    """Return a metric as it was called."""
    return replace(row, name=old.name, labels=old.labels, text=f"The old name of {row.name}.")


def _merged(row: Row, old: OldName, series: Iterable[tuple[tuple[str, ...], Any]], add: Any) -> Any:
    """Sum the series that differ in labels alone that there were not."""
    found: dict[tuple[str, ...], Any] = {}
    places = [row.labels.index(source) for source in old.sources]
    for labels, child in series:
        left = tuple(labels[place] for place in places)
        found[left] = add(found[left], child) if left in found else child
    return found


def _add(one: Histogram, other: Histogram) -> Histogram:
    added = Histogram(one.bounds)
    added.counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
    added.sum = one.sum + other.sum
    return added


def _values(series: dict[tuple[str, ...], Value]) -> Samples:
    return ((labels, child.value) for labels, child in series.items())


def _head(row: Row) -> str:
    return f"# HELP {row.name} {row.text}\n# TYPE {row.name} {row.kind}\n"


def _lines(row: Row, samples: Samples) -> str:
    return "".join([f"{row.name}{_braces(row, labels)} {_number(value)}\n" for labels, value in samples])


def _histograms(row: Row, series: dict[tuple[str, ...], Histogram]) -> str:
    lines = []
    bounds = [*map(repr, map(float, row.bounds)), "+Inf"]
    for labels, child in series.items():
        own, counts = _labels(row, labels), list(accumulate(child.counts))
        for bound, count in zip(bounds, counts, strict=True):
            lines.append(f'{row.name}_bucket{{{own}{"," if own else ""}le="{bound}"}} {float(count)}\n')
        braces = _braces(row, labels)
        lines.append(f"{row.name}_count{braces} {float(counts[-1])}\n")
        lines.append(f"{row.name}_sum{braces} {_number(child.sum)}\n")
    return "".join(lines)


def _braces(row: Row, values: tuple[str, ...]) -> str:
    return f"{{{_labels(row, values)}}}" if values else ""


def _labels(row: Row, values: tuple[str, ...]) -> str:
    return ",".join([f'{label}="{_escaped(value)}"' for label, value in zip(row.labels, values, strict=True)])


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_IN_LABELS)


def _number(value: float) -> str:
    text = repr(float(value))
    return _NOT_FINITE.get(text, text)
