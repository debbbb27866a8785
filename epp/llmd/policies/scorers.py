"""llm-d's scorers as columns, each by the formula of its source (`epp.llmd.policies.plugins`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Meta, Struct, field

from epp.llmd.policies.plugins import (
    LORA,
    TPOT_HEADROOM,
    TTFT,
    TTFT_HEADROOM,
    Attribute,
    Bound,
    ColdPlace,
    Label,
    Media,
    Objectives,
    PositiveInt,
    PrefixReader,
    Scorer,
    Share,
)

if TYPE_CHECKING:
    from epp.llmd.policies.plugins import Column
    from epp.types import Flags, Floats, RequestInfo, Snapshot


def _spread(values: Floats) -> Floats:
    """Scale to 1 for the least and 0 for the most; 1 for all where they are equal."""
    most = values.max()
    spread = most - values.min()
    return (most - values) / spread if spread > 0.0 else np.ones(len(values))


class QueueScorer(Scorer, frozen=True, tag="queue-scorer"):
    """Score by ``(max - waiting) / (max - min)``: ``scheduling/scorer/queuedepth/queue.go``."""

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return _spread(snapshot.engine_waiting)


class RunningScorer(Scorer, frozen=True, tag="running-requests-size-scorer"):
    """Score as `QueueScorer` by running requests: ``scheduling/scorer/runningrequests/runningrequest.go``."""

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return _spread(snapshot.engine_running)


class KvCacheScorer(Scorer, frozen=True, tag="kv-cache-utilization-scorer"):
    """Score by ``1 - usage``: ``scheduling/scorer/kvcacheutilization/kvcache_utilization.go``."""

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return 1.0 - snapshot.engine_kv_usage


class PrefixScorer(PrefixReader, Scorer, frozen=True, tag="prefix-cache-scorer"):
    """Score by ``w * min(1, matched / scale)^2 + (1 - w) * matched / all``.

    ``scheduling/scorer/prefix/plugin.go``.
    """

    match_length_weight: Share = 0.0
    match_length_scale_tokens: PositiveInt = 8192

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        weight = self.match_length_weight
        cached, prompt = self.in_blocks(request, snapshot)
        length = np.minimum(cached / self.match_length_scale_tokens, 1.0) ** 2
        score: Floats = weight * length + (1.0 - weight) * cached / prompt
        return score


class LoadAwareScorer(Scorer, frozen=True, tag="load-aware-scorer"):
    """Score by ``0.5 * (1 - min(waiting, threshold) / threshold)``.

    ``scheduling/scorer/loadaware/load_aware.go``.
    """

    threshold: int = 128

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        threshold = self.threshold if self.threshold > 0 else 128
        return 0.5 * (1.0 - np.minimum(snapshot.engine_waiting / threshold, 1.0))


class TokenLoadScorer(Scorer, frozen=True, tag="token-load-scorer"):
    """Score by ``1 - min(tokens, threshold) / threshold``: ``scheduling/scorer/tokenload/token_load.go``.

    ``tokens`` are the uncached ones of requests that await their first token, and of this one.
    """

    queue_threshold_tokens: int = 4_194_304

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        threshold = self.queue_threshold_tokens if self.queue_threshold_tokens > 0 else 4_194_304
        tokens = snapshot.pending_uncached_tokens + snapshot.uncached_tokens
        return 1.0 - np.minimum(tokens / threshold, 1.0)


class LMetricScorer(PrefixReader, Scorer, frozen=True, tag="lmetric-scorer"):
    """Score by ``(max - cost) / (max - min)``: ``scheduling/scorer/lmetric`` of 1fee9c8.

    ``cost`` is the uncached part of the prompt in whole blocks times the requests in flight and this one; 0
    for all without a prompt.
    """

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        cached, prompt = self.in_blocks(request, snapshot)
        scores = _spread((prompt - cached) * (snapshot.running_requests + 1.0))
        return scores if request.prompt_tokens else np.zeros(len(snapshot))


class ObservationScorer(Scorer, frozen=True, tag="latency-observation-scorer-hub"):
    """Score by ``(max - ttft) / (max - min)``: ``scheduling/scorer/latencyobservation``.

    The time to first token is predicted by learned rates instead of an observer's percentiles. They are never
    missing, so that nobody is explored.
    """

    exploration_rate: Share = 0.1
    min_inflight_gap: Annotated[float, Meta(gt=0.0)] = 2.0
    round_s: Annotated[float, Meta(ge=0.0)] = field(default=0.0, name="roundTTFTStep")
    ttft_percentiles_producer_name: str = ""

    @property
    def predicts(self) -> bool:
        return True

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        ttft_s = snapshot.extra[TTFT] / 1e3
        return _spread(np.floor(ttft_s / self.round_s + 0.5) * self.round_s if self.round_s else ttft_s)


class ActiveRequestScorer(Scorer, frozen=True, tag="active-request-scorer"):
    """Score 1 up to ``idle`` requests, else ``(max - n) / max * busy``.

    ``scheduling/scorer/activerequest/active_request.go``; ``requestTimeout`` does nothing there, too.
    """

    request_timeout: str = ""
    idle_threshold: int = 0
    max_busy_score: float = 1.0

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        busy = self.max_busy_score if 0.0 <= self.max_busy_score <= 1.0 else 1.0
        count, most = snapshot.running_requests, max(float(snapshot.running_requests.max()), 1.0)
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
    def required_columns(self) -> tuple[Column, ...]:
        most = self.lru_size if self.lru_size > 0 else 1024
        return (ColdPlace(f"cold_place:{most}", most=most),)

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        count = len(snapshot)
        if (snapshot.cached_tokens > 0.0).any():
            return np.full(count, 0.5)
        place = snapshot.extra.get(self.required_columns[0].name, np.full(count, -1.0))
        never = place < 0.0
        rank = np.where(never, np.cumsum(never) - 1.0, never.sum() + place)
        return np.maximum(1.0 - rank / (count - 1), 0.0) if count > 1 else np.ones(1)


class LoraScorer(Scorer, frozen=True, tag="lora-affinity-scorer"):
    """Score 1 loaded, 0.8 room for one more, 0.6 waiting, else 0: ``scheduling/scorer/loraaffinity``."""

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return (LORA,)

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return snapshot.extra.get(LORA.name, np.zeros(len(snapshot)))


class HeaderLabelScorer(Scorer, frozen=True, tag="header-label-affinity-scorer"):
    """Score 1 where the label has the header's value: ``scheduling/scorer/headerlabelaffinity/plugin.go``."""

    header_name: Annotated[str, Meta(min_length=1)]
    label_key: Annotated[str, Meta(min_length=1)]

    @property
    def required_columns(self) -> tuple[Column, ...]:
        header = self.header_name.lower()
        return (Label(f"label:{header}={self.label_key}", (header,), label=self.label_key),)

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return snapshot.extra.get(self.required_columns[0].name, np.zeros(len(snapshot)))


class MediaScorer(Scorer, frozen=True, tag="mm-embeddings-cache-scorer"):
    """Score by the share of a request's media that an endpoint had of late, 0 without media.

    ``scheduling/scorer/mmcacheaffinity``. What it decoded last counts, a medium for 2 MiB of its encoder's
    cache: ``requestcontrol/dataproducer/multimodal``.
    """

    producer_name: str = ""
    #: That producer's; the translation of a configuration fills it in.
    cache_mib: int = field(default=0, name="cacheSizeInMBPerServer")

    @property
    def required_columns(self) -> tuple[Column, ...]:
        most = max((self.cache_mib if self.cache_mib > 0 else 4096) // 2, 1)
        return (Media(f"media:{most}", most=most),)

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return snapshot.extra.get(self.required_columns[0].name, np.zeros(len(snapshot)))


class FixedRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Scale from ``min`` to ``max``, whatever is seen."""

    min: float = 0.0
    max: float = 0.0

    def __post_init__(self) -> None:
        """Check that they are apart."""
        if self.min >= self.max:
            raise ValueError("min must be below max")


class Normalization(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Scale by a range of one's own, or by what the endpoints show."""

    fixed_range: FixedRange | None = None
    adaptive_range: dict[str, str] | None = None

    def __post_init__(self) -> None:
        """Check that it is one of them."""
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("one of fixedRange and adaptiveRange is wanted")


class ScorerAlgorithm(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Say which end of the range is good."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization = Normalization()


class AttributeScorer(Attribute, Scorer, frozen=True, tag="endpoint-attribute-scorer"):
    """Score by an attribute, in a range, and 0 without it: ``scheduling/scorer/endpointattribute``.

    Where all that have it show the same, each scores 1 by the adaptive range.
    """

    attribute_key: Literal["GPUUtilization"]
    algorithm: ScorerAlgorithm

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        shown, scores = self.shown(snapshot), np.zeros(len(snapshot))
        if not (there := shown >= 0.0).any():
            return scores
        fixed = self.algorithm.normalization.fixed_range
        least, most = (fixed.min, fixed.max) if fixed else (shown[there].min(), shown[there].max())
        if most == least:
            scores[there] = 1.0
            return scores
        scaled = np.clip((shown[there] - least) / (most - least), 0.0, 1.0)
        lower = self.algorithm.type == "linear_lower_is_better"
        scores[there] = 1.0 - scaled if lower else scaled
        return scores


class LatencyScorer(Objectives, Scorer, frozen=True, tag="latency-scorer"):
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

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        late, slow = snapshot.extra[TTFT_HEADROOM] < 0.0, snapshot.extra[TPOT_HEADROOM] < 0.0
        missed = late | slow
        if not missed.all():
            return self._scored(snapshot, ~missed, least=self.headroom_selection_strategy == "least")
        buckets = (snapshot.running_requests == 0.0, slow & ~late, late & ~slow, missed)
        return self._scored(snapshot, next(bucket for bucket in buckets if bucket.any()), least=True)

    def _scored(self, snapshot: Snapshot, among: Flags, *, least: bool) -> Floats:
        """Score some in hundredths, 0.01 at least, the others 0."""
        ttft, flat_ttft = _scaled(np.abs(snapshot.extra[TTFT_HEADROOM][among]))
        tpot, flat_tpot = _scaled(np.abs(snapshot.extra[TPOT_HEADROOM][among]))
        total = self.ttft_weight + self.tpot_weight
        shares = (self.ttft_weight / total, self.tpot_weight / total) if total > 0.0 else (1.0, 0.0)
        if flat_ttft != flat_tpot:
            shares = (float(flat_tpot), float(flat_ttft))
        combined = shares[0] * ttft + shares[1] * tpot
        scores = np.zeros(len(snapshot))
        scores[among] = (np.trunc((1.0 - combined if least else combined) * 100.0) + 1.0) / 100.0
        return scores


def _scaled(values: Floats) -> tuple[Floats, bool]:
    """Scale to 0 for the least and 1 for the most; to 0.5, with True, where they are equal."""
    least = values.min()
    spread = values.max() - least
    return (np.full(len(values), 0.5), True) if spread <= 1e-9 else ((values - least) / spread, False)


class SessionScorer(Bound, Scorer, frozen=True, tag="session-affinity-scorer"):
    """Score the session's endpoint 1: ``scheduling/scorer/sessionaffinity``."""

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return self.bound(snapshot)


class TopologyScorer(Scorer, frozen=True, tag="topology-affinity-scorer"):
    """Score 0: nearness to a prefill endpoint, which nobody chooses (``scorer/topologyaffinity``)."""

    topology_producer_name: str = ""

    def score(self, request: RequestInfo, snapshot: Snapshot) -> Floats:
        return np.zeros(len(snapshot))


Scorers = (
    QueueScorer
    | RunningScorer
    | KvCacheScorer
    | PrefixScorer
    | LoadAwareScorer
    | TokenLoadScorer
    | LMetricScorer
    | ObservationScorer
    | ActiveRequestScorer
    | NoHitLruScorer
    | LoraScorer
    | HeaderLabelScorer
    | MediaScorer
    | AttributeScorer
    | LatencyScorer
    | TopologyScorer
    | SessionScorer
)
