"""From llm-d's flags and plugin configuration to ours.

`translate` is pure: texts and values in, a checked `Config`, warnings and the form of the log out. Who reads
the command line and the file is `epp.server.command`. Order of precedence, later wins: our defaults, what
llm-d's defaults ask for, the flags, the plugins, the operator's `epp-settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from epp.config.environment import without
from epp.config.listen import LONGEST_MESSAGE_BYTES
from epp.config.load import parse_config
from epp.errors import ConfigError
from epp.llmd.flags import SOURCE
from epp.logs import LogSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.config.schema import Config
    from epp.llmd.flags import Flags

#: Shortest time between two scrapes of an engine. llm-d scrapes every 50 ms because engine metrics are all it
#: knows of load; here requests in flight are counted as they are decided, and scrapes only correct that.
SHORTEST_SCRAPE_S = 0.2
#: How long a picker that leaves still takes streams: what a cluster needs to take it out of its Service.
LAME_DUCK_S = 5.0


class Translation(NamedTuple):
    """What was made of the flags."""

    config: Config
    warnings: tuple[str, ...]
    log: LogSettings


def log_settings(flags: Flags) -> LogSettings:
    """The form of the log by `--v` and the zap flags."""
    development = flags["zap-devel"]
    level = "DEBUG" if development or flags["v"] >= 4 else "INFO"
    if named := flags["zap-log-level"]:
        names = {"debug": "DEBUG", "info": "INFO", "error": "ERROR", "panic": "CRITICAL"}
        # zap's numbers: 0 is info; llm-d counts its verbosity from there, and debug begins at 4.
        level = names.get(named) or ("DEBUG" if abs(int(named)) >= 4 else "INFO")
    return LogSettings(level, flags["zap-encoder"] == "json", flags["zap-time-encoding"])


def translate(
    flags: Flags, text: str | bytes | None, environment: Mapping[str, str], source: str = "--config-text"
) -> Translation:
    """Flags, and the plugin configuration if there is one, to a configuration of ours.

    Args:
        flags: read and checked.
        text: the `EndpointPickerConfig`, None for llm-d's defaults.
        environment: where ``NAMESPACE`` may stand, and keys of ours, which win over all but the flags given.
        source: where the text comes from, for errors.

    Raises:
        ConfigError: something that cannot be honoured; says what to do instead.
    """
    # imported here: who serves by `--config` needs none of it
    from epp.llmd.picker_config import parse_picker_config  # noqa: PLC0415
    from epp.llmd.plugins import default_meaning, meaning_of  # noqa: PLC0415

    meaning = default_meaning()
    if text is not None and text.strip():
        meaning = meaning_of(parse_picker_config(text, source), source)
    warnings = [*flags.warnings]
    tls = (meaning.scheme or flags["model-server-metrics-scheme"]) == "https"
    if tls and "pool" in meaning.sections:
        warnings.append("metrics-data-source scheme: the endpoints file says which endpoints speak TLS")
    sections: dict[str, Any] = {
        "listen": _listen(flags),
        "pool": meaning.sections.pop("pool", None)
        or {"kubernetes": {**_pool(flags, environment), "tls": tls}},
        "scrape": _scrape(flags, warnings, tls=tls),
        "protocol": {
            "subset_hint": not flags["disable-endpoint-subset-filter"],
            "emit_scores": flags["emit-endpoint-scores"],
            "errors": "llm-d",
            "old_metric_names": True,
        },
        "request": {"model_wait_s": 0.1},  # no more than any Envoy waits
        "tracing": "tracing" in flags.given and flags["tracing"],
        "drain_s": flags["drain-timeout"],
        "drain_accept_s": min(LAME_DUCK_S, flags["drain-timeout"] / 2.0),
    }
    for section, values in meaning.sections.items():
        sections[section] = {**sections.get(section, {}), **values}
    if sections["scrape"]["insecure"]:
        sections["scrape"].pop("ca_file", None)  # llm-d reads none then
    for section, values in meaning.own.items():
        below = sections.get(section)
        sections[section] = (
            {**below, **values} if isinstance(below, dict) and isinstance(values, dict) else values
        )
    if "metrics-endpoint-auth" not in flags.given and not flags["metrics-client-ca-file"]:
        warnings.append(
            "--metrics-endpoint-auth: /metrics asks for no token here, though llm-d's does by default; "
            "restrict it with a NetworkPolicy"
        )
    warnings += meaning.warnings
    below = without(environment, (key for flag, key in _KEYS.items() if flag in flags.given))
    config = parse_config(msgspec.json.encode(sections), source if text else SOURCE, below)
    return Translation(config, tuple(warnings), log_settings(flags))


#: What a flag sets, if it is given, the environment does not.
_KEYS = {
    "grpc-port": "listen.grpc",
    "metrics-port": "listen.http",
    "grpc-health-port": "listen.health",
    "grpc-max-recv-msg-size": "listen.max_receive_bytes",
    "secure-serving": "listen.tls",
    "cert-path": "listen.tls",
    "metrics-cert-dir": "listen.http_tls",
    "pool-name": "pool.kubernetes",
    "endpoint-selector": "pool.kubernetes",
    "refresh-metrics-interval": "scrape.interval_s",
    "metrics-staleness-threshold": "scrape.stale_after_s",
    "disable-endpoint-subset-filter": "protocol.subset_hint",
    "emit-endpoint-scores": "protocol.emit_scores",
    "drain-timeout": "drain_s",
    "tracing": "tracing",
}


def _listen(flags: Flags) -> dict[str, Any]:
    listen: dict[str, Any] = {
        "grpc": f"[::]:{flags['grpc-port']}",
        "http": f"[::]:{flags['metrics-port']}",
        "health": f"[::]:{flags['grpc-health-port']}",
        # Gateways that others configure report no first tokens.
        "first_token": "",
        "max_receive_bytes": min(flags["grpc-max-recv-msg-size"] or 0, LONGEST_MESSAGE_BYTES),
    }
    folder = flags["cert-path"]
    if not flags["secure-serving"]:
        if folder:
            problem = "goes with TLS, and --secure-serving=false is given"
            raise ConfigError(SOURCE, "--cert-path", problem, "one of them")
    elif folder:
        listen["tls"] = _pair(folder)
    else:
        listen["tls"] = {"self_signed": True}
    if flags["metrics-cert-dir"]:
        pair = _pair(flags["metrics-cert-dir"])
        listen["http_tls"] = {**pair, "client_ca_file": flags["metrics-client-ca-file"]}
    return listen


def _pair(folder: str) -> dict[str, str]:
    return {
        name: f"{folder.rstrip('/')}/tls.{end}" for name, end in (("cert_file", "crt"), ("key_file", "key"))
    }


def _pool(flags: Flags, environment: Mapping[str, str]) -> dict[str, Any]:
    if bool(flags["pool-name"]) == bool(flags["endpoint-selector"]):
        problem = "both are given" if flags["pool-name"] else "neither is given"
        raise ConfigError(SOURCE, "--pool-name, --endpoint-selector", problem, "one of them is wanted")
    pool: dict[str, Any] = {
        "namespace": flags["pool-namespace"] or environment.get("NAMESPACE", ""),
    }
    if flags["pool-name"]:
        return {**pool, "pool_name": flags["pool-name"]}
    return {**pool, "selector": flags["endpoint-selector"], "target_ports": flags["endpoint-target-ports"]}


def _scrape(flags: Flags, warnings: list[str], *, tls: bool) -> dict[str, Any]:
    interval_s = flags["refresh-metrics-interval"]
    if interval_s < SHORTEST_SCRAPE_S:
        interval_s = SHORTEST_SCRAPE_S
        if "refresh-metrics-interval" in flags.given:
            warnings.append(
                f"--refresh-metrics-interval: raised to {SHORTEST_SCRAPE_S * 1e3:g} ms; "
                "requests in flight are counted as they are decided, so nothing waits for a scrape"
            )
    return {
        "interval_s": interval_s,
        "stale_after_s": max(flags["metrics-staleness-threshold"], 0.001),
        "path": flags["model-server-metrics-path"],
        "insecure": tls and flags["model-server-metrics-https-insecure-skip-verify"],
    }
