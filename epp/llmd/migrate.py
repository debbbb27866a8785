"""From the values of llm-d's router charts to those of ours, and what is left out.

Pure: values in, values out. Sources: ``config/charts`` of llm-d/llm-d-router at ebab687.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.strict import load_yaml
from epp.errors import ConfigError
from epp.llmd.check import check_text
from epp.llmd.flags import FLAGS, Stance
from epp.llmd.picker_config import API_VERSIONS, KIND, parse_picker_config
from epp.llmd.plugins import meaning_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Path in llm-d's values -> path in ours, for what is copied.
_COPIED = {
    "epp.replicas": "replicas",
    "epp.resources": "resources",
    "epp.affinity": "affinity",
    "epp.tolerations": "tolerations",
    "epp.podAnnotations": "podAnnotations",
    "epp.env": "extraEnv",
    "modelServers.matchLabels": "endpoints.matchLabels",
    "inferencePool.create": "inferencePool.create",
    "inferencePool.failureMode": "inferencePool.failureMode",
    "inferenceObjectives": "inferenceObjectives",
    "monitoring.interval": "monitoring.serviceMonitor.interval",
    "monitoring.prometheus.enabled": "monitoring.serviceMonitor.enabled",
    "monitoring.prometheus.extraLabels": "monitoring.serviceMonitor.labels",
    "proxy.enabled": "standalone.enabled",
    "provider.name": "provider.name",
    "httpRoute.create": "httpRoute.create",
    "httpRoute.inferenceGatewayName": "httpRoute.gateway.name",
    "httpRoute.inferenceGatewayNamespace": "httpRoute.gateway.namespace",
    "httpRoute.requestTimeout": "httpRoute.requestTimeout",
}
#: Path -> why it is left out; for the longest path that begins one, else there is no counterpart.
_LEFT_OUT = {
    "epp.image": "push ours and name it: image.repository",
    "epp.parsers": "all are always there",
    "epp.extProcPort": "the chart's",
    "epp.grpcHealthPort": "the chart's",
    "tokenizer": "tokens are counted in process",
    "latencyPredictor": "latencies follow rates learned in process",
    "tracing": "config.tracing: true, and OTEL_* in extraEnv",
    "proxy": "our Envoy is configured by the chart: standalone",
    "modelServers.type": "engines are recognised by their metrics",
    "modelServers.protocol": "gRPC bodies pass through unread",
    "extraServicePorts": "standalone.service.port, or none",
    "monitoring": "monitoring of our chart",
}
#: Part of the values of earlier charts -> where it stands now; llm-d's own charts refuse these, too.
_MOVED = {
    "inferenceExtension": "router.epp and router",
    "inferencePool": "router.modelServers and router.inferencePool",
    "experimentalHttpRoute": "httpRoute",
    "inferenceObjectives": "router.inferenceObjectives",
}
_STAGES = "disagg-profile-handler"
#: Plugin, parameter that llm-d still takes by this name -> its name today.
_RENAMED = {
    ("approx-prefix-cache-producer", "blockSize"): "blockSizeTokens",
    (_STAGES, "decodeProfile"): "profiles.decode",
    (_STAGES, "prefillProfile"): "profiles.prefill",
    (_STAGES, "encodeProfile"): "profiles.encode",
    (_STAGES, "prefillDeciderPluginName"): "deciders.prefill",
    (_STAGES, "encodeDeciderPluginName"): "deciders.encode",
    (_STAGES, "deciderPluginName"): "deciders.prefill",
}
#: What the charts say of scraping where values do not.
_SCRAPED = {"scheme": "http", "path": "/metrics", "insecureSkipVerify": True}
#: Flags that our chart writes itself.
_OF_CHART = frozenset(
    ("pool-name", "pool-namespace", "pool-group", "config-file", "grpc-health-port", "drain-timeout",
     "secure-serving", "cert-path", "enable-cert-reload")
)  # fmt: skip


def migrate(texts: Mapping[str, str | bytes]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Translate values files.

    Args:
        texts: text by file name, the later laid over the earlier, as Helm does.

    Returns:
        Our values, a line for each of theirs that is left out, and a sentence for each plugin or parameter
        that means something else here or has a new name.

    Raises:
        ConfigError: a file is not YAML, or the plugin configuration is refused, or values have the names of
            charts before `router`.
    """
    theirs = _read(texts)
    ours, left_out = dict[str, Any](), list[str]()
    epp = theirs.get("epp", {})
    (config, changed), standalone = (
        _plugins(epp, list(texts)[-1]),
        theirs.get("proxy", {}).get("enabled", False),
    )
    _put(ours, "endpoints.from", "selector" if standalone else "inferencePool")
    if standalone:  # our chart's Envoy goes with epp.yaml
        meaning = meaning_of(parse_picker_config(msgspec.json.encode(config), "values"), "values")
        _put(ours, "config", msgspec.to_builtins({**meaning.sections, **meaning.own}))
        if meaning.scheme == "https":
            left_out.append("metrics-data-source scheme: standalone speaks plaintext with pods")
    else:
        _put(ours, "endpointPickerConfig", config)
    if epp.get("replicas", 1) > 1 and "nats" not in ours.get("config", {}):
        changed.append("epp.replicas: each knows alone what it sent; `nats` joins them (docs/cluster.md)")
    for path, value in _leaves(theirs, ""):
        if standalone and path.startswith(("inferencePool.", "httpRoute.")):
            left_out.append(f"{path.partition('.')[0]}: standalone follows pods by label, without a gateway")
        elif path in _COPIED:
            _put(ours, _COPIED[path], value)
        elif path == "modelServers.targetPorts":
            _put(ours, "endpoints.targetPorts", [each["number"] for each in value])
        elif path == "extraServicePorts" and value and standalone:
            _put(ours, "standalone.service.port", value[0]["port"])
        elif path.startswith("epp.flags."):
            name = path.removeprefix("epp.flags.")
            if why := "epp.yaml goes with standalone" if standalone else _flag_left_out(name):
                left_out.append(f"{path}: {why}")
            else:
                _put(ours, "flags", {**ours.get("flags", {}), name: value})
        elif not path.startswith(("epp.pluginsC", "epp.metricsDataSource")) and value not in ({}, [], ""):
            begins = [begin for begin in _LEFT_OUT if f"{path}.".startswith(f"{begin}.")]
            begin = max(begins, key=len, default=path)
            left_out.append(f"{begin}: {_LEFT_OUT.get(begin, 'no counterpart in our chart')}")
    return ours, list(dict.fromkeys(left_out)), changed


def _read(texts: Mapping[str, str | bytes]) -> dict[str, Any]:
    """Lay values files over each other; what stands under `router` comes to the top.

    Raises:
        ConfigError: a file is not YAML, or has the names of earlier charts.
    """
    theirs: dict[str, Any] = {}
    for source, text in texts.items():
        values = load_yaml(text, source)
        if values is not None and not isinstance(values, dict):
            raise ConfigError(source, "", "not a values file")
        for name in (values or {}).keys() & _MOVED.keys():
            raise ConfigError(source, name, "of a chart before llm-d-router's", f"move it to {_MOVED[name]}")
        theirs = _merged(theirs, values or {})
    return {**{name: part for name, part in theirs.items() if name != "router"}, **theirs.get("router", {})}


def _plugins(epp: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """Return the plugin configuration, with what the chart says of metrics, and what of it means else.

    Raises:
        ConfigError: all of it that is refused.
    """
    name = epp.get("pluginsConfigFile", "default-plugins.yaml")
    text = (epp.get("pluginsCustomConfig") or {}).get(name)
    config: Any = (
        load_yaml(text, f"{source}: {name}") if text else {"apiVersion": API_VERSIONS[1], "kind": KIND}
    )
    changed = list[str]()
    if text:
        for verdict in check_text(text, f"{source}: {name}"):
            if verdict.refused:
                raise ConfigError(
                    verdict.source, "", "; ".join(f"{each.problem} ({each.fix})" for each in verdict.refused)
                )
            changed += verdict.mapped
    changed += [
        f"{kind} {name}: {_RENAMED[kind, name]} is its name today"
        for kind, given in ((each["type"], each.get("parameters")) for each in config.get("plugins") or ())
        for name in given or ()
        if (kind, name) in _RENAMED
    ]
    source_said = {**_SCRAPED, **(epp.get("metricsDataSource") or {})}
    plugins = config["plugins"] = config.get("plugins") or []
    if source_said != _SCRAPED and all(plugin["type"] != "metrics-data-source" for plugin in plugins):
        if text:
            plugins.append({"type": "metrics-data-source", "parameters": source_said})
        else:
            changed.append("epp.metricsDataSource: left out; set model-server-metrics-* of flags")
    return dict(config), changed


def _flag_left_out(name: str) -> str:
    """Say why a flag does not go into our values; empty where it does."""
    if name in _OF_CHART:
        return "the chart's"
    flag = next((flag for flag in FLAGS if flag.name == name), None)
    if flag is None:
        return "no such flag"
    return flag.message if flag.stance is not Stance.HONOURED else ""


def _leaves(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield what is copied as a whole, and single values, by path."""
    for name, part in value.items():
        inner = f"{path}.{name}".removeprefix(".")
        if isinstance(part, dict) and part and inner not in _COPIED and inner != "epp.pluginsCustomConfig":
            yield from _leaves(part, inner)
        else:
            yield inner, part


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for name, part in above.items():
        if part is None:  # it removes what stands below
            both.pop(name, None)
            continue
        lower = both.get(name)
        both[name] = (
            _merged(lower if isinstance(lower, dict) else {}, part) if isinstance(part, dict) else part
        )
    return both


def _put(values: dict[str, Any], path: str, value: object) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        values = values.setdefault(folder, {})
    values[name] = value
