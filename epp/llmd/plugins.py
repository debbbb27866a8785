"""What an `EndpointPickerConfig` means here: a policy with its weights, and settings of the prefix index.

Three ways to say the policy: llm-d's scorers under max-score-picker become the policy `llm-d` (same formulas,
`epp.policies.llm_d`); random-picker becomes `random`; a plugin named like one of our policies is that policy.
Owns that translation; `picker_config` owns the file's shape, `catalogue` what has no counterpart.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epp.errors import ConfigError
from epp.llmd.catalogue import ALTERNATIVES
from epp.llmd.parameters import Parameters
from epp.llmd.picker_config import Reference
from epp.policies.registry import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.llmd.picker_config import EndpointPickerConfig, Plugin

#: Our own settings, as parameters of a plugin of this type: sections of `epp.yaml`.
SETTINGS = "epp-settings"
#: Scorer -> weight of the policy `llm-d`.
SCORERS = {
    "queue-scorer": "queue_weight",
    "kv-cache-utilization-scorer": "kv_weight",
    "prefix-cache-scorer": "prefix_weight",
}
PICKERS = frozenset({"max-score-picker", "random-picker"})
#: Weights without any configuration, llm-d's defaults (source [E]).
DEFAULT_WEIGHTS = {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
#: Bytes a token is taken for where a block's size is given in tokens; llm-d's estimate (source [E]).
BYTES_PER_TOKEN = 4
_LARGEST_WEIGHT = 10.0
_GATES = frozenset({"haPopulateNonLeaderDatastore", "dataLayer", "prepareDataPlugins"})
#: What a policy's plugin may say besides the policy's parameters.
_POLICY_KEYS = ("weights", "bounds", "tie_band", "seed", "fallbacks")
_CONFORMANCE = "for the conformance suite alone: clients choose their endpoint by a header"


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
        key, references = "plugins", _every(config)
    entries = [(by_name[reference.plugin_ref], reference.weight) for reference in references]
    _policy(entries, key, source, meaning)
    return meaning


def _every(config: EndpointPickerConfig) -> list[Reference]:
    return [Reference(plugin_ref=plugin.known_as) for plugin in config.plugins]


def _refuse_sections(config: EndpointPickerConfig, source: str) -> None:
    if len(config.scheduling_profiles) > 1:
        names = ", ".join(profile.name for profile in config.scheduling_profiles)
        fix = "keep the one that decodes; prefill and decode endpoints are not told apart yet"
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
    take = _TAKERS.get(kind)
    if take is None:
        alternative = ALTERNATIVES.get(kind)
        if alternative is not None:
            raise ConfigError(source, key, f"plugin {kind!r} has no counterpart here", alternative)
        known = [*_TAKERS, *POLICIES, *ALTERNATIVES, SETTINGS]
        near = difflib.get_close_matches(kind, known, n=1, cutoff=0.6)
        fix = f"did you mean {near[0]!r}?" if near else "docs/llm-d.md lists the plugins"
        raise ConfigError(source, key, f"unknown plugin {kind!r}", fix)
    parameters = Parameters(plugin.parameters or {}, kind, source, f"{key}.parameters", meaning.warnings)
    take(parameters, meaning)
    parameters.done()


def _policy(entries: list[tuple[Plugin, float | None]], key: str, source: str, meaning: Meaning) -> None:
    kinds = [plugin.type for plugin, _ in entries]
    ours = [plugin for plugin, _ in entries if plugin.type in POLICIES]
    if any(weight not in (None, 1.0) for plugin, weight in entries if plugin.type in POLICIES):
        raise ConfigError(
            source, key, "a policy has no weight beside others", "put 'weights' into its parameters"
        )
    scorers = [(plugin.type, weight) for plugin, weight in entries if plugin.type in SCORERS]
    pickers = [kind for kind in kinds if kind in PICKERS]
    for kind in kinds:
        if kinds.count(kind) > 1 and (kind in SCORERS or kind in POLICIES):
            raise ConfigError(source, key, f"{kind!r} stands there twice", "once is enough")
    if len(pickers) > 1:
        raise ConfigError(source, key, f"two pickers: {', '.join(pickers)}", "keep one")
    if len(ours) > 1:
        names = ", ".join(plugin.type for plugin in ours)
        raise ConfigError(
            source, key, f"several policies: {names}", "a policy is the whole formula: keep one"
        )
    meaning.sections.setdefault("policy", {}).setdefault("fallbacks", 0)
    if ours:
        if scorers:
            problem = f"policy {ours[0].type!r} beside {scorers[0][0]!r}"
            raise ConfigError(source, key, problem, "a policy is the whole formula: drop the scorers")
        _own_policy(ours[0], meaning)
    elif "random-picker" in pickers or not any(weight != 0 for _, weight in scorers):
        meaning.put("policy", name="random")
        if scorers:
            meaning.warnings.append("random-picker: the scorers beside it decide nothing")
    else:
        _scored(scorers, key, source, meaning)


def _own_policy(plugin: Plugin, meaning: Meaning) -> None:
    given = dict(plugin.parameters or {})
    said = {name: given.pop(name) for name in _POLICY_KEYS if name in given}
    meaning.put("policy", name=plugin.type, params=given, **said)


def _scored(scorers: list[tuple[str, float | None]], key: str, source: str, meaning: Meaning) -> None:
    weights = dict.fromkeys(DEFAULT_WEIGHTS, 0.0)
    for kind, weight in scorers:
        value = 1.0 if weight is None else float(weight)
        if not 0.0 <= value < float("inf"):
            raise ConfigError(source, key, f"weight {value} of {kind!r}", "0 or more")
        weights[SCORERS[kind]] = value
    largest = max(weights.values())
    if largest > _LARGEST_WEIGHT:  # only proportions count, and ours are bounded
        weights = {name: value * _LARGEST_WEIGHT / largest for name, value in weights.items()}
        meaning.warnings.append(f"scorer weights are scaled to at most {_LARGEST_WEIGHT:g}; proportions stay")
    meaning.put("policy", name="llm-d", weights=weights)


def _nothing(_parameters: Parameters, _meaning: Meaning) -> None:
    """A plugin that means the same here, without parameters."""


def _picker(parameters: Parameters, meaning: Meaning) -> None:
    endpoints = parameters.number("maxNumOfEndpoints", 1, low=1, high=17)
    meaning.put("policy", fallbacks=int(endpoints) - 1)


def _prefix_scorer(parameters: Parameters, meaning: Meaning) -> None:
    share = parameters.number("matchLengthWeight", 0.0, low=0.0, high=1.0)
    scale = parameters.number("matchLengthScaleTokens", 8192.0, low=1.0)
    if share:
        params = {"match_length_weight": share, "match_length_scale_tokens": scale}
        meaning.put("policy", params=params)
    _prefix_index(parameters, meaning)
    parameters.noted("prefixMatchInfoProducerName", "there is one prefix index, whatever it is called")


def _prefix_index(parameters: Parameters, meaning: Meaning) -> None:
    """The approximate index: block size and capacity; the whole prompt is matched, whatever the caps say."""
    # What `blockSizeTokens` was called, which wins. It counted characters once; llm-d reads it so today.
    before = parameters.number("blockSize", 0, low=0)
    said = parameters.number("blockSizeTokens", 0, low=0)
    tokens = said or before
    if before and not said:
        parameters.say("blockSize", "is in tokens, as in today's llm-d; in old files it was in characters")
    blocks = parameters.number("lruCapacityPerServer", 0, low=0)
    block_tokens = max(tokens, 64.0) if tokens else 64.0  # llm-d raises smaller ones to 64, too
    if tokens:
        meaning.put("prefix", block_bytes=int(min(block_tokens * BYTES_PER_TOKEN, 65536)))
        if tokens < 64:
            parameters.say("blockSizeTokens", "blocks are of 64 tokens at least, as in llm-d")
    if blocks:
        meaning.put("prefix", capacity_tokens=int(blocks * block_tokens))
        parameters.say("lruCapacityPerServer", "holds until an engine reports the size of its KV cache")
    for name in ("maxPrefixBlocksToMatch", "maxPrefixTokensToMatch"):
        parameters.noted(name, "prompts are matched to their end")
    if not parameters.flag("autoTune", default=True):
        parameters.say("autoTune", "the size of the KV cache that an engine reports is always believed")


def _token_producer(parameters: Parameters, _meaning: Meaning) -> None:
    parameters.noted("estimate", "tokens are estimated from bytes, by a ratio for each model")
    for name in ("vllm", "udsTokenizerConfig"):
        fix = "name the model's tokenizer under tokens.models of epp-settings: it is counted in process"
        parameters.refused(name, "no other service is asked for tokens", fix)


def _data_source(parameters: Parameters, meaning: Meaning) -> None:
    path = parameters.text("path", "/metrics")
    meaning.put("scrape", path=path)
    if parameters.text("scheme", "http") == "https":
        parameters.say("scheme", "an endpoint is scraped over TLS where the pool says that it speaks TLS")
    interval_s = parameters.duration_s("interval")
    if interval_s:
        meaning.put("scrape", interval_s=interval_s)
    if ca_file := parameters.text("caCertPath", ""):
        meaning.put("scrape", ca_file=ca_file)
    elif parameters.text("scheme", "http") == "https" and parameters.flag("insecureSkipVerify", default=True):
        parameters.say("insecureSkipVerify", "certificates are verified; give caCertPath")
    parameters.flag("insecureSkipVerify", default=True)
    why = "metrics are read where the endpoint serves"
    parameters.refused("port", why, "leave it out, or serve metrics on the endpoint's port")
    for name in ("clientCertPath", "clientKeyPath"):
        parameters.refused(
            name, "no client certificate is sent", "use a bearer token: scrape.bearer_token_file"
        )


def _extractor(parameters: Parameters, _meaning: Meaning) -> None:
    for name in ("engineLabelKey", "defaultEngine"):
        parameters.noted(name, "an engine is recognised by the names of its metrics")
    for name in ("engineConfigs", "customMetrics"):
        fix = "leave it out for vLLM, SGLang and TensorRT-LLM"
        parameters.refused(name, "metric names are built in", fix)


def _saturation(parameters: Parameters, meaning: Meaning) -> None:
    queue = parameters.number("queueDepthThreshold", 5.0, low=1e-9)
    usage = parameters.number("kvCacheUtilThreshold", 0.8, low=1e-9)
    meaning.put("saturation", queue_requests=queue, kv_usage=usage)
    parameters.noted(
        "metricsStalenessThreshold", "scrape.stale_after_s holds for all that is read of metrics"
    )
    parameters.noted("headroom", "there is none")


def _conformance(parameters: Parameters, meaning: Meaning) -> None:
    meaning.put("protocol", conformance=True)
    parameters.warn(_CONFORMANCE)


_TAKERS: Mapping[str, Callable[[Parameters, Meaning], None]] = {
    "single-profile-handler": _nothing,
    "queue-scorer": _nothing,
    "kv-cache-utilization-scorer": _nothing,
    "prefix-cache-scorer": _prefix_scorer,
    "max-score-picker": _picker,
    "random-picker": _picker,
    "approx-prefix-cache-producer": _prefix_index,
    "token-producer": _token_producer,
    "tokenizer": _token_producer,
    "inflight-load-producer": _nothing,
    "openai-parser": _nothing,
    "anthropic-parser": _nothing,
    "vllmhttp-parser": _nothing,
    "sglanghttp-parser": _nothing,
    "passthrough-parser": _nothing,
    "metrics-data-source": _data_source,
    "core-metrics-extractor": _extractor,
    "utilization-detector": _saturation,
    "header-based-testing-filter": _conformance,
    "destination-endpoint-served-verifier": _conformance,
}
