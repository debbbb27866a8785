"""What an `EndpointPickerConfig` means here: a policy with its weights, and settings of the prefix index.

Ways to say the policy: the scorers of llm-d's default profile become the policy `llm-d` (same formulas,
weights that can be tuned); random-picker alone becomes `random`; any other profile becomes `llm-d-profile`,
plugin by plugin; a plugin named like one of our policies is that policy. Owns that translation;
`picker_config` owns the file's shape, `catalogue` what is no part of a profile.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from epp.config.strict import convert
from epp.errors import ConfigError, gather, raise_all
from epp.llmd.catalogue import ALTERNATIVES, FLOW_CONTROL, STAGES, STAND_INS
from epp.llmd.picker_config import Profile, Reference
from epp.llmd.values import duration_s
from epp.policies.llm_d_plugins import (
    Admitter,
    Bound,
    ConcurrencyDetector,
    Filter,
    Filters,
    PrefixScorer,
    Scorer,
    Scorers,
    SessionSource,
    TopologyFilter,
    TopologyScorer,
    UtilizationDetector,
)
from epp.policies.llm_d_profile import LlmDProfile, LlmDProfiles, Picker
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.picker_config import EndpointPickerConfig, Plugin

#: Our own settings, as parameters of a plugin of this type: sections of `epp.yaml`.
SETTINGS = "epp-settings"
#: Scorer -> weight of the policy `llm-d`.
SCORERS = {
    "queue-scorer": "queue_weight",
    "kv-cache-utilization-scorer": "kv_weight",
    "prefix-cache-scorer": "prefix_weight",
}
PICKERS = frozenset(get_args(Picker))
#: Weights without any configuration, llm-d's defaults (source [E]).
DEFAULT_WEIGHTS = {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
#: Bytes a token is taken for where a block's size is given in tokens; llm-d's estimate (source [E]).
BYTES_PER_TOKEN = 4
_LARGEST_WEIGHT = 10.0
_GATES = frozenset({"haPopulateNonLeaderDatastore", "dataLayer", "prepareDataPlugins"})
_FALSE = frozenset({"0", "f", "false"})
_NOTHING_QUEUED = "leave it out: nothing is queued; requests of negative priority get 429 when saturated"
_KV_SOURCE = "kv_source_min_tokens"
_BY_HEADER = "header-profile-handler"
#: Where agents' ids stand, source: ``requestcontrol/requestheader/agentidentity/agent_identity.go``.
_AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
#: Least age at which metrics count as stale: they are at most `settings.SHORTEST_SCRAPE_S` apart, and late.
_LEAST_STALE_MS = 500.0
#: What a policy's plugin may say besides the policy's parameters.
_POLICY_KEYS = ("weights", "bounds", "tie_band", "fallbacks")


@dataclass(slots=True)
class Meaning:
    """What a configuration says, in sections of ours.

    Attributes:
        sections: section -> key -> value, to be laid over defaults.
        own: sections written by the operator as ours; they are laid over everything.
        warnings: sentences on what means something else here, one for each plugin or parameter.
        admitters: by name; they come before a profile's filters.
        profile: parameters of a profile that producers say.
        handler: how one of several profiles is chosen.
    """

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    admitters: dict[str, Admitter] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    handler: dict[str, str] = field(default_factory=dict)

    def put(self, section: str, **values: Any) -> None:
        """Set keys of a section."""
        self.sections.setdefault(section, {}).update(values)


def default_meaning() -> Meaning:
    """llm-d's behaviour without a configuration."""
    meaning = Meaning()
    meaning.put("policy", name="llm-d", weights=dict(DEFAULT_WEIGHTS), fallbacks=0)
    return meaning


def meaning_of(config: EndpointPickerConfig, source: str) -> Meaning:
    """Translate a configuration.

    Raises:
        ConfigError: all plugins, parameters and sections without a counterpart, each with what to do instead.
    """
    meaning, made, errors = Meaning(), dict[str, Any](), list[ConfigError]()
    queued = _check_sections(config, source, meaning, errors)
    refused: dict[str, list[str]] = {}
    for position, plugin in enumerate(config.plugins):
        kind = plugin.type
        if instead := ALTERNATIVES.get(kind, _NOTHING_QUEUED if queued and kind in FLOW_CONTROL else ""):
            refused.setdefault(instead, []).append(kind)
            continue
        with gather(errors):
            made[plugin.known_as] = _plugin(plugin, f"plugins[{position}]", source, meaning)
    for instead, kinds in refused.items():
        problem = f"no counterpart here: {', '.join(dict.fromkeys(kinds))}"
        errors.append(ConfigError(source, "plugins", problem, instead))
    raise_all(errors)
    if not config.plugins:
        return default_meaning()
    _detect(config, made, meaning)
    made |= {
        name: _with_headers(part, config, made) for name, part in made.items() if isinstance(part, Bound)
    }
    by_name = {plugin.known_as: plugin for plugin in config.plugins}
    profiles = config.scheduling_profiles or [  # without, every plugin belongs to one
        Profile("default", [Reference(plugin_ref=name) for name in by_name])
    ]
    parts: dict[str, dict[str, Any]] = {}
    for position, profile in enumerate(profiles):
        entries = [(by_name[each.plugin_ref], made[each.plugin_ref], each.weight) for each in profile.plugins]
        key = f"schedulingProfiles[{position}]" if config.scheduling_profiles else "plugins"
        _policy(entries, key, source, meaning, several=len(profiles) > 1)
        parts[profile.name] = meaning.sections["policy"].get("params", {})
    if len(profiles) > 1:
        meaning.put("policy", name=LlmDProfiles.name, params={**meaning.handler, "profiles": parts})
    return meaning


def _check_sections(
    config: EndpointPickerConfig, source: str, meaning: Meaning, errors: list[ConfigError]
) -> bool:
    """Check all but plugins; tell whether flow control is asked for."""
    staged = any(ALTERNATIVES.get(plugin.type) == STAGES for plugin in config.plugins)
    by_header = any(plugin.type == _BY_HEADER for plugin in config.plugins)
    if len(config.scheduling_profiles) > 1 and not staged and not by_header:
        names = ", ".join(profile.name for profile in config.scheduling_profiles)
        fix = f"name {_BY_HEADER}, or keep one"
        problem = f"several ({names}), and no plugin that chooses"
        errors.append(ConfigError(source, "schedulingProfiles", problem, fix))
    queued = False
    for position, gate in enumerate(config.feature_gates):
        name, _, value = gate.partition("=")
        if value.strip().lower() not in _FALSE and name not in _GATES:
            queued |= name == "flowControl"
            problem = "flow control: nothing is queued here" if queued else f"unknown gate {name!r}"
            fix = _NOTHING_QUEUED if queued else "leave it out"
            errors.append(ConfigError(source, f"featureGates[{position}]", problem, fix))
    if not queued and set(config.flow_control or {}) - {"saturationDetector"}:
        meaning.warnings.append("flowControl: without effect, as in llm-d without its feature gate")
    layer = config.data_layer
    if layer.peer_discovery or layer.cross_replica_syncer_plugin_ref:
        fix = "leave it out: replicas share no state"
        problem = "replicas of the picker do not meet"
        errors.append(ConfigError(source, "dataLayer.peerDiscovery", problem, fix))
    return queued


def _plugin(plugin: Plugin, key: str, source: str, meaning: Meaning) -> object:
    """Check a plugin, take what its parameters say for itself, and return them."""
    kind, given, key_of = plugin.type, plugin.parameters or {}, f"{key}.parameters"
    if kind == SETTINGS:
        meaning.own = dict(given)
        for section in ("listen", "pool"):
            if section in meaning.own:
                fix = "use the flags" if section == "listen" else "the flags say the pool"
                raise ConfigError(source, f"{key_of}.{section}", "is said by flags here", fix)
        return None
    if kind in POLICIES:
        return None
    if kind in FLOW_CONTROL:
        meaning.warnings.append(f"{kind}: without effect, as in llm-d without its feature gate")
        return None
    if stand_in := STAND_INS.get(kind):
        words, names = stand_in
        if unknown := given.keys() - names.split():
            problem = f"{kind}: unknown parameter"
            raise ConfigError(source, f"{key_of}.{min(unknown)}", problem, f"known: {names or 'none'}")
        meaning.warnings.append(f"{kind}: {words}")
        return None
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, [*KINDS, *POLICIES, *ALTERNATIVES, SETTINGS], n=1)
        fix = f"did you mean {near[0]!r}?" if near else "docs/llm-d.md lists the plugins"
        raise ConfigError(source, key, f"unknown plugin {kind!r}", fix)
    parameters = convert(given, KINDS[kind], source, key_of)
    for name in given:
        if refusal := _REFUSED.get(name):
            raise ConfigError(source, f"{key_of}.{name}", f"{kind}: {refusal[0]}", refusal[1])
        if note := _NOTED.get(name):
            meaning.warnings.append(f"{kind} {name}: {note}")
    try:
        if isinstance(parameters, UtilizationDetector):
            return _with_staleness(parameters, meaning)
        if isinstance(parameters, _Parameters):
            parameters.put(meaning)
        elif isinstance(parameters, Admitter):
            meaning.admitters[plugin.known_as] = parameters
        elif isinstance(parameters, TopologyScorer | TopologyFilter):
            meaning.warnings.append(
                f"{kind}: without effect where no prefill endpoint is picked, as in llm-d"
            )
    except ValueError as error:
        raise ConfigError(source, key_of, f"{kind}: {error}") from None
    return parameters


def _with_staleness(found: UtilizationDetector, meaning: Meaning) -> UtilizationDetector:
    """Read the Go duration; engines are scraped less often here than by llm-d."""
    told = found.metrics_staleness_threshold
    stale_ms = max(duration_s(told) * 1e3 if isinstance(told, str) else told, _LEAST_STALE_MS)
    if isinstance(told, str) and stale_ms == _LEAST_STALE_MS:
        meaning.warnings.append(
            f"utilization-detector metricsStalenessThreshold: {_LEAST_STALE_MS:g} ms at least"
        )
    return replace(found, metrics_staleness_threshold=stale_ms)


def _with_headers(found: Bound, config: EndpointPickerConfig, made: Mapping[str, object]) -> Bound:
    """Name the headers of a session's sources that are what other plugins find."""
    sources: list[SessionSource] = []
    for source in found.session_id_config.sources:
        producer = made.get(source.producer or "session-id-producer")
        if source.header:
            sources.append(source)
        elif source.attribute == "agent-identity":
            agents = next((each for each in config.plugins if each.type == "agent-identity"), None)
            more = (agents.parameters or {}).get("additionalSessionHeaders", []) if agents else []
            sources += [SessionSource(header=name) for name in (*more, *_AGENT_HEADERS) if agents]
        elif isinstance(producer, _SessionId):
            sources.append(SessionSource(header=producer.header_name or f"cookie:{producer.cookie_name}"))
    return replace(found, session_id_config=replace(found.session_id_config, sources=sources))


def _detect(config: EndpointPickerConfig, made: Mapping[str, object], meaning: Meaning) -> None:
    """Measure saturation by the detector that is referred to, else by the one that llm-d would take."""
    within = (config.flow_control or {}).get("saturationDetector") or {}
    outer = config.saturation_detector.plugin_ref if config.saturation_detector else ""
    match made.get(within.get("pluginRef") or outer or "utilization-detector"):
        case UtilizationDetector() as found:
            meaning.put(
                "saturation",
                queue_requests=found.queue_depth_threshold,
                kv_usage=found.kv_cache_util_threshold,
                stale_after_s=float(found.metrics_staleness_threshold) / 1e3,
            )
        case ConcurrencyDetector() as found:
            if found.concurrency_mode != "tokens":
                meaning.put("saturation", running_requests=found.max_concurrency)
            if found.concurrency_mode != "requests":
                meaning.put("saturation", pending_tokens=found.max_token_concurrency)


#: A plugin of a profile: as configured, its parameters, its weight.
_Entry = tuple["Plugin", Any, float | None]


def _policy(entries: list[_Entry], key: str, source: str, meaning: Meaning, *, several: bool) -> None:
    ours = [(plugin, weight) for plugin, _, weight in entries if plugin.type in POLICIES]
    scorers = [entry for entry in entries if isinstance(entry[1], Scorer | _Prefix)]
    filters = {plugin.known_as: part for plugin, part, _ in entries if isinstance(part, Filter)}
    filters = {**meaning.admitters, **filters}
    pickers = {plugin.type: part for plugin, part, _ in entries if plugin.type in PICKERS}
    if len(pickers) > 1 or len({plugin.known_as for plugin, _, _ in scorers}) < len(scorers):
        raise ConfigError(source, key, "several pickers, or a scorer twice", "keep one")
    if len(ours) > 1 or (ours and (scorers or filters or several)):
        names = ", ".join(
            [*(each[0].type for each in ours), *(plugin.type for plugin, _, _ in scorers), *filters]
        )
        fix = "a policy is the whole formula: keep one, and drop the filters and scorers"
        raise ConfigError(source, key, f"a policy beside others: {names}", fix)
    picker = next(iter(pickers), "max-score-picker")
    fallbacks = max(pickers[picker].max_num_of_endpoints, 1) - 1 if pickers else 0
    meaning.put("policy", fallbacks=fallbacks)
    if ours:
        _our_policy(*ours[0], key, source, meaning)
    elif (
        not several
        and not filters
        and (picker == "random-picker" or not any(weight != 0 for _, _, weight in scorers))
    ):
        meaning.put("policy", name="random")
        if scorers:
            meaning.warnings.append("random-picker: the scorers beside it decide nothing")
    else:
        for plugin, _, weight in scorers:
            if weight is not None and not math.isfinite(weight):
                raise ConfigError(source, key, f"weight {weight} of {plugin.known_as!r}", "a number")
        plain = not (several or filters or meaning.profile.get(_KV_SOURCE)) and picker == "max-score-picker"
        if not (plain and _usual(scorers)):
            _profile(filters, scorers, picker, meaning)
        else:
            weights = {
                SCORERS[plugin.type]: 1.0 if weight is None else weight for plugin, _, weight in scorers
            }
            meaning.put("policy", name="llm-d", weights={**dict.fromkeys(SCORERS.values(), 0.0), **weights})


def _our_policy(policy: Plugin, weight: float | None, key: str, source: str, meaning: Meaning) -> None:
    if weight not in (None, 1.0):
        problem = "a policy has no weight beside others"
        raise ConfigError(source, key, problem, "put 'weights' into its parameters")
    params = dict(policy.parameters or {})
    own = {name: params.pop(name) for name in _POLICY_KEYS if name in params}
    meaning.put("policy", name=policy.type, params=params, **own)


def _usual(scorers: list[_Entry]) -> bool:
    """Tell whether the policy `llm-d` has these scorers, each once, with weights within its bounds."""
    kinds = {plugin.type: part for plugin, part, _ in scorers}
    prefix = kinds.get("prefix-cache-scorer")
    return (
        kinds.keys() <= SCORERS.keys()
        and len(kinds) == len(scorers)
        and not (prefix and prefix.match_length_weight)
        and all(weight is None or 0.0 <= weight <= _LARGEST_WEIGHT for _, _, weight in scorers)
    )


def _profile(filters: Mapping[str, Filter], scorers: list[_Entry], picker: str, meaning: Meaning) -> None:
    """Say the profile plugin by plugin, by the names that the file has for them."""
    parts = {
        plugin.known_as: part.scorer() if isinstance(part, _Prefix) else part for plugin, part, _ in scorers
    }
    params = {**meaning.profile, "filters": filters, "scorers": parts, "picker": picker}
    weights = {plugin.known_as: 1.0 if weight is None else weight for plugin, _, weight in scorers}
    meaning.put("policy", name=LlmDProfile.name, params={**params, "scorer_weights": weights})


class _Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Parameters of a plugin; a field of type `object` is in `_NOTED` or `_REFUSED`. A plugin without any."""

    def put(self, _meaning: Meaning) -> None:
        """Say what they mean here."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Picker(_Parameters, frozen=True):
    max_num_of_endpoints: Annotated[int, msgspec.Meta(le=17)] = 1


class _Prefix(_Parameters, frozen=True):
    """Of the scorer and of the approximate index; blocks are of 64 tokens at least, as in llm-d."""

    match_length_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    block_size_tokens: _Count = 0
    #: What `block_size_tokens` was called, which wins.
    block_size: _Count = 0
    lru_capacity_per_server: _Count = 0
    auto_tune: object = None
    max_prefix_blocks_to_match: object = None
    max_prefix_tokens_to_match: object = None
    prefix_match_info_producer_name: object = None

    def put(self, meaning: Meaning) -> None:
        stated = self.block_size_tokens or self.block_size
        block_tokens = max(stated, 64)
        if stated:
            meaning.put("prefix", block_bytes=min(block_tokens * BYTES_PER_TOKEN, 65536))
        if self.lru_capacity_per_server:
            meaning.put("prefix", capacity_tokens=self.lru_capacity_per_server * block_tokens)

    def scorer(self) -> PrefixScorer:
        """Return what scores by it in a profile."""
        return PrefixScorer(
            match_length_weight=self.match_length_weight,
            match_length_scale_tokens=self.match_length_scale_tokens,
        )


class _Precise(_Prefix, frozen=True):
    """The deprecated scorer with an index of its own."""

    token_processor_config: object = None
    indexer_config: object = None
    kv_events_config: object = None
    speculative_indexing: object = None
    speculative_ttl: object = msgspec.field(default=None, name="speculativeTTL")

    def put(self, meaning: Meaning) -> None:
        meaning.warnings.append(
            f"precise-prefix-cache-scorer: {STAND_INS['precise-prefix-cache-producer'][0]}"
        )


class _InFlight(_Parameters, frozen=True):
    add_estimated_output_tokens: Annotated[
        Literal[False], msgspec.Meta(extra={"fix": "leave it out: only prompts are counted"})
    ] = False
    output_ratio: object = None
    max_estimated_output_tokens: object = None
    sync_cross_replica_state: object = None
    prefix_match_info_producer_name: object = None


class _Predictor(_Parameters, frozen=True):
    streaming_mode: bool = False
    slo_buffer_factor: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(
        default=1.0, name="sloBufferFactor"
    )
    sampling_mean: object = None
    max_decode_token_samples_for_prediction: object = None
    context_ttl: object = msgspec.field(default=None, name="contextTTL")
    endpoint_role_label: object = None
    predict_in_produce: object = None
    use_encoder_cache_features: object = None
    encoder_cache_match_info_producer_name: object = None
    prefix_match_info_producer_name: object = None
    in_flight_load_producer_name: object = None

    def put(self, meaning: Meaning) -> None:
        meaning.profile |= {
            "streaming_mode": self.streaming_mode,
            "slo_buffer_factor": self.slo_buffer_factor,
        }
        meaning.warnings.append("predicted-latency-producer: latencies follow rates learned in process")


class _SessionId(_Parameters, frozen=True):
    header_name: str = ""
    cookie_name: str = ""

    def __post_init__(self) -> None:
        """An id stands in one place."""
        if bool(self.header_name) == bool(self.cookie_name):
            raise ValueError("one of headerName and cookieName is wanted")


class _FileDiscovery(_Parameters, frozen=True):
    path: Annotated[str, msgspec.Meta(min_length=1)]
    watch_file: object = None

    def put(self, meaning: Meaning) -> None:
        meaning.put("pool", file=self.path, eds_file="")


class _ByHeader(_Parameters, frozen=True):
    header_name: str = ""
    default_profile: str = ""

    def put(self, meaning: Meaning) -> None:
        told = {"profile_header": self.header_name.strip(), "default_profile": self.default_profile.strip()}
        meaning.handler = {name: text for name, text in told.items() if text}


class _Peer(_Parameters, frozen=True):
    min_cached_token_delta: Annotated[int, msgspec.Meta(ge=1)] = 1
    prefill_profile_name: object = None
    prefix_match_info_producer_name: object = None

    def put(self, meaning: Meaning) -> None:
        meaning.profile[_KV_SOURCE] = self.min_cached_token_delta


class _TokenProducer(_Parameters, frozen=True):
    model_name: str = ""
    estimate: object = None
    vllm: object = None
    uds_tokenizer_config: object = None

    def put(self, meaning: Meaning) -> None:
        if self.vllm or self.uds_tokenizer_config:
            meaning.warnings.append(
                "token-producer: tokens are counted in process, by the model's tokenizer where it is on this "
                "machine (tokens of epp-settings), else estimated"
            )


class _DataSource(_Parameters, frozen=True):
    path: str = "/metrics"
    interval: str = "0"
    ca_cert_path: str = ""
    scheme: object = None
    insecure_skip_verify: object = None
    port: object = None
    client_cert_path: object = None
    client_key_path: object = None

    def put(self, meaning: Meaning) -> None:
        meaning.put("scrape", path=self.path)
        if interval_s := duration_s(self.interval):
            meaning.put("scrape", interval_s=interval_s)
        if self.ca_cert_path:
            meaning.put("scrape", ca_file=self.ca_cert_path)


class _Extractor(_Parameters, frozen=True):
    engine_label_key: object = None
    default_engine: object = None
    engine_configs: object = None
    custom_metrics: object = None


class _Conformance(_Parameters, frozen=True):
    def put(self, meaning: Meaning) -> None:
        meaning.put("protocol", conformance=True)
        meaning.warnings.append("for the conformance suite alone: clients choose their endpoint by a header")


def _kinds(union: object) -> dict[str, type[msgspec.Struct]]:
    return {str(part.__struct_config__.tag): part for part in get_args(union)}


KINDS: Mapping[str, type[msgspec.Struct]] = {
    **_kinds(Filters),
    **_kinds(Scorers),
    "prefix-cache-scorer": _Prefix,
    "precise-prefix-cache-scorer": _Precise,
    **dict.fromkeys(PICKERS, _Picker),
    "single-profile-handler": _Parameters,
    _BY_HEADER: _ByHeader,
    "file-discovery": _FileDiscovery,
    "session-id-producer": _SessionId,
    "approx-prefix-cache-producer": _Prefix,
    "token-producer": _TokenProducer,
    "tokenizer": _TokenProducer,
    "inflight-load-producer": _InFlight,
    "predicted-latency-producer": _Predictor,
    "p2p-source-producer": _Peer,
    "openai-parser": _Parameters,
    "anthropic-parser": _Parameters,
    "vllmhttp-parser": _Parameters,
    "sglanghttp-parser": _Parameters,
    "passthrough-parser": _Parameters,
    "metrics-data-source": _DataSource,
    "core-metrics-extractor": _Extractor,
    "header-based-testing-filter": _Conformance,
    "destination-endpoint-served-verifier": _Conformance,
}

_MATCHED = "prompts are matched to their end"
_BY_METRICS = "an engine is recognised by the names of its metrics"
#: Parameters that are accepted, and the warning that says what they mean here.
_NOTED = {
    "watchFile": "the file is always watched",
    "blockSize": "is in tokens, as in today's llm-d; in old files it was in characters",
    "lruCapacityPerServer": "holds until an engine reports the size of its KV cache",
    "autoTune": "the size of the KV cache that an engine reports is always believed",
    "maxPrefixBlocksToMatch": _MATCHED,
    "maxPrefixTokensToMatch": _MATCHED,
    "prefixMatchInfoProducerName": "there is one prefix index, whatever it is called",
    "estimate": "tokens are estimated from bytes, by a ratio for each model",
    "scheme": "an endpoint is scraped over TLS where the pool says that it speaks TLS",
    "insecureSkipVerify": "certificates are verified; give caCertPath",
    "engineLabelKey": _BY_METRICS,
    "defaultEngine": _BY_METRICS,
}
_NO_CERTIFICATE = "no client certificate is sent", "use a bearer token: scrape.bearer_token_file"
_BUILT_IN = "metric names are built in", "leave it out for vLLM, SGLang and TensorRT-LLM"
#: Parameters that are refused: why, and what to do instead.
_REFUSED = {
    "port": (
        "metrics are read where the endpoint serves",
        "leave it out, or serve metrics on the endpoint's port",
    ),
    "clientCertPath": _NO_CERTIFICATE,
    "clientKeyPath": _NO_CERTIFICATE,
    "engineConfigs": _BUILT_IN,
    "customMetrics": _BUILT_IN,
}
