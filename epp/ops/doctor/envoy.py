"""Checks of an Envoy's running configuration, where it asks the picker. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.address import is_ip, is_loopback, join_address, split_address
from epp.envoy.regions import FORWARDS
from epp.ops.doctor.context import NotFetchedError, advice, error, note, warning
from epp.ops.doctor.envoy_dump import DESTINATION, Tree, at, find_types, removes_header, seconds

if TYPE_CHECKING:
    from epp.ops.doctor.context import Context, Findings

#: Default of `message_timeout`.
MESSAGE_TIMEOUT_S = 0.2
#: Default of a route's timeout, which counts to the end of the answer, and one that is too short for that.
ROUTE_TIMEOUT_S, SHORT_S = 15.0, 120.0
#: Default of a connection manager's `stream_idle_timeout`, which counts what a request waits in the picker.
IDLE_TIMEOUT_S = 300.0
#: Default of Envoy's circuit breakers.
DEFAULT_REQUESTS = 1024
_RETRIED = {"connect-failure", "5xx", "gateway-error", "reset", "reset-before-request"}
_RETRIED_ANSWERS = {"5xx", "gateway-error"}
_UNSEEN = "connect-failure,refused-stream,reset-before-request"
_RENDER = "render the configuration with `epp envoy render` (observe: true)"


def reachable(context: Context) -> Findings:
    """Check that Envoy's admin interface answers."""
    if not context.admin:
        yield note("no --envoy-admin given, so Envoy was not checked")
        raise NotFetchedError
    if context.dump is None:
        yield error(
            f"no configuration from {context.admin}/config_dump: {context.no_dump}",
            "Envoy could not be checked",
            "give the URL of its admin interface",
        )


def ext_proc_uses(context: Context) -> Findings:
    """Check that some listener asks a picker."""
    if not context.envoy.asked:
        yield error(
            "no listener of this Envoy has an ext_proc filter",
            "the picker is never asked",
            "render a configuration with `epp envoy render`",
        )


def modes(context: Context) -> Findings:
    """Check what of requests and answers passes the picker."""
    for asked in context.envoy.asked:
        body = asked.mode.get("request_body_mode", "NONE")
        response = asked.mode.get("response_body_mode", "NONE")
        if body == "NONE":
            yield error(
                "request bodies are not sent to the picker (request_body_mode NONE)",
                "it sees no prompt: neither length nor cached prefix can be priced",
                "set request_body_mode: BUFFERED",
            )
        if asked.mode.get("request_header_mode") == "SKIP":
            yield error(
                "request headers are not sent to the picker (request_header_mode SKIP)",
                "the router chooses an endpoint before the picker has answered",
                "set request_header_mode: SEND",
            )
        if asked.shows_answers:
            yield advice(
                f"every piece of every answer passes the picker (response_body_mode {response})",
                "0.1 to 0.3 ms of its CPU for each token, and answers in flight die with it",
                "where you configure Envoy: response_body_mode NONE and the observer of `epp envoy render`",
            )
        yield note(f"request bodies {body}, response bodies {response}")


def failures(context: Context) -> Findings:
    """Check what happens to requests while the picker is away."""
    by_address = any(one.get("type") == "ORIGINAL_DST" for one in context.envoy.clusters.values())
    for asked in context.envoy.asked:
        goes_on = asked.ext_proc.get("failure_mode_allow", False)
        if goes_on and by_address and not removes_header(asked.manager, DESTINATION):
            yield error(
                "an ORIGINAL_DST cluster goes on without the picker, and clients' destination headers stay",
                "a client then chooses where its request goes, Envoy's admin port included",
                "set failure_mode_allow: false, and remove the header by early header mutation",
            )
        if not goes_on and not by_address:
            yield warning(
                "requests fail when the picker does (failure_mode_allow is false)",
                "the picker makes things faster; it need not be able to stop them",
                "set failure_mode_allow: true",
            )


def message_timeout(context: Context) -> Findings:
    """Check that Envoy waits for the picker long enough and not too long."""
    for asked in context.envoy.asked:
        timeout_s = seconds(asked.ext_proc.get("message_timeout"), MESSAGE_TIMEOUT_S)
        if asked.mode.get("request_body_mode") == "FULL_DUPLEX_STREAMED":
            yield note("in full duplex Envoy has no message timeout: a hung picker holds requests")
        elif timeout_s > 2.0 or timeout_s == 0.0:
            yield warning(
                f"a hung picker may hold each request for {timeout_s:g} s (message_timeout)",
                "a user waits that long before Envoy goes on without it",
                "set message_timeout to about 0.25s",
            )
        elif timeout_s < 0.1:
            yield warning(
                f"message_timeout is {timeout_s * 1e3:.0f} ms",
                "a long prompt on a busy machine goes on unpicked",
                "set message_timeout to about 0.25s",
            )


def waits(context: Context) -> Findings:
    """Check that requests can wait in the picker for as long as its configuration says."""
    config = context.config
    if not config.queue.enabled:
        return
    longest_s = config.queue.longest_s + config.request.model_wait_s
    what = f"requests may wait {longest_s:g} s in the picker (queue and request.model_wait_s)"
    for asked in context.envoy.asked:
        full_duplex = asked.mode.get("request_body_mode") == "FULL_DUPLEX_STREAMED"
        granted_s = seconds(asked.ext_proc.get("max_message_timeout"), 0.0)
        if full_duplex and not config.queue.full_duplex:
            yield advice(
                "requests do not wait for room: this Envoy asks in full duplex",
                "they go to engines that have none, and queue there",
                "set queue.full_duplex: true, and know that what waits fails with the picker",
            )
            continue
        if not full_duplex and granted_s <= longest_s:
            yield error(
                f"{what}, and Envoy grants {granted_s:g} s (max_message_timeout)",
                "it goes on without a decision when its message timeout is over",
                f"set max_message_timeout to more than {longest_s:g}s, or shorten waits in `queue`",
            )
        for name, route, _ in asked.routes:
            idle = at(route, "route.idle_timeout", asked.manager.get("stream_idle_timeout"))
            idle_s = seconds(idle, IDLE_TIMEOUT_S)
            if 0.0 < idle_s <= longest_s:
                yield error(
                    f"{what}, and route {name} ends one that is idle for {idle_s:g} s",
                    "Envoy answers 504 to what still waits then",
                    f"set idle_timeout of the route to more than {longest_s:g}s, or shorten waits in `queue`",
                )


def metadata(context: Context) -> Findings:
    """Check that Envoy takes over the decision's id."""
    for asked in context.envoy.asked:
        if "epp" not in asked.received:
            yield warning(
                "the picker's decision id is not taken over (receiving_namespaces lacks epp)",
                "reports cannot be joined to decisions",
                "add epp to metadata_options.receiving_namespaces.untyped",
            )


def reporting(context: Context) -> Findings:
    """Check that access log and observing filter tell the picker how requests went."""
    for asked in context.envoy.asked:
        if asked.shows_answers:
            continue
        logs = find_types(asked.manager.get("access_log"), "HttpGrpcAccessLogConfig")
        service = "common_config.grpc_service.envoy_grpc.cluster_name"
        if asked.picker not in [at(log, service) for log in logs]:
            yield warning(
                "the picker gets no gRPC access log",
                "it does not learn of status, duration, tokens, or who really served",
                _RENDER,
            )
        # The filter that restores model names is Lua, too, and watches nothing.
        scripts = find_types(asked.manager.get("http_filters"), "Lua")
        if all(script.get("stat_prefix") == "restore_model" for script in scripts):
            yield warning(
                "nothing watches answers for the first token (no Lua filter)",
                "TTFT is not known, and uncached tokens count as pending until a request ends",
                _RENDER,
            )


def route_timeouts(context: Context) -> Findings:
    """Check that no route ends an answer while tokens flow."""
    for name, route, _ in context.envoy.routes:
        timeout_s = seconds(route["route"].get("timeout"), ROUTE_TIMEOUT_S)
        if 0.0 < timeout_s <= SHORT_S:
            yield error(
                f"route {name} ends a request after {timeout_s:g} s",
                "longer answers are cut, while tokens still flow",
                "set timeout: 0s on the route, and let idle_timeout find what hangs",
            )


def retries(context: Context) -> Findings:
    """Check that routes retry what no engine has seen, and nothing else."""
    for name, route, host in context.envoy.routes:
        policy = route["route"].get("retry_policy", host.get("retry_policy")) or {}
        conditions = [text.strip() for text in policy.get("retry_on", "").split(",")]
        if not _RETRIED & set(conditions):
            yield warning(
                f"route {name} does not retry when an endpoint cannot be reached",
                "a dead endpoint fails requests until it is ejected",
                f"set retry_on: {_UNSEEN}",
            )
        elif _RETRIED_ANSWERS & set(conditions):
            yield advice(
                f"route {name} retries answers of the engine itself ({', '.join(conditions)})",
                "an engine that is overloaded gets its work twice",
                f"retry only what an endpoint never saw: {_UNSEEN}",
            )


def body_limits(context: Context) -> Findings:
    """Check that buffered routes say how long a body may be; else the connection's buffer does."""
    keys = {"request_body_buffer_limit", "per_request_buffer_limit_bytes"}
    for asked in context.envoy.asked:
        if asked.mode.get("request_body_mode") != "BUFFERED":
            continue
        for name, route, host in asked.routes:
            if not keys & (route.keys() | host.keys()):
                yield advice(
                    f"route {name} sets no limit on buffered request bodies",
                    "bodies over the connection's buffer (1 MiB by default, some 200,000 tokens) get 413",
                    "set request_body_buffer_limit on the route",
                )


def balancing(context: Context) -> Findings:
    """Check that clusters send to the endpoint that the picker names, and clients cannot name one."""
    fallbacks = context.config.policy.fallbacks
    for asked in context.envoy.asked:
        for cluster in asked.targets:
            name, by_address = cluster["name"], cluster.get("type") == "ORIGINAL_DST"
            policies = find_types(cluster.get("load_balancing_policy"), "OverrideHost")
            direct = at(cluster, "original_dst_lb_config", {})
            sources = [source for policy in policies for source in policy.get("override_host_sources", [])]
            if not policies and not by_address:
                yield error(
                    f"cluster {name} balances by itself",
                    "what the picker answers has no effect",
                    "use the override_host load balancing policy, or an ORIGINAL_DST cluster",
                )
                continue
            by_header = any("header" in source for source in sources) or direct.get("use_http_header", False)
            by_metadata = any("metadata" in source for source in sources) or "metadata_key" in direct
            if by_header and not removes_header(asked.manager, DESTINATION):
                yield error(
                    f"cluster {name} takes the destination from a request header that clients can send",
                    "whenever the picker is away, a client's header chooses the endpoint",
                    f"remove {DESTINATION} by early header mutation, or take it from metadata",
                )
            if by_metadata and not by_header and "envoy.lb" not in asked.received:
                yield error(
                    f"cluster {name} takes the destination from metadata that the picker may not set",
                    "what the picker answers has no effect",
                    "add envoy.lb to metadata_options.receiving_namespaces.untyped",
                )
            if by_address and fallbacks:
                yield error(
                    f"cluster {name} takes a single endpoint, and the picker sends {fallbacks} fallbacks"
                    " behind the chosen one",
                    "Envoy finds no address in the list and answers 503, which counts against the endpoints"
                    " chosen",
                    "set policy.fallbacks: 0 and start the picker again",
                )


def breakers(context: Context) -> Findings:
    """Check that circuit breakers leave room for long answers."""
    for asked in context.envoy.asked:
        held = [(cluster, "requests in flight to endpoints") for cluster in asked.targets]
        if asked.picker in context.envoy.clusters:
            held.append((context.envoy.clusters[asked.picker], "requests that the picker is asked about"))
        for cluster, what in held:
            limit = _limit(cluster)
            if limit <= DEFAULT_REQUESTS:
                yield warning(
                    f"cluster {cluster['name']} takes at most {limit} at once: {what}",
                    "answers of LLMs are long, so this is reached early, and what exceeds it gets 503",
                    "raise max_requests, max_connections and max_pending_requests of its circuit breakers",
                )


def _limit(cluster: Tree) -> int:
    """Give what a cluster takes at once."""
    thresholds: list[Tree] = at(cluster, "circuit_breakers.thresholds", [])
    default = next((one for one in thresholds if "priority" not in one), {})
    return min(int(default.get(key, DEFAULT_REQUESTS)) for key in ("max_requests", "max_connections"))


def hosts(context: Context) -> Findings:
    """Check that clusters hold all endpoints; `override_host` passes over others. Envoy resolves names."""
    relays = context.config.relays
    wanted = {address for region in relays.regions for address in relays.addresses(region)}
    kind, where, follows = "relays", "relays.regions", ""
    if not wanted or context.config.federation.region:
        wanted = set(context.specs)
        kind, where = "endpoints", "the endpoints file"
        follows = ", so that it follows pool.eds_file, or take that file to it"
    addresses = {address for address in wanted if is_ip(split_address(address)[0])}
    held = {
        status.get("name"): _addresses(status)
        for status in context.envoy.statuses.get("cluster_statuses", [])
    }
    for cluster in (cluster for asked in context.envoy.asked for cluster in asked.targets):
        name = cluster["name"]
        if cluster.get("type") == "ORIGINAL_DST" or name not in held or name == FORWARDS:
            continue
        if missing := sorted(addresses - held[name]):
            yield error(
                f"cluster {name} does not hold {', '.join(missing)} of {where}",
                "when the picker names one of these, Envoy sends the request to another",
                f"render Envoy's configuration again{follows}",
            )
        else:
            yield note(f"cluster {name} holds all {kind}")


def _addresses(status: Tree) -> set[str]:
    sockets = [at(host, "address.socket_address", {}) for host in status.get("host_statuses", [])]
    return {join_address(one["address"], one.get("port_value", 0)) for one in sockets if "address" in one}


def admin(context: Context) -> Findings:
    """Check that only this machine reaches the admin interface."""
    for config in context.envoy.dump.get("configs", []):
        address = at(config, "bootstrap.admin.address.socket_address.address")
        if address and not is_loopback(address):
            yield warning(
                f"the admin interface listens on {address}",
                "whoever reaches it can read secrets and stop Envoy",
                "let it listen on 127.0.0.1",
            )
