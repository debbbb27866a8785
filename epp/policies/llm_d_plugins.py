"""llm-d's filters and scorers as columns, each by the formula of its source.

Sources are files of llm-d/llm-d-router at ebab687, below ``pkg/epp/framework/plugins``. Fields are the
plugins' parameters with their defaults. Scores are 0..1, higher is better; a filter says who stays. Each is
given the endpoints that the filters before it kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct, field

from epp.policies.parts import match_ratios

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import Flags, Floats, RequestInfo, Snapshot

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
PositiveInt = Annotated[int, Meta(gt=0)]

#: Columns of `Snapshot.extra`; `epp.schedule.extras` fills them for the plugins that ask.
COLD_PLACE, LORA, PRIORITY = "cold_place", "lora", "priority"
TTFT_SLO, TPOT_SLO = "ttft_slo_ms", "tpot_slo_ms"
#: Beginnings of names of columns, with what they are made of behind.
TOKEN, SESSION = "token:", "session:"
#: Columns that the profile predicts, in ms.
TTFT, TTFT_HEADROOM, TPOT_HEADROOM = "ttft_ms", "ttft_headroom_ms", "tpot_headroom_ms"


class Plugin(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Hold a plugin's parameters.

    Attributes:
        prefix_match_info_producer_name: which index is asked; here there is one.
        in_flight_load_producer_name: which counters are asked; likewise.
        latency_prediction_info_producer_name: which predictor is asked; likewise.
    """

    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""
    latency_prediction_info_producer_name: str = ""

    @property
    def asks(self) -> tuple[str, ...]:
        """Name the columns that it reads beyond the snapshot's own."""
        return ()

    @property
    def predicts(self) -> bool:
        """Tell whether it reads predicted latencies."""
        return False


class Scorer(Plugin, frozen=True):
    """Score endpoints from 0 to 1."""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        """Compute a score for each endpoint."""
        raise NotImplementedError


class Filter(Plugin, frozen=True):
    """Keep some endpoints: by their labels, before all else, or by request and signals."""

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an endpoint with these labels may serve at all."""
        return True

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        """Say who stays; ``draw`` is a uniform number of this request and plugin."""
        return np.ones(len(fleet), np.bool_)


def _spread(values: Floats) -> Floats:
    """Scale to 1 for the least and 0 for the most; 1 for all where they are equal."""
    most = values.max()
    spread = most - values.min()
    return (most - values) / spread if spread > 0.0 else np.ones(len(values))


class QueueScorer(Scorer, frozen=True, tag="queue-scorer"):
    """Score by ``(max - waiting) / (max - min)``: ``scheduling/scorer/queuedepth/queue.go``."""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return _spread(fleet.engine_waiting)


class RunningScorer(Scorer, frozen=True, tag="running-requests-size-scorer"):
    """Score as `QueueScorer` by running requests: ``scheduling/scorer/runningrequests/runningrequest.go``."""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return _spread(fleet.engine_running)


class KvCacheScorer(Scorer, frozen=True, tag="kv-cache-utilization-scorer"):
    """Score by ``1 - usage``: ``scheduling/scorer/kvcacheutilization/kvcache_utilization.go``."""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return 1.0 - fleet.engine_kv_usage


class PrefixScorer(Scorer, frozen=True, tag="prefix-cache-scorer"):
    """Score by ``w * min(1, matched / scale)^2 + (1 - w) * matched / all``.

    ``scheduling/scorer/prefix/plugin.go``.
    """

    match_length_weight: Share = 0.0
    match_length_scale_tokens: PositiveInt = 8192

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        weight = self.match_length_weight
        length = np.minimum(fleet.cached_tokens / self.match_length_scale_tokens, 1.0) ** 2
        score: Floats = weight * length + (1.0 - weight) * match_ratios(request, fleet)
        return score


class LoadAwareScorer(Scorer, frozen=True, tag="load-aware-scorer"):
    """Score by ``0.5 * (1 - min(waiting, threshold) / threshold)``.

    ``scheduling/scorer/loadaware/load_aware.go``.
    """

    threshold: int = 128

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        threshold = self.threshold if self.threshold > 0 else 128
        return 0.5 * (1.0 - np.minimum(fleet.engine_waiting / threshold, 1.0))


class TokenLoadScorer(Scorer, frozen=True, tag="token-load-scorer"):
    """Score by ``1 - min(tokens, threshold) / threshold``: ``scheduling/scorer/tokenload/token_load.go``.

    ``tokens`` are the uncached ones of requests that await their first token, and of this one.
    """

    queue_threshold_tokens: int = 4_194_304

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        threshold = self.queue_threshold_tokens if self.queue_threshold_tokens > 0 else 4_194_304
        tokens = fleet.pending_uncached_tokens + fleet.uncached_tokens
        return 1.0 - np.minimum(tokens / threshold, 1.0)


class ActiveRequestScorer(Scorer, frozen=True, tag="active-request-scorer"):
    """Score 1 up to ``idle`` requests, else ``(max - n) / max * busy``.

    ``scheduling/scorer/activerequest/active_request.go``; ``requestTimeout`` does nothing there, too.
    """

    request_timeout: str = ""
    idle_threshold: int = 0
    max_busy_score: float = 1.0

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        busy = self.max_busy_score if 0.0 <= self.max_busy_score <= 1.0 else 1.0
        count, most = fleet.running_requests, max(float(fleet.running_requests.max()), 1.0)
        return np.where(count <= max(self.idle_threshold, 0), 1.0, (most - count) / most * busy)


class NoHitLruScorer(Scorer, frozen=True, tag="no-hit-lru-scorer"):
    """Rank by who had no cold request for longest: ``scheduling/scorer/nohitlru/no_hit_lru.go``.

    0.5 for all where any has a hit. Else ``1 - rank / (n - 1)``, at least 0: those that never had a cold
    request come first, in pool order; an endpoint's place counts all that are remembered.
    """

    lru_size: int = 1024
    prefix_plugin_type: str = ""
    prefix_plugin_name: str = ""

    @property
    def asks(self) -> tuple[str, ...]:
        return (f"{COLD_PLACE}:{self.lru_size if self.lru_size > 0 else 1024}",)

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        count = len(fleet)
        if (fleet.cached_tokens > 0.0).any():
            return np.full(count, 0.5)
        place = fleet.extra.get(self.asks[0], np.full(count, -1.0))
        never = place < 0.0
        rank = np.where(never, np.cumsum(never) - 1.0, never.sum() + place)
        return np.maximum(1.0 - rank / (count - 1), 0.0) if count > 1 else np.ones(1)


class LoraScorer(Scorer, frozen=True, tag="lora-affinity-scorer"):
    """Score 1 loaded, 0.8 room for one more, 0.6 waiting, else 0: ``scheduling/scorer/loraaffinity``."""

    @property
    def asks(self) -> tuple[str, ...]:
        return (LORA,)

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return fleet.extra.get(LORA, np.zeros(len(fleet)))


class HeaderLabelScorer(Scorer, frozen=True, tag="header-label-affinity-scorer"):
    """Score 1 where the label has the header's value: ``scheduling/scorer/headerlabelaffinity/plugin.go``."""

    header_name: Annotated[str, Meta(min_length=1)]
    label_key: Annotated[str, Meta(min_length=1)]

    @property
    def asks(self) -> tuple[str, ...]:
        return (f"label:{self.header_name.lower()}={self.label_key}",)

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return fleet.extra.get(self.asks[0], np.zeros(len(fleet)))


class LatencyScorer(Scorer, frozen=True, tag="latency-scorer"):
    """Score by headrooms to the SLOs, scaled over the endpoints: ``scheduling/scorer/latency/plugin.go``.

    Of endpoints within both SLOs the closest score best (``most``: the farthest). Where none is: the idle
    ones alone, else those that miss the TPOT alone, else the TTFT alone, else all; the closest best. Without
    SLOs every headroom is the negated prediction. Predictions are never missing here: what is learned of
    engines has defaults, so that the composite weights have no use.
    """

    ttft_weight: float = field(default=0.8, name="ttftWeight")
    tpot_weight: float = field(default=0.2, name="tpotWeight")
    headroom_selection_strategy: Literal["least", "most"] = "least"
    composite_kv_weight: float = field(default=1.0, name="compositeKVWeight")
    composite_queue_weight: float = 1.0
    composite_prefix_weight: float = 1.0

    @property
    def asks(self) -> tuple[str, ...]:
        return TTFT_SLO, TPOT_SLO

    @property
    def predicts(self) -> bool:
        return True

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        late, slow = fleet.extra[TTFT_HEADROOM] < 0.0, fleet.extra[TPOT_HEADROOM] < 0.0
        missed = late | slow
        if not missed.all():
            return self._scored(fleet, ~missed, least=self.headroom_selection_strategy == "least")
        buckets = (fleet.running_requests == 0.0, slow & ~late, late & ~slow, missed)
        return self._scored(fleet, next(bucket for bucket in buckets if bucket.any()), least=True)

    def _scored(self, fleet: Snapshot, among: Flags, *, least: bool) -> Floats:
        """Score some in hundredths, 0.01 at least, the others 0."""
        ttft, flat_ttft = _scaled(np.abs(fleet.extra[TTFT_HEADROOM][among]))
        tpot, flat_tpot = _scaled(np.abs(fleet.extra[TPOT_HEADROOM][among]))
        total = self.ttft_weight + self.tpot_weight
        shares = (self.ttft_weight / total, self.tpot_weight / total) if total > 0.0 else (1.0, 0.0)
        if flat_ttft != flat_tpot:
            shares = (float(flat_tpot), float(flat_ttft))
        combined = shares[0] * ttft + shares[1] * tpot
        scores = np.zeros(len(fleet))
        scores[among] = (np.trunc((1.0 - combined if least else combined) * 100.0) + 1.0) / 100.0
        return scores


def _scaled(values: Floats) -> tuple[Floats, bool]:
    """Scale to 0 for the least and 1 for the most; to 0.5, with True, where they are equal."""
    least = values.min()
    spread = values.max() - least
    return (np.full(len(values), 0.5), True) if spread <= 1e-9 else ((values - least) / spread, False)


class _Config(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Hold a part of a plugin's parameters."""


class TokenHeader(_Config, frozen=True):
    """Name the header in which a client brings its endpoint back."""

    header: str = ""


class SessionSource(_Config, frozen=True):
    """Say where a session's id stands: a header (``cookie:NAME`` for a cookie), or what a plugin found."""

    header: str = ""
    attribute: str = ""
    producer: str = ""


class SessionIds(_Config, frozen=True):
    """Say how sessions are known, and for how long."""

    sources: list[SessionSource] = []
    eviction_ttl_seconds: NotNegative = 0.0
    eviction_sweep_seconds: NotNegative = 0.0


class Bound(Plugin, frozen=True):
    """Know the endpoint that a session is bound to: ``scheduling/util/sessionaffinity``.

    By ``encoded_endpoint_header`` the answer names it in a header, which the client sends again. By
    ``session_id`` the picker remembers it from the session's first request on, for some seconds after the
    last; a session whose endpoint is no candidate any more is bound anew.
    """

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    encoded_endpoint_header_config: TokenHeader = TokenHeader()
    session_id_config: SessionIds = SessionIds()
    profile_name: str = ""

    @property
    def asks(self) -> tuple[str, ...]:
        if self.strategy == "encoded_endpoint_header":
            header = self.encoded_endpoint_header_config.header.strip().lower()
            return (f"{TOKEN}{header or 'x-session-token'}",)
        config = self.session_id_config
        headers = ",".join(source.header.lower() for source in config.sources) or "x-session-id"
        return (f"{SESSION}{config.eviction_ttl_seconds or 300.0:g}:{headers}",)

    def bound(self, fleet: Snapshot) -> Floats:
        """Mark the session's endpoint with 1."""
        return fleet.extra.get(self.asks[0], np.zeros(len(fleet)))


class SessionScorer(Bound, Scorer, frozen=True, tag="session-affinity-scorer"):
    """Score the session's endpoint 1: ``scheduling/scorer/sessionaffinity``."""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return self.bound(fleet)


class SessionFilter(Bound, Filter, frozen=True, tag="session-affinity-filter"):
    """Keep the session's endpoint alone, if it is there: ``scheduling/filter/sessionaffinity``."""

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        bound = self.bound(fleet) > 0.0
        return bound | (not bound.any())


class TopologyScorer(Scorer, frozen=True, tag="topology-affinity-scorer"):
    """Score 0: nearness to a prefill endpoint, which nobody picks (``scorer/topologyaffinity``)."""

    topology_producer_name: str = ""

    def score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        return np.zeros(len(fleet))


class AffinityFilter(Filter, frozen=True, tag="prefix-cache-affinity-filter"):
    """Keep who holds ``threshold`` of the prompt: ``scheduling/filter/prefixcacheaffinity/plugin.go``.

    Unless nobody does, a draw below ``exploration`` says so, or the best time to first token among them
    exceeds the best of the others by more than ``penalty``: then all stay. That time is predicted, or
    ``pending uncached tokens / throughput``.
    """

    affinity_threshold: Annotated[float, Meta(le=1.0)] = 0.8
    exploration_probability: Share = 0.0
    max_ttft_penalty_ms: NotNegative = field(default=18_000.0, name="maxTTFTPenaltyMs")
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = field(
        default="prefillThroughput", name="ttftSource"
    )
    peak_prefill_throughput: NotNegative = 15_928.0

    def __post_init__(self) -> None:
        """Check that a gate has a throughput."""
        if not (self.predicts or self.peak_prefill_throughput) and self.max_ttft_penalty_ms:
            raise ValueError("peakPrefillThroughput must be above 0")

    @property
    def predicts(self) -> bool:
        return self.ttft_source == "latencyPredictor"

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        everybody = np.ones(len(fleet), np.bool_)
        if len(fleet) <= 1 or self.affinity_threshold <= 0.0 or draw < self.exploration_probability:
            return everybody
        sticky = match_ratios(request, fleet) >= self.affinity_threshold
        if not sticky.any() or sticky.all():
            return everybody
        if self.max_ttft_penalty_ms:
            ttft_ms = self._ttft_ms(fleet)
            late_ms = float(ttft_ms[sticky].min()) - float(ttft_ms[~sticky].min())
            if late_ms > self.max_ttft_penalty_ms:
                return everybody
        return sticky

    def _ttft_ms(self, fleet: Snapshot) -> Floats:
        if self.predicts:
            return fleet.extra[TTFT]
        return fleet.pending_uncached_tokens / self.peak_prefill_throughput * 1e3


class HeadroomFilter(Filter, frozen=True, tag="slo-headroom-tier-filter"):
    """Keep who meets both SLOs, if any: ``scheduling/filter/sloheadroomtier/plugin.go``.

    A draw below ``epsilonExploreNeg`` keeps the others instead.
    """

    epsilon_explore_neg: Share = 0.01

    @property
    def asks(self) -> tuple[str, ...]:
        return TTFT_SLO, TPOT_SLO

    @property
    def predicts(self) -> bool:
        return True

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        met = (fleet.extra[TTFT_HEADROOM] >= 0.0) & (fleet.extra[TPOT_HEADROOM] >= 0.0)
        if met.all() or not met.any():
            return np.ones(len(fleet), np.bool_)
        return ~met if draw < self.epsilon_explore_neg else met


#: Utilization metric -> column.
_METRICS = {
    "active-requests": "running_requests",
    "running-requests": "engine_running",
    "waiting-queue": "engine_waiting",
    "kv-cache-utilization": "engine_kv_usage",
}


class Condition(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Limit a metric."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: NotNegative


class UtilizationFilter(Filter, frozen=True, tag="utilization-filter"):
    """Keep who is within every limit: ``scheduling/filter/utilization/filter.go``."""

    conditions: Annotated[list[Condition], Meta(min_length=1)]
    fallback_on_empty: bool = False

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        kept = np.ones(len(fleet), np.bool_)
        for limit in self.conditions:
            kept &= getattr(fleet, _METRICS[limit.metric]) <= limit.max_value
        return kept | (self.fallback_on_empty and not kept.any())


class UtilizationDetector(Filter, frozen=True, tag="utilization-detector"):
    """Keep who is below both thresholds with fresh metrics, if any; also the measure of saturation.

    ``flowcontrol/saturationdetector/utilization``; headroom widens the thresholds of the filter alone.
    """

    queue_depth_threshold: PositiveInt = 5
    kv_cache_util_threshold: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.8
    #: A Go duration in a configuration, which the translation makes milliseconds.
    metrics_staleness_threshold: Positive | str = 200.0
    headroom: NotNegative = 0.0

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        room = 1.0 + self.headroom
        kept = (
            (fleet.engine_waiting < self.queue_depth_threshold * room)
            & (fleet.engine_kv_usage < self.kv_cache_util_threshold * room)
            & (fleet.engine_age_ms <= float(self.metrics_staleness_threshold))
            & ~fleet.unknown.get("engine_kv_usage", np.zeros(len(fleet), np.bool_))
        )
        return kept if kept.any() else ~kept


class ConcurrencyDetector(Filter, frozen=True, tag="concurrency-detector"):
    """Keep who has fewer requests or tokens in flight; also the measure of saturation.

    ``flowcontrol/saturationdetector/concurrency``; where nobody is left the request is refused.
    """

    max_concurrency: PositiveInt = 100
    headroom: NotNegative = 0.0
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_token_concurrency: PositiveInt = 1_000_000

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        room = 1.0 + self.headroom
        requests = fleet.running_requests < int(self.max_concurrency * room)
        tokens = fleet.pending_uncached_tokens < int(self.max_token_concurrency * room)
        return {"requests": requests, "tokens": tokens, "hybrid": requests & tokens}[self.concurrency_mode]


class TopologyFilter(Filter, frozen=True, tag="topology-affinity-filter"):
    """Keep all: nearness to a prefill endpoint, which nobody picks (``filter/topologyaffinity``)."""

    min_affinity: Literal["", "host", "rack", "zone", "region"] = ""
    topology_producer_name: str = ""


class Expression(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Require something of a label, as Kubernetes has it."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def __post_init__(self) -> None:
        """Check that sets have values, and existence none."""
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"values do not go with operator {self.operator}")

    def met(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels meet it."""
        found = self.key in labels and (not self.values or labels[self.key] in self.values)
        return found == (self.operator in ("In", "Exists"))


class LabelFilter(Filter, frozen=True, tag="label-selector-filter"):
    """Keep whose labels the selector matches: ``scheduling/filter/bylabel/selector.go``."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []

    def admits(self, labels: Mapping[str, str]) -> bool:
        return self.match_labels.items() <= labels.items() and all(
            each.met(labels) for each in self.match_expressions
        )


class RoleFilter(Filter, frozen=True):
    """Keep the roles of label ``llm-d.ai/role`` that do a stage: ``scheduling/filter/bylabel/roles.go``."""

    roles: ClassVar[frozenset[str]]

    def admits(self, labels: Mapping[str, str]) -> bool:
        return labels.get("llm-d.ai/role", "") in self.roles


class DecodeFilter(RoleFilter, frozen=True, tag="decode-filter"):
    """Keep who decodes, and who has no role."""

    roles = frozenset({"", "decode", "prefill-decode", "both", "encode-prefill-decode"})


class PrefillFilter(RoleFilter, frozen=True, tag="prefill-filter"):
    """Keep who prefills."""

    roles = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})


class EncodeFilter(RoleFilter, frozen=True, tag="encode-filter"):
    """Keep who encodes."""

    roles = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


class Admitter(Filter, frozen=True):
    """Keep all or nobody, of requests with negative priority."""

    @property
    def asks(self) -> tuple[str, ...]:
        return (PRIORITY,)

    def keep(self, request: RequestInfo, fleet: Snapshot, draw: float) -> Flags:
        priority = fleet.extra.get(PRIORITY)
        free = priority is None or priority[0] >= 0.0
        return np.full(len(fleet), free or self.admits_request(request, fleet, draw))

    def admits_request(self, request: RequestInfo, fleet: Snapshot, draw: float) -> bool:
        """Tell whether a request of negative priority is served."""
        raise NotImplementedError


class ProbabilisticAdmitter(Admitter, frozen=True, tag="probabilistic-admitter"):
    """Refuse with chance ``min(saturation^power * k, 1)``.

    ``saturation`` is the mean over the endpoints of the larger of queue and KV cache, each over its
    threshold: ``requestcontrol/admitter/probabilisticadmitter/plugin.go``.
    """

    queue_depth_threshold: PositiveInt = 5
    kv_cache_util_threshold: Positive = 0.8
    power: Positive = 5.0
    k: Positive = 300.0

    def admits_request(self, request: RequestInfo, fleet: Snapshot, draw: float) -> bool:
        queue = fleet.engine_waiting / self.queue_depth_threshold
        fuller = np.maximum(queue, fleet.engine_kv_usage / self.kv_cache_util_threshold)
        return bool(draw >= min(float(fuller.mean()) ** self.power * self.k, 1.0))


class LatencyAdmitter(Admitter, frozen=True, tag="latency-slo-admitter"):
    """Refuse where no endpoint meets the request's SLOs, is idle, or has a KV cache below 2 %.

    ``requestcontrol/admitter/latencyslo/plugin.go``.
    """

    @property
    def asks(self) -> tuple[str, ...]:
        return PRIORITY, TTFT_SLO, TPOT_SLO

    @property
    def predicts(self) -> bool:
        return True

    def admits_request(self, request: RequestInfo, fleet: Snapshot, draw: float) -> bool:
        none = np.zeros(len(fleet))
        if not (fleet.extra.get(TTFT_SLO, none) + fleet.extra.get(TPOT_SLO, none)).any():
            return True
        met = (fleet.extra[TTFT_HEADROOM] > 0.0) & (fleet.extra[TPOT_HEADROOM] >= 0.0)
        return bool((met | (fleet.engine_running == 0.0) | (fleet.engine_kv_usage < 0.02)).any())


Scorers = (
    QueueScorer
    | RunningScorer
    | KvCacheScorer
    | PrefixScorer
    | LoadAwareScorer
    | TokenLoadScorer
    | ActiveRequestScorer
    | NoHitLruScorer
    | LoraScorer
    | HeaderLabelScorer
    | LatencyScorer
    | TopologyScorer
    | SessionScorer
)
Filters = (
    AffinityFilter
    | HeadroomFilter
    | UtilizationFilter
    | UtilizationDetector
    | ConcurrencyDetector
    | TopologyFilter
    | SessionFilter
    | LabelFilter
    | DecodeFilter
    | PrefillFilter
    | EncodeFilter
    | ProbabilisticAdmitter
    | LatencyAdmitter
)
