"""The scripts: one watches responses for the picker, one puts public model names back into them.

Owns the cluster of the picker's listener for first tokens, the scripts' parameters and the names under which
findings travel. The picker's receivers (`epp.request.access_log`, `epp.request.first_token`) use the same
names; a test with a real Envoy holds both together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from epp.apis.events import CONTENT, DELTAS, EVENTS, FAILURES, LINE_BYTES, PROGRESS, Kind
from epp.envoy import messages as api
from epp.envoy.clusters import DESTINATION_NAMESPACE, PICKER, SERVED_KEY
from epp.envoy.filters import DECISION_NAMESPACE
from epp.envoy.sockets import upstream_tls

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

FIRST_TOKENS = "first-tokens"
"""Name of the cluster."""

_TOLD = "/epp.Reports/Told"
"""Method of a picker's gRPC listener that takes the same calls, where others may decide."""

OBSERVED_NAMESPACE = "epp.observe"
"""Dynamic metadata of the filter's findings."""

STRIPPED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/score",
    "/v1/score",
    "/classify",
    "/v1/classify",
    "/pooling",
    "/v1/pooling",
    "/inference/v1/generate",
    "/generate",
    "/completion",
    "/completions",
    "/infill",
)
"""Paths whose answers carry a usage, as `epp.apis.registry` has them, for `strip_accept_encoding`."""

FIRST_TOKEN_TIMEOUT_MS = 1000
"""How long Envoy keeps a call that the picker does not answer. No response waits for it."""

_USAGE_BYTES = 2048
"""Longest ``usage`` object that is kept of an answer."""
_FIRST_TOKEN_CONNECTIONS = 8
_FIRST_TOKENS_WAITING = 1024
"""A picker that is slow for a moment finds this many calls waiting; what exceeds them is not sent."""

_FOLDER = Path(__file__).parent


def observers(settings: EnvoySettings) -> list[api.hcm.HttpFilter]:
    """The filters between picker and router that the settings ask for.

    `restore_model.lua` stands before the observing filter, which so sees an answer as the engine gave it.
    """
    filters = []
    if settings.restores_models:
        source = f'local DECISION_NAMESPACE = "{DECISION_NAMESPACE}"\n\n'
        source += (_FOLDER / "restore_model.lua").read_text()
        filters.append(api.lua_filter("epp.restore_model", source, "restore_model"))
    if settings.observed:
        filters.append(api.lua_filter("envoy.filters.http.lua", script(settings), "observe"))
    return filters


def script(settings: EnvoySettings) -> str:
    """The Lua source with its parameters in front."""
    cluster = PICKER if settings.fallback_pickers else FIRST_TOKENS
    parameters = {
        "NAMESPACE": _lua(OBSERVED_NAMESPACE),
        "DECISION_NAMESPACE": _lua(DECISION_NAMESPACE),
        "CLUSTER": _lua(cluster if settings.reports_first_tokens else ""),
        "GRPC_PATH": _lua(_TOLD if settings.fallback_pickers else ""),
        "TIMEOUT_MS": str(FIRST_TOKEN_TIMEOUT_MS),
        "TAIL_BYTES": str(_USAGE_BYTES),
        "LB_NAMESPACE": _lua(DESTINATION_NAMESPACE),
        "SERVED_KEY": _lua(SERVED_KEY),
        **_TABLE,
    }
    parts = ["observe.lua"]
    if settings.strip_accept_encoding:
        parameters["STRIPPED_PATHS"] = _lua(STRIPPED_PATHS)
        parts.append("observe_request.lua")
    head = "".join(f"local {name} = {value}\n" for name, value in parameters.items())
    return "\n".join([head, *((_FOLDER / part).read_text() for part in parts)])


def _lua(value: object) -> str:
    """Write a text, a number or a list of such in Lua."""
    if isinstance(value, list | tuple):
        return f"{{ {', '.join(map(_lua, value))} }}"
    # A JSON string of printable ASCII is a Lua string, too.
    return json.dumps(value)


#: The table of events as the script works from it.
_TABLE = {
    "LINE_BYTES": _lua(LINE_BYTES),
    "EVENTS": _lua(EVENTS),
    "LAST_EVENTS": _lua([f'{name}"' for name, _, kind in EVENTS if kind in {Kind.END, Kind.ERROR}]),
    "CONTENT": _lua(CONTENT),
    "DELTAS": _lua(DELTAS),
    "PROGRESS": _lua(PROGRESS),
    "FAILURES": _lua([f'"{name}"%s*:%s*{value.replace(".", "%.")}' for name, value in FAILURES]),
}


def observer_clusters(settings: EnvoySettings) -> list[api.cluster.Cluster]:
    """The cluster of the picker's listener for first tokens: a few open connections, never in the way."""
    if not settings.reports_first_tokens or settings.fallback_pickers:
        return []
    host, path = settings.first_token_host or settings.picker_host, settings.first_token_path
    address = api.socket_address(host, settings.first_token_port)
    if path:
        address = api.core.Address(pipe=api.core.Pipe(path=path))
    cluster = api.cluster.Cluster(
        name=FIRST_TOKENS,
        type=api.discovery([] if path else [host]),
        dns_lookup_family=api.cluster.ClusterDnsLookupFamily.V4_PREFERRED,
        connect_timeout=api.ms(FIRST_TOKEN_TIMEOUT_MS),
        circuit_breakers=api.cluster.CircuitBreakers(
            thresholds=[
                api.cluster.CircuitBreakersThresholds(
                    priority=api.core.RoutingPriority.DEFAULT,
                    max_connections=_FIRST_TOKEN_CONNECTIONS,
                    max_pending_requests=_FIRST_TOKENS_WAITING,
                    max_requests=_FIRST_TOKENS_WAITING,
                    max_retries=0,
                )
            ]
        ),
        load_assignment=api.single_host(FIRST_TOKENS, address),
    )
    if settings.first_token_tls:
        name = settings.first_token_tls.server_name or host
        cluster.transport_socket = upstream_tls(settings.first_token_tls, name)
    return [cluster]
