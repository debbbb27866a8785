"""Checks of an Envoy's running configuration, by what its admin interface dumps. Pure.

Reads any Envoy, also such as we did not configure: what is looked at are the filters and clusters that take
part when the picker is asked. Envoy's JSON leaves out what has its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epp.config.address import is_ip, join_address, split_address
from epp.server.doctor.envoy_routes import check_routes
from epp.server.doctor.envoy_tree import (
    DESTINATION,
    Tree,
    clusters_of,
    find_types,
    listeners_of,
    removes_header,
    routes_of,
    seconds,
)

if TYPE_CHECKING:
    from epp.server.doctor.findings import Report

#: Default of `message_timeout`.
MESSAGE_TIMEOUT_S = 0.2
#: Default of Envoy's circuit breakers; an LLM's answers are long, so it is reached early.
DEFAULT_REQUESTS = 1024
_THROUGH = ("STREAMED", "FULL_DUPLEX_STREAMED")
LOOPBACK = ("127.", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Asked:
    """A connection manager that asks a picker.

    Attributes:
        manager: its configuration.
        ext_proc: the filter.
        picker: name of the picker's cluster.
        routes: route configurations that it uses.
    """

    manager: Tree
    ext_proc: Tree
    picker: str
    routes: list[Tree]

    @property
    def mode(self) -> Tree:
        """What passes the picker."""
        mode: Tree = self.ext_proc.get("processing_mode", {})
        return mode


def check_envoy(
    report: Report,
    dump: Tree,
    statuses: Tree,
    endpoints: frozenset[str],
    *,
    fallbacks: int = 0,
    relays: frozenset[str] = frozenset(),
) -> None:
    """All checks of an Envoy.

    Args:
        report: gets the findings.
        dump: answer of ``/config_dump``.
        statuses: answer of ``/clusters?format=json``, empty when there is none.
        endpoints: addresses of the pool.
        fallbacks: how many further endpoints the picker sends after the picked one.
        relays: addresses of all relays; with some, Envoy connects to these and to no endpoint.
    """
    clusters = clusters_of(dump)
    asked = _asked(dump)
    if not asked:
        report.error(
            "envoy",
            "no listener of this Envoy has an ext_proc filter",
            "the picker is never asked",
            "render a configuration with `epp envoy render`",
        )
    for one in asked:
        _modes(report, one)
        _failures(report, one, clusters)
        _metadata(report, one)
        _observed(report, one)
        targets = check_routes(
            report,
            one.routes,
            buffered=one.mode.get("request_body_mode") == "BUFFERED",
            nowhere=frozenset(name for name, cluster in clusters.items() if _is_nowhere(cluster)),
        )
        for name in sorted(targets & clusters.keys()):
            _balancing(report, one, clusters[name])
            _single(report, clusters[name], fallbacks)
            _breakers(report, clusters[name], "requests in flight to endpoints")
            _hosts(report, clusters[name], statuses, relays or endpoints, relayed=bool(relays))
        if one.picker in clusters:
            _breakers(report, clusters[one.picker], "requests that the picker is asked about")
    _admin(report, dump)


def _is_nowhere(cluster: Tree) -> bool:
    """A cluster without hosts, for requests that must not go on."""
    static = cluster.get("type", "STATIC") == "STATIC"
    return static and not cluster.get("load_assignment", {}).get("endpoints")


def _asked(dump: Tree) -> list[Asked]:
    found = []
    for listener in listeners_of(dump):
        for manager in find_types(listener, "HttpConnectionManager"):
            for ext_proc in find_types(manager.get("http_filters", []), "ExternalProcessor"):
                service = ext_proc.get("grpc_service", {})
                picker = service.get("envoy_grpc", {}).get("cluster_name", "")
                found.append(Asked(manager, ext_proc, picker, routes_of(dump, manager)))
    return found


def _modes(report: Report, asked: Asked) -> None:
    mode = asked.mode
    body, headers = mode.get("request_body_mode", "NONE"), mode.get("request_header_mode", "DEFAULT")
    if body == "NONE":
        report.error(
            "envoy",
            "request bodies are not sent to the picker (request_body_mode NONE)",
            "it sees no prompt: neither length nor cached prefix can be priced",
            "set request_body_mode: BUFFERED",
        )
    if headers == "SKIP":
        report.error(
            "envoy",
            "request headers are not sent to the picker (request_header_mode SKIP)",
            "the router chooses an endpoint before the picker has answered",
            "set request_header_mode: SEND",
        )
    response = mode.get("response_body_mode", "NONE")
    if response in _THROUGH:
        report.advice(
            "envoy",
            f"every piece of every answer passes the picker (response_body_mode {response})",
            "0.1 to 0.3 ms of its CPU for each token, and answers in flight die with it",
            "where you configure Envoy: response_body_mode NONE and the observer of `epp envoy render`",
        )
    report.note("envoy", f"request bodies {body}, response bodies {response}")


def _failures(report: Report, asked: Asked, clusters: dict[str, Tree]) -> None:
    by_address = any(cluster.get("type") == "ORIGINAL_DST" for cluster in clusters.values())
    open_ = asked.ext_proc.get("failure_mode_allow", False)
    if open_ and by_address and not removes_header(asked.manager, DESTINATION):
        report.error(
            "envoy",
            "an ORIGINAL_DST cluster goes on without the picker, and clients' destination headers stay",
            "while the picker is away a client chooses where its request goes, Envoy's admin port included",
            "set failure_mode_allow: false, and remove the header by early header mutation",
        )
    if not open_ and not by_address:
        report.warning(
            "envoy",
            "requests fail when the picker does (failure_mode_allow is false)",
            "the picker makes things faster; it need not be able to stop them",
            "set failure_mode_allow: true",
        )
    full_duplex = asked.mode.get("request_body_mode") == "FULL_DUPLEX_STREAMED"
    timeout_s = seconds(asked.ext_proc.get("message_timeout"), MESSAGE_TIMEOUT_S)
    if full_duplex:
        report.note("envoy", "in full duplex Envoy has no message timeout: a hung picker holds requests")
    elif timeout_s > 2.0 or timeout_s == 0.0:
        report.warning(
            "envoy",
            f"a hung picker may hold each request for {timeout_s:g} s (message_timeout)",
            "a user waits that long before Envoy goes on without it",
            "set message_timeout to about 0.25s",
        )
    elif timeout_s < 0.1:
        report.warning(
            "envoy",
            f"message_timeout is {timeout_s * 1e3:.0f} ms",
            "a long prompt on a busy machine goes on unpicked",
            "set message_timeout to about 0.25s",
        )


def _metadata(report: Report, asked: Asked) -> None:
    options = asked.ext_proc.get("metadata_options", {})
    received = options.get("receiving_namespaces", {}).get("untyped", [])
    if "epp" not in received:
        report.warning(
            "envoy",
            "the picker's decision id is not taken over (receiving_namespaces lacks epp)",
            "reports cannot be joined to decisions",
            "add epp to metadata_options.receiving_namespaces.untyped",
        )


def _observed(report: Report, asked: Asked) -> None:
    if asked.mode.get("response_body_mode") in _THROUGH:
        return
    logs = [
        log
        for log in find_types(asked.manager.get("access_log", []), "HttpGrpcAccessLogConfig")
        if log.get("common_config", {}).get("grpc_service", {}).get("envoy_grpc", {}).get("cluster_name")
        == asked.picker
    ]
    if not logs:
        report.warning(
            "envoy",
            "the picker gets no gRPC access log",
            "it does not learn of status, duration, tokens, or who really served",
            "render the configuration with `epp envoy render` (observe: true)",
        )
    # The filter that restores model names is Lua, too, and watches nothing.
    scripts = find_types(asked.manager.get("http_filters", []), "Lua")
    if all(script.get("stat_prefix") == "restore_model" for script in scripts):
        report.warning(
            "envoy",
            "nothing watches answers for the first token (no Lua filter)",
            "TTFT is not known, and uncached tokens count as pending until a request ends",
            "render the configuration with `epp envoy render` (observe: true)",
        )


def _balancing(report: Report, asked: Asked, cluster: Tree) -> None:
    policies = find_types(cluster.get("load_balancing_policy", {}), "OverrideHost")
    direct = cluster.get("original_dst_lb_config", {})
    sources = [source for policy in policies for source in policy.get("override_host_sources", [])]
    if not policies and cluster.get("type") != "ORIGINAL_DST":
        report.error(
            "envoy",
            f"cluster {cluster['name']} balances by itself",
            "what the picker answers has no effect",
            "use the override_host load balancing policy, or an ORIGINAL_DST cluster",
        )
        return
    by_header = any("header" in source for source in sources) or direct.get("use_http_header", False)
    if by_header and not removes_header(asked.manager, DESTINATION):
        report.error(
            "envoy",
            f"cluster {cluster['name']} takes the destination from a request header that clients can send",
            "whenever the picker is away, a client's header chooses the endpoint",
            f"remove {DESTINATION} by early header mutation, or take it from metadata",
        )
    received = asked.ext_proc.get("metadata_options", {}).get("receiving_namespaces", {}).get("untyped", [])
    by_metadata = any("metadata" in source for source in sources) or "metadata_key" in direct
    if by_metadata and not by_header and "envoy.lb" not in received:
        report.error(
            "envoy",
            f"cluster {cluster['name']} takes the destination from metadata that the picker may not set",
            "what the picker answers has no effect",
            "add envoy.lb to metadata_options.receiving_namespaces.untyped",
        )


def _single(report: Report, cluster: Tree, fallbacks: int) -> None:
    """ORIGINAL_DST reads one address; a list of them is none, and the request ends there."""
    if cluster.get("type") == "ORIGINAL_DST" and fallbacks:
        report.error(
            "envoy",
            f"cluster {cluster['name']} takes a single endpoint, and the picker sends {fallbacks} fallbacks"
            " after its pick",
            "Envoy finds no address in the list and answers 503, which counts against the endpoints picked",
            "set policy.fallbacks: 0 and start the picker again",
        )


def _breakers(report: Report, cluster: Tree, what: str) -> None:
    thresholds = [
        one
        for one in cluster.get("circuit_breakers", {}).get("thresholds", [])
        if one.get("priority", "DEFAULT") == "DEFAULT"
    ]
    found = thresholds[0] if thresholds else {}
    limit = min(found.get(key, DEFAULT_REQUESTS) for key in ("max_requests", "max_connections"))
    if limit <= DEFAULT_REQUESTS:
        report.warning(
            "envoy",
            f"cluster {cluster['name']} takes at most {limit} at once: {what}",
            "answers of LLMs are long, so this is reached early, and what exceeds it gets 503",
            "raise max_requests, max_connections and max_pending_requests of its circuit breakers",
        )


def _hosts(report: Report, cluster: Tree, statuses: Tree, wanted: frozenset[str], *, relayed: bool) -> None:
    """`override_host` passes over addresses that the cluster does not hold; names are resolved by Envoy."""
    if cluster.get("type") == "ORIGINAL_DST":
        return
    name = cluster["name"]
    status = next((one for one in statuses.get("cluster_statuses", []) if one.get("name") == name), None)
    if status is None:
        return
    kind, where = ("relays", "relays.regions") if relayed else ("endpoints", "the endpoints file")
    held = set()
    for host in status.get("host_statuses", []):
        socket = host.get("address", {}).get("socket_address", {})
        if socket.get("address"):
            held.add(join_address(socket["address"], socket.get("port_value", 0)))
    addresses = {address for address in wanted if is_ip(split_address(address)[0])}
    missing = sorted(addresses - held)
    if missing:
        report.error(
            "envoy",
            f"cluster {name} does not hold {', '.join(missing)} of {where}",
            "when the picker names one of these, Envoy sends the request to another",
            "render Envoy's configuration again"
            + ("" if relayed else ", so that it follows pool.eds_file, or take that file to it"),
        )
    else:
        report.note("envoy", f"cluster {name} holds all {kind}")


def _admin(report: Report, dump: Tree) -> None:
    for config in dump.get("configs", []):
        admin: Any = config.get("bootstrap", {}).get("admin", {})
        address = admin.get("address", {}).get("socket_address", {}).get("address", "")
        if address and not address.startswith(LOOPBACK):
            report.warning(
                "envoy",
                f"the admin interface listens on {address}",
                "whoever reaches it can read secrets and stop Envoy",
                "let it listen on 127.0.0.1",
            )
