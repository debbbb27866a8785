"""What an `EndpointPickerConfig` means here: a policy with its weights, and settings of the prefix index.

Three ways to say the policy: llm-d's scorers under max-score-picker become the policy `llm-d` (same formulas,
`epp.policies.llm_d`); random-picker becomes `random`; a plugin named like one of our policies is that policy.
Owns that translation; `picker_config` owns the file's shape, `catalogue` what has no counterpart.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from epp.config.strict import convert
from epp.errors import ConfigError
from epp.llmd.catalogue import ALTERNATIVES
from epp.llmd.picker_config import Reference
from epp.llmd.values import duration_s
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.picker_config import EndpointPickerConfig, Plugin

#: Our own settings, as parameters of a plugin of this type: sections of `epp.yaml`.
SETTINGS = "epp-settings"
#: Scorer -> weight of the policy `llm-d`, or of `llm-d-load-aware` where the last is among them.
SCORERS = {
    "queue-scorer": "queue_weight",
    "kv-cache-utilization-scorer": "kv_weight",
    "prefix-cache-scorer": "prefix_weight",
    "load-aware-scorer": "load_weight",
}
PICKERS = frozenset({"max-score-picker", "random-picker"})
#: Weights without any configuration, llm-d's defaults (source [E]).
DEFAULT_WEIGHTS = {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
#: Bytes a token is taken for where a block's size is given in tokens; llm-d's estimate (source [E]).
BYTES_PER_TOKEN = 4
_LARGEST_WEIGHT = 10.0
_GATES = frozenset({"haPopulateNonLeaderDatastore", "dataLayer", "prepareDataPlugins"})
#: What a policy's plugin may say besides the policy's parameters.
_POLICY_KEYS = ("weights", "bounds", "tie_band", "fallbacks")


@dataclass(slots=True)
class Meaning:
    """What a configuration says, in sections of ours.

    Attributes:
        sections: section -> key -> value, to be laid over defaults.
        own: sections written by the operator as ours; they are laid over everything.
        warnings: sentences on what means something else here.
    """

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def put(self, section: str, **values: Any) -> None:
        """Set keys of a section."""
        self.sections.setdefault(section, {}).update(values)

    def put_params(self, **values: Any) -> None:
        """Set parameters of the policy."""
        self.sections.setdefault("policy", {}).setdefault("params", {}).update(values)


def default_meaning() -> Meaning:
    """llm-d's behaviour without a configuration."""
    meaning = Meaning()
    meaning.put("policy", name="llm-d", weights=dict(DEFAULT_WEIGHTS), fallbacks=0)
    return meaning


def meaning_of(config: EndpointPickerConfig, source: str) -> Meaning:
    """Translate a configuration.

    Raises:
        ConfigError: a plugin, parameter or section without a counterpart; says what to do instead.
    """
    _refuse_sections(config, source)
    meaning = Meaning()
    for position, plugin in enumerate(config.plugins):
        _plugin(plugin, f"plugins[{position}]", source, meaning)
    if not config.plugins:
        return default_meaning()
    by_name = {plugin.known_as: plugin for plugin in config.plugins}
    if config.scheduling_profiles:
        key, references = "schedulingProfiles[0]", config.scheduling_profiles[0].plugins
    else:  # without profiles every plugin belongs to one
        key = "plugins"
        references = [Reference(plugin_ref=plugin.known_as) for plugin in config.plugins]
    entries = [(by_name[reference.plugin_ref], reference.weight) for reference in references]
    _policy(entries, key, source, meaning)
    return meaning


def _refuse_sections(config: EndpointPickerConfig, source: str) -> None:
    if len(config.scheduling_profiles) > 1:
        names = ", ".join(profile.name for profile in config.scheduling_profiles)
        fix = "keep the one that decodes; prefill and decode endpoints are not distinguished yet"
        raise ConfigError(source, "schedulingProfiles", f"one profile is served, not several ({names})", fix)
    if config.flow_control is not None:
        raise ConfigError(source, "flowControl", "nothing is queued here", "leave it out")
    for position, gate in enumerate(config.feature_gates):
        name, _, value = gate.partition("=")
        if value != "false" and name not in _GATES:
            problem = "nothing is queued here" if name == "flowControl" else f"unknown gate {name!r}"
            raise ConfigError(source, f"featureGates[{position}]", problem, "leave it out")
    layer = config.data_layer
    if layer.peer_discovery or layer.cross_replica_syncer_plugin_ref:
        fix = "leave it out: replicas share no state"
        raise ConfigError(source, "dataLayer.peerDiscovery", "replicas of the picker do not meet", fix)


def _plugin(plugin: Plugin, key: str, source: str, meaning: Meaning) -> None:
    """Check a plugin and take what its parameters say for itself."""
    kind = plugin.type
    if kind == SETTINGS:
        meaning.own = dict(plugin.parameters or {})
        for section in ("listen", "pool"):
            if section in meaning.own:
                fix = "use the flags" if section == "listen" else "the flags say the pool"
                raise ConfigError(source, f"{key}.parameters.{section}", "is said by flags here", fix)
        return
    if kind in POLICIES:
        return
    if kind not in KINDS:
        if alternative := ALTERNATIVES.get(kind):
            raise ConfigError(source, key, f"plugin {kind!r} has no counterpart here", alternative)
        near = difflib.get_close_matches(kind, [*KINDS, *POLICIES, *ALTERNATIVES, SETTINGS], n=1)
        fix = f"did you mean {near[0]!r}?" if near else "docs/llm-d.md lists the plugins"
        raise ConfigError(source, key, f"unknown plugin {kind!r}", fix)
    given, key = plugin.parameters or {}, f"{key}.parameters"
    parameters = convert(given, KINDS[kind], source, key)
    for name in given:
        if refusal := _REFUSED.get(name):
            raise ConfigError(source, f"{key}.{name}", f"{kind}: {refusal[0]}", refusal[1])
        if note := _NOTED.get(name):
            meaning.warnings.append(f"{kind} {name}: {note}")
    try:
        parameters.put(meaning)
    except ValueError as error:
        raise ConfigError(source, key, f"{kind}: {error}") from None


def _policy(entries: list[tuple[Plugin, float | None]], key: str, source: str, meaning: Meaning) -> None:
    ours = [(plugin, weight) for plugin, weight in entries if plugin.type in POLICIES]
    scorers = [(plugin.type, weight) for plugin, weight in entries if plugin.type in SCORERS]
    pickers = [plugin.type for plugin, _ in entries if plugin.type in PICKERS]
    if len(pickers) > 1 or len(dict(scorers)) < len(scorers):
        raise ConfigError(source, key, "several pickers, or a scorer twice", "keep one")
    if len(ours) > 1 or (ours and scorers):
        names = ", ".join([*(plugin.type for plugin, _ in ours), *dict(scorers)])
        fix = "a policy is the whole formula: keep one, and drop the scorers"
        raise ConfigError(source, key, f"a policy beside others: {names}", fix)
    meaning.sections.setdefault("policy", {}).setdefault("fallbacks", 0)
    if ours:
        [(policy, weight)] = ours
        if weight not in (None, 1.0):
            problem = "a policy has no weight beside others"
            raise ConfigError(source, key, problem, "put 'weights' into its parameters")
        params = dict(policy.parameters or {})
        own = {name: params.pop(name) for name in _POLICY_KEYS if name in params}
        meaning.put("policy", name=policy.type, params=params, **own)
    elif "random-picker" in pickers or not any(weight != 0 for _, weight in scorers):
        meaning.put("policy", name="random")
        if scorers:
            meaning.warnings.append("random-picker: the scorers beside it decide nothing")
    else:
        _scored(scorers, key, source, meaning)


def _scored(scorers: list[tuple[str, float | None]], key: str, source: str, meaning: Meaning) -> None:
    name = "llm-d-load-aware" if "load-aware-scorer" in dict(scorers) else "llm-d"
    if name == "llm-d":  # the scorer may be named without being in the profile
        meaning.sections["policy"].get("params", {}).pop("threshold", None)
    weights = dict.fromkeys(POLICIES[name].load().weight_specs, 0.0)
    for kind, weight in scorers:
        value = 1.0 if weight is None else float(weight)
        if not 0.0 <= value < float("inf"):
            raise ConfigError(source, key, f"weight {value} of {kind!r}", "0 or more")
        weights[SCORERS[kind]] = value
    largest = max(weights.values())
    if largest > _LARGEST_WEIGHT:  # only proportions count, and ours are bounded
        weights = {name: value * _LARGEST_WEIGHT / largest for name, value in weights.items()}
        meaning.warnings.append(f"scorer weights are scaled to at most {_LARGEST_WEIGHT:g}; proportions stay")
    meaning.put("policy", name=name, weights=weights)


class _Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Parameters of a plugin; a field of type `object` is in `_NOTED` or `_REFUSED`. A plugin without any."""

    def put(self, _meaning: Meaning) -> None:
        """Say what they mean here."""


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Threshold = Annotated[float, msgspec.Meta(gt=0)]


class _Picker(_Parameters, frozen=True):
    max_num_of_endpoints: Annotated[int, msgspec.Meta(ge=1, le=17)] = 1

    def put(self, meaning: Meaning) -> None:
        meaning.put("policy", fallbacks=self.max_num_of_endpoints - 1)


class _Prefix(_Parameters, frozen=True):
    """Of the scorer and of the approximate index; blocks are of 64 tokens at least, as in llm-d."""

    match_length_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[float, msgspec.Meta(ge=1)] = 8192.0
    block_size_tokens: _Count = 0
    #: What `block_size_tokens` was called, which wins.
    block_size: _Count = 0
    lru_capacity_per_server: _Count = 0
    auto_tune: object = None
    max_prefix_blocks_to_match: object = None
    max_prefix_tokens_to_match: object = None
    prefix_match_info_producer_name: object = None

    def put(self, meaning: Meaning) -> None:
        if self.match_length_weight:
            meaning.put_params(
                match_length_weight=self.match_length_weight,
                match_length_scale_tokens=self.match_length_scale_tokens,
            )
        stated = self.block_size_tokens or self.block_size
        block_tokens = max(stated, 64)
        if stated:
            meaning.put("prefix", block_bytes=min(block_tokens * BYTES_PER_TOKEN, 65536))
        if self.lru_capacity_per_server:
            meaning.put("prefix", capacity_tokens=self.lru_capacity_per_server * block_tokens)


class _LoadAware(_Parameters, frozen=True):
    threshold: int = 0

    def put(self, meaning: Meaning) -> None:
        if self.threshold > 0:  # else llm-d takes the default, too
            meaning.put_params(threshold=self.threshold)


class _TokenProducer(_Parameters, frozen=True):
    estimate: object = None
    vllm: object = None
    uds_tokenizer_config: object = None


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


class _Saturation(_Parameters, frozen=True):
    queue_depth_threshold: _Threshold = 5.0
    kv_cache_util_threshold: _Threshold = 0.8
    metrics_staleness_threshold: object = None
    headroom: object = None

    def put(self, meaning: Meaning) -> None:
        meaning.put(
            "saturation", queue_requests=self.queue_depth_threshold, kv_usage=self.kv_cache_util_threshold
        )


class _Conformance(_Parameters, frozen=True):
    def put(self, meaning: Meaning) -> None:
        meaning.put("protocol", conformance=True)
        meaning.warnings.append("for the conformance suite alone: clients choose their endpoint by a header")


KINDS: Mapping[str, type[_Parameters]] = {
    "single-profile-handler": _Parameters,
    "queue-scorer": _Parameters,
    "kv-cache-utilization-scorer": _Parameters,
    "prefix-cache-scorer": _Prefix,
    "load-aware-scorer": _LoadAware,
    "max-score-picker": _Picker,
    "random-picker": _Picker,
    "approx-prefix-cache-producer": _Prefix,
    "token-producer": _TokenProducer,
    "tokenizer": _TokenProducer,
    "inflight-load-producer": _Parameters,
    "openai-parser": _Parameters,
    "anthropic-parser": _Parameters,
    "vllmhttp-parser": _Parameters,
    "sglanghttp-parser": _Parameters,
    "passthrough-parser": _Parameters,
    "metrics-data-source": _DataSource,
    "core-metrics-extractor": _Extractor,
    "utilization-detector": _Saturation,
    "header-based-testing-filter": _Conformance,
    "destination-endpoint-served-verifier": _Conformance,
}

_MATCHED = "prompts are matched to their end"
_BY_METRICS = "an engine is recognised by the names of its metrics"
#: Parameters that are accepted, and the warning that says what they mean here.
_NOTED = {
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
    "metricsStalenessThreshold": "scrape.stale_after_s holds for all that is read of metrics",
    "headroom": "there is none",
}
_NO_SERVICE = (
    "no other service is asked for tokens",
    "name the model's tokenizer under tokens.models of epp-settings: it is counted in process",
)
_NO_CERTIFICATE = "no client certificate is sent", "use a bearer token: scrape.bearer_token_file"
_BUILT_IN = "metric names are built in", "leave it out for vLLM, SGLang and TensorRT-LLM"
#: Parameters that are refused: why, and what to do instead.
_REFUSED = {
    "vllm": _NO_SERVICE,
    "udsTokenizerConfig": _NO_SERVICE,
    "port": (
        "metrics are read where the endpoint serves",
        "leave it out, or serve metrics on the endpoint's port",
    ),
    "clientCertPath": _NO_CERTIFICATE,
    "clientKeyPath": _NO_CERTIFICATE,
    "engineConfigs": _BUILT_IN,
    "customMetrics": _BUILT_IN,
}
