"""llm-d's filters and admitters, each by the rule of its source (`epp.llmd.policies.plugins`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct, field

from epp.llmd.policies.plugins import (
    LORA,
    PRIORITY,
    TPOT_HEADROOM,
    TPOT_SLO,
    TTFT,
    TTFT_HEADROOM,
    TTFT_SLO,
    Attribute,
    Bound,
    Filter,
    Label,
    ModelLabel,
    NotNegative,
    Objectives,
    Positive,
    PositiveInt,
    PrefixReader,
    Share,
    told_model,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.policies.plugins import Column
    from epp.types import Flags, Floats, RequestInfo, Snapshot


class SessionFilter(Bound, Filter, frozen=True, tag="session-affinity-filter"):
    """Keep the session's endpoint alone, if it is there: ``scheduling/filter/sessionaffinity``."""

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        bound = self.bound(snapshot) > 0.0
        return bound | (not bound.any())


class AffinityFilter(PrefixReader, Filter, frozen=True, tag="prefix-cache-affinity-filter"):
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

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        everybody = np.ones(len(snapshot), np.bool_)
        if len(snapshot) <= 1 or self.affinity_threshold <= 0.0 or draw < self.exploration_probability:
            return everybody
        cached, prompt = self.in_blocks(request, snapshot)
        sticky = cached / prompt >= self.affinity_threshold
        if not sticky.any() or sticky.all():
            return everybody
        if self.max_ttft_penalty_ms:
            ttft_ms = self._ttft_ms(snapshot)
            late_ms = float(ttft_ms[sticky].min()) - float(ttft_ms[~sticky].min())
            if late_ms > self.max_ttft_penalty_ms:
                return everybody
        return sticky

    def _ttft_ms(self, snapshot: Snapshot) -> Floats:
        if self.predicts:
            return snapshot.extra[TTFT]
        return snapshot.pending_uncached_tokens / self.peak_prefill_throughput * 1e3


class HeadroomFilter(Objectives, Filter, frozen=True, tag="slo-headroom-tier-filter"):
    """Keep who meets both SLOs, if any: ``scheduling/filter/sloheadroomtier/plugin.go``.

    A draw below ``epsilonExploreNeg`` keeps the others instead.
    """

    epsilon_explore_neg: Share = 0.01

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        met = (snapshot.extra[TTFT_HEADROOM] >= 0.0) & (snapshot.extra[TPOT_HEADROOM] >= 0.0)
        if met.all() or not met.any():
            return np.ones(len(snapshot), np.bool_)
        return ~met if draw < self.epsilon_explore_neg else met


class ModelFilter(Filter, frozen=True, tag="model-affinity-filter"):
    """Keep whose label is the model's name, or all without one: ``filter/modelaffinity`` of 75c19ad."""

    label_key: str = "model"
    model_header: str = "x-gateway-model-name"

    @property
    def required_columns(self) -> tuple[Column, ...]:
        label, header = self.label_key or "model", self.model_header.lower()
        return (ModelLabel(f"model:{header}={label}", (header,) if header else (), label=label),)

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        (column,) = self.required_columns
        found = snapshot.extra.get(column.name, np.ones(len(snapshot))) > 0.0
        return found | (not told_model(column.headers, request))


class ResidencyFilter(Filter, frozen=True, tag="lora-residency-filter"):
    """Keep who runs the adapter: ``filter/loraresidency/plugin.go`` of 5640baf.

    Where all of those are saturated and fewer than ``max_replicas`` (0: any number), others that are not
    saturated instead. Where nobody runs it all stay.
    """

    max_replicas: Annotated[int, Meta(ge=0)] = 0
    queue_threshold: Annotated[int, Meta(ge=0)] = 8
    kv_cache_threshold: Share = 0.8

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return (LORA,)

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        homes = snapshot.extra.get(LORA.name, np.zeros(len(snapshot))) == 1.0
        if not homes.any() or not request.model:
            return np.ones(len(snapshot), np.bool_)
        free = np.ones(len(snapshot), np.bool_)  # also where nothing is known
        if self.queue_threshold:
            free &= ~(snapshot.engine_waiting > self.queue_threshold)
        if self.kv_cache_threshold:
            free &= ~(snapshot.engine_kv_usage > self.kv_cache_threshold)
        capped = 0 < self.max_replicas <= homes.sum()
        return homes if (homes & free).any() or capped or not free.any() else free


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

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        kept = np.ones(len(snapshot), np.bool_)
        for limit in self.conditions:
            kept &= ~(getattr(snapshot, _METRICS[limit.metric]) > limit.max_value)  # NaN passes, as in llm-d
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

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        room = 1.0 + self.headroom
        kept = (
            (snapshot.engine_waiting < self.queue_depth_threshold * room)
            & (snapshot.engine_kv_usage < self.kv_cache_util_threshold * room)
            & (snapshot.engine_age_ms <= float(self.metrics_staleness_threshold))
            & ~snapshot.unknown.get("engine_kv_usage", np.zeros(len(snapshot), np.bool_))
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

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        room = 1.0 + self.headroom
        requests = snapshot.running_requests < int(self.max_concurrency * room)
        tokens = snapshot.pending_uncached_tokens < int(self.max_token_concurrency * room)
        return {"requests": requests, "tokens": tokens, "hybrid": requests & tokens}[self.concurrency_mode]


class Threshold(Struct, frozen=True, forbid_unknown_fields=True):
    """Compare with a value."""

    operator: Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]
    value: float = 0.0


class FilterAlgorithm(Struct, frozen=True, forbid_unknown_fields=True):
    """Choose by a threshold."""

    type: Literal["threshold"]
    threshold: Threshold


class AttributeFilter(Attribute, Filter, frozen=True, tag="endpoint-attribute-filter"):
    """Keep whose attribute meets the threshold: ``scheduling/filter/endpointattribute/filter.go``."""

    attribute: Literal["GPUUtilization"]
    algorithm: FilterAlgorithm
    on_missing: Literal["", "Pass", "Fail"] = ""
    fallback_on_empty: bool = False

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        shown, value = self.shown(snapshot), self.algorithm.threshold.value
        less, same = shown < value, shown == value
        met: Flags = {
            "LessThan": less,
            "LessThanOrEqual": less | same,
            "GreaterThan": ~(less | same),
            "GreaterThanOrEqual": ~less,
            "Equal": same,
            "NotEqual": ~same,
        }[self.algorithm.threshold.operator]
        kept = np.where(shown < 0.0, self.on_missing != "Fail", met)
        return kept | (self.fallback_on_empty and not kept.any())


class TopologyFilter(Filter, frozen=True, tag="topology-affinity-filter"):
    """Keep all: nearness to a prefill endpoint, which nobody chooses (``filter/topologyaffinity``)."""

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


class SelectorFilter(LabelFilter, frozen=True, tag="by-label-selector"):
    """The same by the name that it had."""


class ByLabelFilter(Filter, frozen=True, tag="by-label"):
    """Keep whose label has one of the values, or is not there: ``scheduling/filter/bylabel/filter.go``."""

    label: Annotated[str, Meta(min_length=1)]
    valid_values: list[str] = []
    allows_no_label: bool = False

    def __post_init__(self) -> None:
        """Check that somebody may pass."""
        if not (self.valid_values or self.allows_no_label):
            raise ValueError("validValues or allowsNoLabel is wanted")

    def admits(self, labels: Mapping[str, str]) -> bool:
        return labels.get(self.label, None if self.allows_no_label else "") in (*self.valid_values, None)


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


class HeaderSelector(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Ask for a label's value by a header; ``prefer`` keeps all."""

    name: str
    header_name: str
    label_key: str
    mode: Literal["strict", "prefer"]

    @property
    def column(self) -> Label:
        """Return the column of who has that value."""
        header = self.header_name.lower()
        return Label(f"label:{header}={self.label_key}", (header,), label=self.label_key)


class RevisionGating(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Say which revisions serve; pairs are of one anyway."""

    mode: Literal["sum", "max-role", "disabled"]
    require_roles: dict[str, list[str]] = {}
    revision_label_key: Literal["", "disaggregatedset.x-k8s.io/revision"] = ""
    role_label_key: Literal["", "disaggregatedset.x-k8s.io/role"] = ""


class RolloutScreener(Filter, frozen=True, tag="disaggregatedset-rollout-screener"):
    """Keep whose labels strict headers ask for: ``requestcontrol/screener/disaggregatedsetrollout``.

    It stands before every profile. Revisions take their share of requests by what a profile scores, not by
    pods; answers are not stamped.
    """

    before_profile = True
    scope: dict[str, str]
    revision_gating: RevisionGating
    header_selectors: list[HeaderSelector] = []

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return tuple(each.column for each in self.header_selectors if each.mode == "strict")

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        kept = np.ones(len(snapshot), np.bool_)
        for column in self.required_columns:
            if request.headers.get(column.headers[0]):
                kept &= snapshot.extra[column.name] > 0.0
        return kept


class Admitter(Filter, frozen=True):
    """Keep all or nobody, of requests with negative priority."""

    before_profile = True

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return (PRIORITY,)

    def keep(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> Flags:
        priority = snapshot.extra.get(PRIORITY.name)
        free = priority is None or priority[0] >= 0.0
        return np.full(len(snapshot), free or self.admits_request(request, snapshot, draw))

    def admits_request(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> bool:
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

    def admits_request(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> bool:
        queue = snapshot.engine_waiting / self.queue_depth_threshold
        fuller = np.maximum(queue, snapshot.engine_kv_usage / self.kv_cache_util_threshold)
        return bool(draw >= min(float(fuller.mean()) ** self.power * self.k, 1.0))


class LatencyAdmitter(Objectives, Admitter, frozen=True, tag="latency-slo-admitter"):
    """Refuse where no endpoint meets the request's SLOs, is idle, or has a KV cache below 2 %.

    ``requestcontrol/admitter/latencyslo/plugin.go``.
    """

    @property
    def required_columns(self) -> tuple[Column, ...]:
        return PRIORITY, TTFT_SLO, TPOT_SLO

    def admits_request(self, request: RequestInfo, snapshot: Snapshot, draw: float) -> bool:
        none = np.zeros(len(snapshot))
        if not (snapshot.extra.get(TTFT_SLO.name, none) + snapshot.extra.get(TPOT_SLO.name, none)).any():
            return True
        met = (snapshot.extra[TTFT_HEADROOM] > 0.0) & (snapshot.extra[TPOT_HEADROOM] >= 0.0)
        return bool((met | (snapshot.engine_running == 0.0) | (snapshot.engine_kv_usage < 0.02)).any())


Filters = (
    AffinityFilter
    | HeadroomFilter
    | ModelFilter
    | ResidencyFilter
    | UtilizationFilter
    | UtilizationDetector
    | ConcurrencyDetector
    | AttributeFilter
    | TopologyFilter
    | SessionFilter
    | LabelFilter
    | SelectorFilter
    | ByLabelFilter
    | DecodeFilter
    | PrefillFilter
    | EncodeFilter
    | RolloutScreener
    | ProbabilisticAdmitter
    | LatencyAdmitter
)
