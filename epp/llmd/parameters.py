"""Plugins of llm-d, and their parameters: what those that are no part of a profile mean here.

Owns what each parameter says: it sets a section of ours, it is taken with a sentence, or it is refused; and
what stands for plugins that are not there, or what to do instead. A plugin that is in no table, here or in
`plugins`, is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import msgspec

from epp.config.section import NotNegative, Share  # noqa: TC001  # msgspec reads the annotation at run time
from epp.llmd.flags import duration_s
from epp.llmd.picker_config import PARSERS
from epp.llmd.policies.filters import Filters
from epp.llmd.policies.plugins import PrefixReader
from epp.llmd.policies.profile import Picker
from epp.llmd.policies.scorers import PrefixScorer, Scorers
from epp.llmd.policies.stages import Deciders
from epp.types import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.policies.plugins import Filter


#: What to do instead -> plugin types that are refused.
INSTEAD = {
    "leave it out: requests that run are not evicted": """
        priority-then-time-eviction-order-policy sheddable-eviction-filter
    """,
    "program-aware-fairness serves the flow that was served least lately: give each program a flow": """
        program-score-ordering-policy
    """,
    "leave it out: how long a session pauses between its turns is not predicted": """
        session-interturn-latency-producer
    """,
    "state context_tokens of endpoints: what does not fit is not sent there": """
        context-length-aware
    """,
    "list endpoints of several regions in one endpoints file, priced by their round trip": """
        multicluster-approx-prefix-cache-producer multicluster-file-discovery
        multicluster-kv-cache-utilization-scorer multicluster-metrics-data-source
        multicluster-metrics-extractor multicluster-prefix-cache-scorer multicluster-queue-scorer
        multicluster-session-affinity-filter
    """,
}
#: Plugin type -> what to do instead.
ALTERNATIVES = {kind: instead for instead, kinds in INSTEAD.items() for kind in kinds.split()}

_INDEX = "the prefix index here: it follows what is sent and what engines report"
_WATCHED = "pods are watched anyway"
_MODELS = "models are matched where endpoints state theirs"
_UNREAD = "what it parses passes through unread, balanced among the endpoints"
#: Plugin type -> what stands for it here, and its parameters, which are taken and say nothing more.
STAND_INS = {
    "burst-prefix-cache-producer": (
        _INDEX,
        (
            "windowDurationMs maxPerReplica blockSizeTokens maxPrefixTokensToMatch minColocateBlocks"
            " maxBatchSize balanceBy"
        ),
    ),
    "endpoint-notification-source": (_WATCHED, ""),
    "latency-observer-producer-hub": (
        "times to first token follow rates learned in process, as with predicted-latency-producer",
        (
            "intervalDuration maxObservationAge maxRequests minRequests lowPercentile typicalPercentile"
            " windowSize bucketDuration bucketHistorySize inFlightLoadProducerName"
        ),
    ),
    "k8s-notification-source": (_WATCHED, "group version kind"),
    "models-data-source": (
        _MODELS,
        "scheme path insecureSkipVerify caCertPath clientCertPath clientKeyPath interval",
    ),
    "models-data-extractor": (_MODELS, ""),
    "data-parallel-profile-handler": (
        "the destination is the rank's own port, as with the handler that replaces it in llm-d",
        "primaryPort",
    ),
    "vertexai-parser": (_UNREAD, ""),
    "vllmgrpc-parser": (_UNREAD, ""),
    "request-attribute-reporter": (
        "usage is in the metrics and the flight records; the gateway is sent no attribute",
        "attributes",
    ),
    "topology-extractor": (
        "whether two endpoints are near each other is not read",
        "hostname rack zone region",
    ),
    "agent-identity": ("sessions can be named by it; of queues it names none", "additionalSessionHeaders"),
}

PICKERS = frozenset(get_args(Picker))
#: Bytes a token is taken for where a block's size is given in tokens; llm-d's estimate (source [E]).
BYTES_PER_TOKEN = 4
APPROXIMATE = "approx-prefix-cache-producer"
KV_SOURCE = "kv_source_min_tokens"
BY_HEADER = "header-profile-handler"
GPU_SOURCE = "dcgm-data-source"
DECODE_FIRST, PREFILL_FIRST, JOINT = "decode-first", "prefill-first", "joint"
_ORDERS = {"": DECODE_FIRST, "decodefirst": DECODE_FIRST, "decode": DECODE_FIRST}
_ORDERS |= {"prefillfirst": PREFILL_FIRST, "prefill": PREFILL_FIRST, JOINT: JOINT}


class Stages(NamedTuple):
    """Say which profile does which stage, and who decides on it.

    Attributes:
        profiles: name of each stage's profile.
        deciders: name of its decider, empty for none: then there is no such stage.
        order: ``decode-first``, ``prefill-first``, or ``joint``: our own policy chooses all at once.
    """

    profiles: Mapping[Role, str]
    deciders: Mapping[Role, str]
    order: str = DECODE_FIRST


@dataclass(slots=True)
class Meaning:
    """What a configuration says, in sections of ours.

    Attributes:
        sections: section -> key -> value, to be laid over defaults.
        own: sections written by the operator as ours; they are laid over everything.
        warnings: sentences on what means something else here, one for each plugin or parameter.
        screeners: admitters and others by name; they come before a profile's filters.
        profile: parameters of a profile that producers say.
        handler: how one of several profiles is chosen.
        stages: which profiles are stages of a request, where they are.
        scheme: by which engines are scraped, empty where flags say it.
    """

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    screeners: dict[str, Filter] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    handler: dict[str, str] = field(default_factory=dict)
    stages: Stages | None = None
    scheme: str = ""

    def put(self, section: str, **values: Any) -> None:
        """Set keys of a section."""
        self.sections.setdefault(section, {}).update(values)


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Parameters of a plugin. A plugin without any.

    Attributes:
        unread: names of those that are taken and not read; `NOTED` and `REFUSED` say what becomes of some.
    """

    unread: ClassVar[str] = ""

    def put(self, _meaning: Meaning) -> None:
        """Say what they mean here."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


#: llm-d's capacity where none is stated (source [E]).
_LRU_BLOCKS = 31_250


class _Picker(Parameters, frozen=True):
    max_num_of_endpoints: Annotated[int, msgspec.Meta(le=17)] = 1


class ApproximateIndex(Parameters, frozen=True):
    """Of an approximate index; blocks are of 64 tokens at least, as in llm-d."""

    unread = "maxPrefixBlocksToMatch maxPrefixTokensToMatch"
    auto_tune: bool = True
    block_size_tokens: _Count = 0
    #: What `block_size_tokens` was called, which wins.
    block_size: _Count = 0
    lru_capacity_per_server: _Count = 0

    @property
    def _block_tokens(self) -> int:
        return max(self.block_size_tokens or self.block_size, 64)

    @property
    def capacity_tokens(self) -> int:
        """Return what an endpoint's cache holds, unless an engine tells."""
        return (self.lru_capacity_per_server or _LRU_BLOCKS) * self._block_tokens

    def size(self, meaning: Meaning) -> None:
        """Size the blocks and the capacity of the picker's index."""
        if self.block_size_tokens or self.block_size:
            meaning.put("prefix", block_bytes=min(self._block_tokens * BYTES_PER_TOKEN, 65536))
        if self.lru_capacity_per_server or not self.auto_tune:
            meaning.put("prefix", capacity_tokens=self.capacity_tokens)
        if not self.auto_tune:
            meaning.put("prefix", capacity_stated=True)
        elif self.lru_capacity_per_server:
            meaning.warnings.append(
                "lruCapacityPerServer: holds until an engine reports the size of its KV cache"
            )


class Prefix(ApproximateIndex, frozen=True):
    """Of the scorer, which had an index of its own."""

    match_length_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    prefix_match_info_producer_name: str = ""

    def put(self, meaning: Meaning) -> None:
        """Size the picker's index."""
        self.size(meaning)

    def scorer(self) -> PrefixScorer:
        """Return what scores by it in a profile."""
        return PrefixScorer(
            match_length_weight=self.match_length_weight,
            match_length_scale_tokens=self.match_length_scale_tokens,
            prefix_match_info_producer_name=self.prefix_match_info_producer_name,
        )


class _Discovery(msgspec.Struct, frozen=True, rename="camel"):
    socket_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 5557
    replay_socket_port: Annotated[int, msgspec.Meta(le=65535)] = 0


class _Events(msgspec.Struct, frozen=True, rename="camel"):
    topic_filter: str = "kv@"
    zmq_endpoint: str = ""
    discover_pods: bool = True
    pod_discovery_config: _Discovery = _Discovery()


class _Tier(msgspec.Struct, frozen=True):
    name: str
    weight: Share


class _Indexer(msgspec.Struct, frozen=True):
    tiers: list[_Tier] = msgspec.field(
        default_factory=lambda: [_Tier("gpu", 1.0), _Tier("cpu", 0.8)], name="kvCacheBackendConfigs"
    )


class PreciseIndex(Parameters, frozen=True):
    """Of the index of what engines tell; a tier that is not named weighs 1, as in llm-d."""

    unread = "tokenProcessorConfig speculativeIndexing speculativeTTL"
    kv_events_config: _Events = _Events()
    indexer_config: _Indexer = _Indexer()

    def put(self, meaning: Meaning) -> None:
        """Say where engines tell events."""
        events, pods = self.kv_events_config, self.kv_events_config.pod_discovery_config
        weights = {tier.name.lower(): tier.weight for tier in self.indexer_config.tiers}
        told: dict[str, Any] = {
            "enabled": True,
            "topics": [events.topic_filter] if events.topic_filter else [],
            "listen": events.zmq_endpoint,
            "cpu_price": weights.get("cpu", 1.0),
            "disk_price": weights.get("disk", weights.get("storage", 1.0)),
        }
        if events.discover_pods:
            told["address"] = f"tcp://{{host}}:{pods.socket_port}"
            if pods.replay_socket_port > 0:
                told["replay_address"] = f"tcp://{{host}}:{pods.replay_socket_port}"
        meaning.put("kv_events", **told)
        meaning.warnings.append(
            "precise-prefix-cache-producer: prompts are looked up in KV events where the model's tokenizer is"
            " on this machine; what is sent counts until events tell of it, and alone where they are not"
            " believed"
        )


class PreciseScorer(PreciseIndex, frozen=True):
    """The deprecated scorer with an index of its own."""

    unread = (
        f"{PreciseIndex.unread} {ApproximateIndex.unread} autoTune lruCapacityPerServer blockSize"
        " blockSizeTokens prefixMatchInfoProducerName"
    )

    def scorer(self) -> PrefixScorer:
        """Return what scores by it in a profile."""
        return PrefixScorer(precise=True)


class _InFlight(Parameters, frozen=True):
    unread = "outputRatio maxEstimatedOutputTokens syncCrossReplicaState prefixMatchInfoProducerName"
    add_estimated_output_tokens: Annotated[
        Literal[False], msgspec.Meta(extra={"fix": "leave it out: only prompts are counted"})
    ] = False


class _Predictor(Parameters, frozen=True):
    unread = (
        "samplingMean maxDecodeTokenSamplesForPrediction contextTTL endpointRoleLabel predictInProduce"
        " useEncoderCacheFeatures encoderCacheMatchInfoProducerName prefixMatchInfoProducerName"
        " inFlightLoadProducerName"
    )
    streaming_mode: bool = False
    slo_buffer_factor: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(
        default=1.0, name="sloBufferFactor"
    )

    def put(self, meaning: Meaning) -> None:
        meaning.profile |= {
            "streaming_mode": self.streaming_mode,
            "slo_buffer_factor": self.slo_buffer_factor,
        }
        meaning.warnings.append("predicted-latency-producer: latencies follow rates learned in process")


class SessionId(Parameters, frozen=True):
    """Say where a session's id stands."""

    header_name: str = ""
    cookie_name: str = ""

    def __post_init__(self) -> None:
        """An id stands in one place."""
        if bool(self.header_name) == bool(self.cookie_name):
            raise ValueError("one of headerName and cookieName is wanted")


class _FileDiscovery(Parameters, frozen=True):
    unread = "watchFile"
    path: Annotated[str, msgspec.Meta(min_length=1)]

    def put(self, meaning: Meaning) -> None:
        meaning.put("pool", file=self.path, eds_file="")


class _ByHeader(Parameters, frozen=True):
    header_name: str = ""
    default_profile: str = ""

    def put(self, meaning: Meaning) -> None:
        told = {"profile_header": self.header_name.strip(), "default_profile": self.default_profile.strip()}
        meaning.handler = {name: text for name, text in told.items() if text}


class _Stages(Parameters, frozen=True):
    """Of the handler of stages, also by the names that its parameters had."""

    stage_order: str = ""
    profiles: dict[Literal["decode", "prefill", "encode"], str] = {}
    deciders: dict[Literal["prefill", "encode"], str] = {}
    decode_profile: str = ""
    prefill_profile: str = ""
    encode_profile: str = ""
    prefill_decider_plugin_name: str = ""
    encode_decider_plugin_name: str = ""
    decider_plugin_name: str = ""

    def put(self, meaning: Meaning) -> None:
        old_profiles = (self.decode_profile, self.prefill_profile, self.encode_profile)
        prefill = self.prefill_decider_plugin_name or self.decider_plugin_name
        old_deciders = (prefill, self.encode_decider_plugin_name)
        if (self.profiles or self.deciders) and any((*old_profiles, *old_deciders)):
            raise ValueError("profiles and deciders, or the parameters that they replace, not both")
        order = _ORDERS.get(self.stage_order.lower().replace("-", "").replace("_", ""))
        if order is None:
            raise ValueError(
                f"stageOrder {self.stage_order!r} is none of {DECODE_FIRST}, {PREFILL_FIRST}, {JOINT}"
            )
        told = dict(zip(("decode", "prefill", "encode"), old_profiles, strict=True)) | dict(self.profiles)
        deciders = dict(zip(("prefill", "encode"), old_deciders, strict=True)) | dict(self.deciders)
        if order == PREFILL_FIRST and deciders["prefill"]:
            raise ValueError(f"no prefill decider goes with stageOrder {PREFILL_FIRST}")
        meaning.stages = Stages(
            {Role(stage): name or stage for stage, name in told.items()},
            {Role(stage): name for stage, name in deciders.items()},
            order,
        )


class _PrefillDecode(Parameters, frozen=True):
    """Of the handler that had the two stages."""

    unread = "prefixPluginType prefixPluginName prefixMatchInfoProducerName"
    decode_profile: str = "decode"
    prefill_profile: str = "prefill"
    primary_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    decider_plugin_name: Annotated[str, msgspec.Meta(min_length=1)] = "prefix-based-pd-decider"

    def put(self, meaning: Meaning) -> None:
        profiles = {Role.DECODE: self.decode_profile, Role.PREFILL: self.prefill_profile}
        meaning.stages = Stages(profiles, {Role.PREFILL: self.decider_plugin_name})


class _WorkerHeaders(Parameters, frozen=True):
    """Of what sets the headers of workers, which are always set."""

    unread = "prefillProfile encodeProfile"


class MediaCache(Parameters, frozen=True):
    """Of what remembers which endpoint had which media."""

    cache_mib: int = msgspec.field(default=0, name="cacheSizeInMBPerServer")


class _Peer(Parameters, frozen=True):
    unread = "prefillProfileName prefixMatchInfoProducerName"
    min_cached_token_delta: Annotated[int, msgspec.Meta(ge=1)] = 1

    def put(self, meaning: Meaning) -> None:
        meaning.profile[KV_SOURCE] = self.min_cached_token_delta


class _TokenProducer(Parameters, frozen=True):
    unread = "modelName estimate"
    vllm: object = None
    uds_tokenizer_config: object = None

    def put(self, meaning: Meaning) -> None:
        if self.vllm or self.uds_tokenizer_config:
            meaning.warnings.append(
                "token-producer: tokens are counted in process, by the model's tokenizer where it is on this "
                "machine (tokens of epp-settings), else estimated"
            )


class _DataSource(Parameters, frozen=True):
    unread = "port clientCertPath clientKeyPath"
    scheme: Literal["", "http", "https"] = ""
    path: str = ""
    interval: str = "0"
    insecure_skip_verify: bool | None = None
    ca_cert_path: str = ""

    def put(self, meaning: Meaning) -> None:
        """What is not said is the flags'; a CA is read only where certificates are verified, as in llm-d."""
        if self.path:
            meaning.put("scrape", path=self.path)
        if interval_s := duration_s(self.interval):
            meaning.put("scrape", interval_s=interval_s)
        if self.insecure_skip_verify is not None:
            meaning.put("scrape", insecure=self.insecure_skip_verify)
        if self.ca_cert_path:
            meaning.put("scrape", ca_file=self.ca_cert_path)
        meaning.scheme = self.scheme or meaning.scheme


class GpuSource(Parameters, frozen=True):
    """Of DCGM Exporter beside each endpoint."""

    unread = "interval"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 9400
    scheme: Literal["http"] = "http"
    path: Literal["/metrics"] = "/metrics"
    use_node_address: bool = False
    insecure_skip_verify: bool = True

    def put(self, meaning: Meaning) -> None:
        """Name the exporter's port."""
        if self.use_node_address:
            meaning.warnings.append(f"{GPU_SOURCE}: an exporter of the node is not read, only one in the pod")
        else:
            meaning.put("scrape", gpu_port=self.port)


class _Extractor(Parameters, frozen=True):
    unread = "engineLabelKey defaultEngine engineConfigs customMetrics"


class _ProgramAware(Parameters, frozen=True):
    unread = "evictionTtlSeconds evictionSweepSeconds"
    strategy: Literal["", "las", "turn-priority"] = "las"
    las_weight_service: NotNegative = 0.8
    las_weight_head_wait: NotNegative = 0.2
    half_life_s: NotNegative = msgspec.field(default=60.0, name="lasHalfLifeSeconds")
    turn_wait_weight: NotNegative = msgspec.field(default=0.05, name="turnPriorityTimeWeight")
    turn_idle_s: NotNegative = msgspec.field(default=120.0, name="turnPriorityInactivitySeconds")


class _VirtualTokens(Parameters, frozen=True):
    unread = "inputTokenWeight outputTokenWeight"


class MaxSaturation(Parameters, frozen=True):
    """Name the detectors of which the largest counts."""

    detectors: Annotated[list[str], msgspec.Meta(min_length=1)]
    stages: Annotated[
        dict[str, Any], msgspec.Meta(max_length=0, extra={"fix": "leave it out: all endpoints are measured"})
    ] = {}


class _ServedModel(Parameters, frozen=True):
    on_missing: Literal["", "Pass", "Fail"] = ""
    fallback_on_empty: bool = False

    def put(self, meaning: Meaning) -> None:
        if self.on_missing == "Fail" or self.fallback_on_empty:
            raise ValueError(
                "onMissing Fail and fallbackOnEmpty are not read: leave them out, state models of endpoints"
            )
        meaning.warnings.append(f"served-model-filter: {_MODELS}")


class _StaticLimit(Parameters, frozen=True):
    threshold: NotNegative = 1.0


class _Holdback(Parameters, frozen=True):
    unread = "shape"
    min_ceiling: Share
    max_ceiling: Share = 1.0
    domain: Literal["rank", "value"] = "rank"


class _Conformance(Parameters, frozen=True):
    def put(self, meaning: Meaning) -> None:
        meaning.put("protocol", conformance=True)
        meaning.warnings.append("for the conformance suite alone: clients choose their endpoint by a header")


def _kinds(union: object) -> dict[str, type[msgspec.Struct]]:
    return {str(part.__struct_config__.tag): part for part in get_args(union)}


#: Policies of flow control; without its feature gate they are without effect, as in llm-d.
FLOW_CONTROL: Mapping[str, type[Parameters]] = {
    "edf-ordering-policy": Parameters,
    "fcfs-ordering-policy": Parameters,
    "global-strict-fairness-policy": Parameters,
    "priority-holdback-policy": _Holdback,
    "program-aware-fairness": _ProgramAware,
    "round-robin-fairness-policy": Parameters,
    "slo-deadline-ordering-policy": Parameters,
    "soft-reflective-ceiling-policy": Parameters,
    "static-usage-limit-policy": _StaticLimit,
    "vtc-fairness-policy": _VirtualTokens,
}
KINDS: Mapping[str, type[msgspec.Struct]] = {
    **_kinds(Filters),
    **_kinds(Scorers),
    **_kinds(Deciders),
    "prefix-cache-scorer": Prefix,
    "precise-prefix-cache-scorer": PreciseScorer,
    "precise-prefix-cache-producer": PreciseIndex,
    **dict.fromkeys(PICKERS, _Picker),
    "single-profile-handler": Parameters,
    "max-saturation-detector": MaxSaturation,
    "served-model-filter": _ServedModel,
    BY_HEADER: _ByHeader,
    "disagg-profile-handler": _Stages,
    "pd-profile-handler": _PrefillDecode,
    **dict.fromkeys(("disagg-headers-handler", "prefill-header-handler"), _WorkerHeaders),
    "mm-embeddings-cache-producer": MediaCache,
    "file-discovery": _FileDiscovery,
    "session-id-producer": SessionId,
    APPROXIMATE: ApproximateIndex,
    "token-producer": _TokenProducer,
    "tokenizer": _TokenProducer,
    "inflight-load-producer": _InFlight,
    "predicted-latency-producer": _Predictor,
    "p2p-source-producer": _Peer,
    **dict.fromkeys(PARSERS, Parameters),
    "metrics-data-source": _DataSource,
    "core-metrics-extractor": _Extractor,
    **FLOW_CONTROL,
    GPU_SOURCE: GpuSource,
    "dcgm-extractor": Parameters,
    "header-based-testing-filter": _Conformance,
    "destination-endpoint-served-verifier": _Conformance,
}

_MATCHED = "prompts are matched to their end"
_ONE_INDEX = "the picker's own prefix index is read, whatever its name"
_BY_METRICS = "an engine is recognised by the names of its metrics"
#: Parameters, of one plugin or any, that are accepted, and the warning that says what they mean here.
NOTED = {
    f"{GPU_SOURCE} interval": "GPU counters are read as often as engine metrics",
    "revisionGating": "pairs are of one revision; each takes its share of requests by load",
    "headerSelectors": "strict ones are read, and no answer is stamped",
    "pd-profile-handler primaryPort": "the destination is the rank's own port",
    "watchFile": "the file is always watched",
    "blockSize": "is in tokens, as in today's llm-d; in old files it was in characters",
    "speculativeIndexing": "what is sent counts until events tell of it, whether or not it is set",
    "speculativeTTL": "what is sent counts for 2 s after its first token",
    "maxPrefixBlocksToMatch": _MATCHED,
    "maxPrefixTokensToMatch": _MATCHED,
    **{
        f"{kind} prefixMatchInfoProducerName": _ONE_INDEX
        for kind, form in KINDS.items()
        if not issubclass(form, Prefix | PrefixReader)
    },
    "estimate": "tokens are estimated from bytes, by a ratio for each model",
    "evictionTtlSeconds": "the 10,000 flows that were served last are remembered",
    "engineLabelKey": _BY_METRICS,
    "defaultEngine": _BY_METRICS,
}
_NO_CERTIFICATE = "no client certificate is sent", "use a bearer token: scrape.bearer_token_file"
_RENAMED = "llm-d renamed this parameter"
_BLOCKS = _RENAMED, "blockSizeTokens of approx-prefix-cache-producer: tokens, where it was characters"
_BUILT_IN = "metric names are built in", "leave it out for vLLM, SGLang and TensorRT-LLM"
#: Parameters that are refused: why, and what to do instead.
REFUSED = {
    "metrics-data-source port": (
        "metrics are read where the endpoint serves",
        "leave it out, or serve metrics on the endpoint's port",
    ),
    **dict.fromkeys(("prefix-cache-scorer hashBlockSize", "pd-profile-handler hashBlockSize"), _BLOCKS),
    "pd-profile-handler threshold": (_RENAMED, "nonCachedTokens of prefix-based-pd-decider"),
    "clientCertPath": _NO_CERTIFICATE,
    "clientKeyPath": _NO_CERTIFICATE,
    "engineConfigs": _BUILT_IN,
    "customMetrics": _BUILT_IN,
}
