"""What an `EndpointPickerConfig` means here: a policy with its weights, and settings of the prefix index.

Ways to say the policy: the scorers of llm-d's default profile become the policy `llm-d` (same formulas,
weights that can be tuned); random-picker alone becomes `random`; any other profile becomes `llm-d-profile`,
plugin by plugin; a plugin named like one of our policies is that policy. Owns that translation;
`picker_config` owns the file's shape, `catalogue` what is no part of a profile.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from epp.config.renamed import rename_keys
from epp.config.strict import convert
from epp.errors import ConfigError, gather, raise_all
from epp.llmd.flags import duration_s
from epp.llmd.flow_control import notes_on, queue_of, said_by
from epp.llmd.parameters import (
    ALTERNATIVES,
    APPROXIMATE,
    BY_HEADER,
    FLOW_CONTROL,
    JOINT,
    KINDS,
    KV_SOURCE,
    NOTED,
    PICKERS,
    PREFILL_FIRST,
    REFUSED,
    STAND_INS,
    ApproximateIndex,
    GpuSource,
    MaxSaturation,
    Meaning,
    MediaCache,
    Parameters,
    PreciseIndex,
    PreciseScorer,
    Prefix,
    SessionId,
)
from epp.llmd.picker_config import FlowControl, Profile, Reference
from epp.llmd.policies.filters import (
    Admitter,
    ConcurrencyDetector,
    UtilizationDetector,
)
from epp.llmd.policies.plugins import Attribute, Bound, Filter, PrefixReader, Scorer, SessionSource
from epp.llmd.policies.profile import LlmDProfile, LlmDProfiles
from epp.llmd.policies.scorers import MediaScorer, PrefixScorer
from epp.llmd.policies.stages import Always, Decider, LlmDStages, Uncached
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.registry import POLICIES
from epp.types import HELPERS, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.parameters import Stages
    from epp.llmd.picker_config import EndpointPickerConfig, Plugin

#: Our own settings, as parameters of a plugin of this type: sections of `epp.yaml`.
SETTINGS = "epp-settings"
#: Scorer -> weight of the policy `llm-d`.
SCORERS = {
    "queue-scorer": "queue_weight",
    "kv-cache-utilization-scorer": "kv_weight",
    "prefix-cache-scorer": "prefix_weight",
}
#: Weights without any configuration, llm-d's defaults (source [E]).
DEFAULT_WEIGHTS = {"queue_weight": 2.0, "kv_weight": 2.0, "prefix_weight": 3.0}
_LARGEST_WEIGHT = 10.0
_GATES = frozenset({"haPopulateNonLeaderDatastore", "dataLayer", "prepareDataPlugins"})
_FALSE = frozenset({"0", "f", "false"})
#: Where agents' ids stand, source: ``requestcontrol/requestheader/agentidentity/agent_identity.go``.
_AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
#: Least age at which metrics count as stale: they are at most `settings.SHORTEST_SCRAPE_S` apart, and late.
_LEAST_STALE_MS = 500.0
#: Handlers of stages, and what they were called.
STAGED = ("disagg-profile-handler", "pd-profile-handler")
_NOT_NEAR = "without effect: whether two endpoints are near each other is not read"
#: Plugins of profiles that mean something else here.
_MEANT = {
    "topology-affinity-scorer": _NOT_NEAR,
    "topology-affinity-filter": _NOT_NEAR,
    "latency-observation-scorer-hub": "times follow rates learned in process, and nobody is explored",
    "lora-residency-filter": "adapters of running requests count; copies in an engine's memory are not told",
}
#: What a policy's plugin may say besides the policy's parameters.
_POLICY_KEYS = ("weights", "bounds", "tolerance", "fallbacks")


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
    meaning, errors = Meaning(), list[ConfigError]()
    made: dict[str, Any] = {kind: said_by(kind, {}) for kind in FLOW_CONTROL}
    queued = _check_sections(config, source, meaning, errors)
    refused: dict[str, list[str]] = {}
    for position, plugin in enumerate(config.plugins):
        kind = plugin.type
        if instead := ALTERNATIVES.get(kind):
            refused.setdefault(instead, []).append(kind)
            continue
        with gather(errors):
            made[plugin.known_as] = _plugin(plugin, f"plugins[{position}]", source, meaning)
        if kind in FLOW_CONTROL and not queued:
            meaning.warnings.append(f"{kind}: without effect, as in llm-d without its feature gate")
    for instead, kinds in refused.items():
        problem = f"no counterpart here: {', '.join(dict.fromkeys(kinds))}"
        errors.append(ConfigError(source, "plugins", problem, instead))
    errors += _of_node_exporters(made, source)
    if queued:
        try:
            meaning.put("queue", **queue_of(config.flow_control, made))
        except ValueError as error:
            errors.append(ConfigError(source, "flowControl", str(error)))
    raise_all(errors)
    if not config.plugins:
        meaning.put("policy", **default_meaning().sections["policy"])
        return meaning
    _detect(config, made, source, meaning)
    made |= _indexes(made, meaning)
    made |= {
        name: _with_headers(part, config, made) for name, part in made.items() if isinstance(part, Bound)
    }
    for name, part in made.items():
        if isinstance(part, PreciseScorer):
            made[name] = part.scorer()
        if isinstance(part, MediaScorer):
            cache = made.get(part.producer_name or "mm-embeddings-cache-producer")
            made[name] = replace(part, cache_mib=cache.cache_mib if isinstance(cache, MediaCache) else 0)
    by_name = {plugin.known_as: plugin for plugin in config.plugins}
    profiles = config.scheduling_profiles or [  # without, every plugin belongs to one
        Profile("default", [Reference(plugin_ref=name) for name in by_name])
    ]
    parts: dict[str, dict[str, Any]] = {}
    several = len(profiles) > 1 or meaning.stages is not None
    for position, profile in enumerate(profiles):
        entries = [(by_name[each.plugin_ref], made[each.plugin_ref], each.weight) for each in profile.plugins]
        key = f"schedulingProfiles[{position}]" if config.scheduling_profiles else "plugins"
        _policy(entries, key, source, meaning, several=several)
        parts[profile.name] = dict(meaning.sections["policy"])
    if meaning.stages:
        meaning.sections["policy"] = _stages(meaning.stages, parts, made, meaning, source)
    elif len(profiles) > 1:
        parts = {name: policy["params"] for name, policy in parts.items()}
        meaning.put("policy", name=LlmDProfiles.name, params={**meaning.handler, "profiles": parts})
    return meaning


def _of_node_exporters(made: Mapping[str, object], source: str) -> list[ConfigError]:
    """Refuse who reads GPU counters where these are those of the node's exporter."""
    if not any(isinstance(part, GpuSource) and part.use_node_address for part in made.values()):
        return []
    problem, fix = (
        "reads GPU counters of the node's exporter",
        "run it in the engine's pod, without useNodeAddress",
    )
    return [
        ConfigError(source, name, problem, fix) for name, part in made.items() if isinstance(part, Attribute)
    ]


def _stages(
    found: Stages,
    parts: Mapping[str, Mapping[str, Any]],
    made: Mapping[str, object],
    meaning: Meaning,
    source: str,
) -> dict[str, Any]:
    """Say the policy of stages, by the policy that each profile would be."""
    if (name := found.profiles[Role.DECODE]) not in parts:
        known = ", ".join(parts)
        raise ConfigError(
            source, "schedulingProfiles", f"none is named {name!r}, to decode", f"there: {known}"
        )
    fallbacks = parts[name]["fallbacks"]
    if found.order == JOINT:
        meaning.warnings.append(
            f"stageOrder {JOINT}: {GorgoMs.name} chooses who does what; profiles decide nothing"
        )
        return {"name": GorgoMs.name, "fallbacks": fallbacks}
    stages = {Role.DECODE: {"profile": parts[name]["params"]}}
    for role in HELPERS:
        decider = made.get(named := found.deciders.get(role, ""))
        if named and not isinstance(decider, Decider):
            raise ConfigError(source, f"deciders.{role}", f"{named!r} is no decider of the file", "list one")
        if role is Role.PREFILL and found.order == PREFILL_FIRST:
            decider = Always()
        elif found.order == PREFILL_FIRST and isinstance(decider, Uncached):
            decider = None  # nobody decodes yet whose cache it could ask
        if decider is not None and (helper := parts.get(found.profiles.get(role, ""))):
            most = helper["fallbacks"] + 1 if role is Role.ENCODE else 1
            parted = {**helper["params"], "filters": _without_admitters(helper["params"]["filters"])}
            stages[role] = {"profile": parted, "decider": decider, "most": most}
    return {"name": LlmDStages.name, "fallbacks": fallbacks, "params": {"stages": stages}}


def _without_admitters(filters: Mapping[str, Filter]) -> dict[str, Filter]:
    """Leave out who admits requests, which is asked once."""
    return {name: part for name, part in filters.items() if not isinstance(part, Admitter)}


def _check_sections(
    config: EndpointPickerConfig, source: str, meaning: Meaning, errors: list[ConfigError]
) -> bool:
    """Check all but plugins; tell whether flow control is asked for."""
    chooses = any(plugin.type in (BY_HEADER, *STAGED) for plugin in config.plugins)
    if len(config.scheduling_profiles) > 1 and not chooses:
        names = ", ".join(profile.name for profile in config.scheduling_profiles)
        fix = f"name {BY_HEADER} or {STAGED[0]}, or keep one"
        problem = f"several ({names}), and no plugin that chooses"
        errors.append(ConfigError(source, "schedulingProfiles", problem, fix))
    queued = False
    for position, gate in enumerate(config.feature_gates):
        name, _, value = gate.partition("=")
        if value.strip().lower() not in _FALSE and name not in _GATES:
            queued |= name == "flowControl"
            if name != "flowControl":
                problem = f"unknown gate {name!r}"
                errors.append(ConfigError(source, f"featureGates[{position}]", problem, "leave it out"))
    if not queued and replace(config.flow_control, saturation_detector=None) != FlowControl():
        meaning.warnings.append("flowControl: without effect, as in llm-d without its feature gate")
    meaning.warnings += notes_on(config) if queued else ()
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
    for name in given:
        if refusal := REFUSED.get(name) or REFUSED.get(f"{kind} {name}"):
            raise ConfigError(source, f"{key_of}.{name}", f"{kind}: {refusal[0]}", refusal[1])
        if note := NOTED.get(name) or NOTED.get(f"{kind} {name}"):
            meaning.warnings.append(f"{kind} {name}: {note}")
    form = KINDS[kind]
    unread = form.unread.split() if issubclass(form, Parameters) else ()
    read = {name: value for name, value in given.items() if name not in unread}
    parameters = convert(read, form, source, key_of)
    try:
        if isinstance(parameters, UtilizationDetector):
            return _with_staleness(parameters, meaning)
        if isinstance(parameters, Parameters):
            parameters.put(meaning)
        elif isinstance(parameters, Filter) and parameters.before_profile:
            meaning.screeners[plugin.known_as] = parameters
        elif kind in _MEANT:
            meaning.warnings.append(f"{kind}: {_MEANT[kind]}")
    except ValueError as error:
        raise ConfigError(source, key_of, f"{kind}: {error}") from None
    return said_by(kind, asdict(parameters)) if kind in FLOW_CONTROL else parameters


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
        elif isinstance(producer, SessionId):
            sources.append(SessionSource(header=producer.header_name or f"cookie:{producer.cookie_name}"))
    return replace(found, session_id_config=replace(found.session_id_config, sources=sources))


def _detect(config: EndpointPickerConfig, made: Mapping[str, object], source: str, meaning: Meaning) -> None:
    """Measure saturation by the detector that is referred to, else by the one that llm-d would take."""
    detector = config.flow_control.saturation_detector or config.saturation_detector
    found = made.get(detector.plugin_ref if detector else "utilization-detector")
    parts = [made.get(name) for name in found.detectors] if isinstance(found, MaxSaturation) else [found]
    if isinstance(found, MaxSaturation):
        if not all(isinstance(part, UtilizationDetector | ConcurrencyDetector) for part in parts):
            raise ConfigError(
                source, "detectors", "a name that is no detector's", "list detectors of the file"
            )
        meaning.put("saturation", largest=len({type(part) for part in parts}) > 1)
    for part in parts:
        _measure(part, meaning)


def _measure(detector: object, meaning: Meaning) -> None:
    match detector:
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


def _indexes(made: Mapping[str, object], meaning: Meaning) -> dict[str, PrefixReader]:
    """Size the picker's index by one producer, and give an index of its own to who reads another.

    The picker's is that of engines' events where somebody reads it, else the first that engines size.
    """
    readers = {
        name: part.scorer() if isinstance(part, Prefix) else part
        for name, part in made.items()
        if isinstance(part, Prefix | PrefixReader)
    }
    asked = [part.prefix_match_info_producer_name or APPROXIMATE for part in readers.values()]
    there = [name for name, part in made.items() if type(part) is ApproximateIndex]
    read = {name: made.get(name, ApproximateIndex()) for name in dict.fromkeys(asked or there)}
    names = sorted(read, key=lambda name: (not isinstance(read[name], PreciseIndex), not _tunes(read[name])))
    for number, name in enumerate(names):
        found = read[name]
        if number == 0 and isinstance(found, ApproximateIndex) and name in made:
            found.size(meaning)
        elif number and _tunes(found):
            first = names[0]
            meaning.warnings.append(f"{name} autoTune: engines tell the size of {first}'s index alone")
    changed = {}
    for (name, part), index in zip(readers.items(), asked, strict=True):
        found = read[index]
        own = found.capacity_tokens if isinstance(found, ApproximateIndex) and index != names[0] else 0
        changed[name] = replace(part, index_tokens=own, precise=isinstance(found, PreciseIndex))
    return changed


def _tunes(found: object) -> bool:
    return isinstance(found, ApproximateIndex) and found.auto_tune


#: A plugin of a profile: as configured, its parameters, its weight.
_Entry = tuple["Plugin", Any, float | None]


def _policy(entries: list[_Entry], key: str, source: str, meaning: Meaning, *, several: bool) -> None:
    ours = [(plugin, weight) for plugin, _, weight in entries if plugin.type in POLICIES]
    scorers = [entry for entry in entries if isinstance(entry[1], Scorer)]
    filters = {plugin.known_as: part for plugin, part, _ in entries if isinstance(part, Filter)}
    filters = {**meaning.screeners, **filters}
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
        plain = not (several or filters or meaning.profile.get(KV_SOURCE)) and picker == "max-score-picker"
        if not (plain and _usual(scorers)):
            _profile(filters, scorers, picker, meaning)
        else:
            weights = {
                SCORERS[plugin.type]: 1.0 if weight is None else weight for plugin, _, weight in scorers
            }
            meaning.put("policy", name="llm-d", weights={**dict.fromkeys(SCORERS.values(), 0.0), **weights})
            if any(isinstance(part, PrefixScorer) and part.precise for _, part, _ in scorers):
                meaning.put("policy", params={"blocks": False})


def _our_policy(policy: Plugin, weight: float | None, key: str, source: str, meaning: Meaning) -> None:
    if weight not in (None, 1.0):
        problem = "a policy has no weight beside others"
        raise ConfigError(source, key, problem, "put 'weights' into its parameters")
    params = dict(policy.parameters or {})
    rename_keys({"policy": params}, source)
    own = {name: params.pop(name) for name in _POLICY_KEYS if name in params}
    meaning.put("policy", name=policy.type, params=params, **own)


def _usual(scorers: list[_Entry]) -> bool:
    """Tell whether the policy `llm-d` has these scorers, each once, with weights within its bounds."""
    kinds = {plugin.type: part for plugin, part, _ in scorers}
    prefix = kinds.get("prefix-cache-scorer")
    return (
        kinds.keys() <= SCORERS.keys()
        and len(kinds) == len(scorers)
        and not (prefix and (prefix.match_length_weight or prefix.index_tokens))
        and all(weight is None or 0.0 <= weight <= _LARGEST_WEIGHT for _, _, weight in scorers)
    )


def _profile(filters: Mapping[str, Filter], scorers: list[_Entry], picker: str, meaning: Meaning) -> None:
    """Say the profile plugin by plugin, by the names that the file has for them."""
    parts = {plugin.known_as: part for plugin, part, _ in scorers}
    params = {**meaning.profile, "filters": filters, "scorers": parts, "picker": picker}
    weights = {plugin.known_as: 1.0 if weight is None else weight for plugin, _, weight in scorers}
    meaning.put("policy", name=LlmDProfile.name, params={**params, "scorer_weights": weights})
