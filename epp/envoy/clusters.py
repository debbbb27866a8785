"""The two upstream clusters: the replicas and the picker.

Owns how a decision becomes an upstream host. The choice is read from dynamic metadata alone, which only
ext_proc writes: no header, so no client, can choose.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epp.config.address import is_ip
from epp.config.eds import PLACE, PLAINTEXT, REPLICAS, TLS_MATCH, load_assignment, peer_name, split
from epp.config.federation import FORWARD_HEADER, HOP_HEADER
from epp.envoy import messages as api
from epp.envoy.settings import EnvoySettings, TlsFiles, Variant
from epp.envoy.sockets import trusts_nobody, upstream_tls
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import betterproto2

_PLACE_LUA = Path(__file__).with_name("place.lua")
_PUT_BACK_LUA = Path(__file__).with_name("put_back.lua")
PICKER = "picker"
NOWHERE = "nowhere"
"""Names of clusters; `NOWHERE` has no hosts and answers 503."""

DESTINATION_NAMESPACE = "envoy.lb"
DESTINATION_KEY = "x-gateway-destination-endpoint"
SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Namespace and keys of the endpoint picker protocol (Gateway API inference extension, proposal 004)."""

BOUND_KEY = "bound"
"""Key of `DESTINATION_NAMESPACE` that no host has: a request with it goes to hosts that are named alone."""

FORWARD_NAMESPACE = "epp.forward"
"""Dynamic metadata: the headers of a forward, on their way from the picker to the host chosen."""

CONNECT_TIMEOUT_S = 2.0
"""Longest TCP (and TLS) connect to an endpoint before the next one is tried."""
_REQUESTS = 10_000
"""Requests in flight at once, over all endpoints, at least; more are answered with 503."""
_HEALTH_CHECK_S = 2.0
#: Percent of what comes that a host can take: of a hundred pickers one that is fit is enough.
_ANY_HOST = 10_000


def clusters(settings: EnvoySettings, endpoints: api.cluster.Cluster) -> list[api.cluster.Cluster]:
    """All clusters of a variant.

    Args:
        settings: of which variant.
        endpoints: the cluster that requests go to: `replicas`, or the relays before them.

    Raises:
        ConfigError: endpoints that its kind of cluster cannot hold.
    """
    nowhere = api.cluster.Cluster(
        name=NOWHERE,
        type=api.cluster.ClusterDiscoveryType.STATIC,
        load_assignment=api.endpoint.ClusterLoadAssignment(cluster_name=NOWHERE),
    )
    by_address = settings.variant is Variant.ORIGINAL_DST
    closed = settings.fail_closed or by_address or settings.federation is not None
    return [endpoints, picker(settings), *([nowhere] if closed else [])]


def replicas(settings: EnvoySettings) -> api.cluster.Cluster:
    """The cluster of endpoints, of the kind that the variant asks for, on the way there without relays.

    Raises:
        ConfigError: endpoints that this kind of cluster cannot hold.
    """
    cluster = _base(settings)
    if settings.variant is Variant.ORIGINAL_DST:
        _original_dst(cluster, settings)
    else:
        _known_hosts(cluster, settings)
    return cluster


def _base(settings: EnvoySettings) -> api.cluster.Cluster:
    """What both kinds share: HTTP/1.1 upstream, limits for long streams, open connections, ejection."""
    http1 = api.upstream_http.HttpProtocolOptionsExplicitHttpConfig(
        http_protocol_options=api.core.Http1ProtocolOptions()
    )
    return api.cluster.Cluster(
        name=REPLICAS,
        connect_timeout=api.seconds(CONNECT_TIMEOUT_S),
        per_connection_buffer_limit_bytes=1024 * 1024,
        typed_extension_protocol_options=protocol(
            http1, settings.upstream_idle_timeout_s, _attempt_filters(settings)
        ),
        circuit_breakers=limits(settings.queue_requests),
        outlier_detection=outlier_detection(settings, most_percent=50, answers=True),
        preconnect_policy=api.cluster.ClusterPreconnectPolicy(
            per_upstream_preconnect_ratio=settings.preconnect_ratio
        ),
        upstream_connection_options=api.cluster.UpstreamConnectionOptions(tcp_keepalive=tcp_keepalive()),
    )


def protocol(
    http: api.upstream_http.HttpProtocolOptionsExplicitHttpConfig,
    idle_timeout_s: float | None = None,
    filters: Sequence[api.hcm.HttpFilter] = (),
) -> dict[str, api.protobuf.Any]:
    """Say how a cluster's hosts are spoken to, and for how long idle connections stay (0 for ever).

    Each attempt passes ``filters``, once its host is chosen.
    """
    idle = None
    if idle_timeout_s is not None:
        idle = api.core.HttpProtocolOptions(idle_timeout=api.seconds(idle_timeout_s))
    options = api.upstream_http.HttpProtocolOptions(
        common_http_protocol_options=idle, explicit_http_config=http, http_filters=list(filters)
    )
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": api.pack(options)}


def _attempt_filters(settings: EnvoySettings) -> list[api.hcm.HttpFilter]:
    """What an attempt passes: peer regions alone see headers of a forward, paths are as its host has them.

    Attempts share their headers: what the one before was given goes first.
    """
    given, placing = dict[str, str](), list[api.hcm.HttpFilter]()
    if settings.forwards:
        to_peer = f"upstream.address in {list(settings.forwards.values())}"
        for name in (HOP_HEADER, FORWARD_HEADER):
            given[name] = f"%CEL({to_peer} ? metadata.filter_metadata['{FORWARD_NAMESPACE}']['{name}'] : '')%"
    if settings.rewrites_paths:
        given |= {f"x-epp-{name}": f"%UPSTREAM_METADATA({PLACE}:{name})%" for name in ("path", "host")}
        placing.append(api.lua_filter("epp.place", _PLACE_LUA.read_text(), "place"))
    mutation, changes = api.mutation_rules.HeaderMutation, []
    for name, value in given.items():
        changes += [mutation(remove=name), mutation(append=api.set_header(name, value))]
    filters = [api.request_mutations(changes), *placing] if changes else []
    if settings.puts_back:
        filters.append(api.lua_filter("epp.put_back", _PUT_BACK_LUA.read_text(), "put_back"))
    codec = api.http_filter("envoy.filters.http.upstream_codec", api.upstream_codec.UpstreamCodec())
    return [*filters, codec] if filters else []


def tcp_keepalive() -> api.core.TcpKeepalive:
    """Find a vanished peer within 30 s, and keep state in middleboxes on a quiet, long prefill."""
    return api.core.TcpKeepalive(keepalive_time=15, keepalive_interval=5, keepalive_probes=3)


def limits(waiting_requests: int = 0) -> api.cluster.CircuitBreakers:
    """Envoy's defaults (1,024 requests and connections, 3 retries) are for short requests.

    Requests that wait in the picker have a stream each there, beside those that are answered. If it dies all
    of them go to the endpoints at once.

    HTTP/1.1 needs a connection a request, and preconnecting up to three. Retries are as many as requests:
    when an endpoint dies every request on its way there moves at once, each a bounded number of times.
    """
    requests = max(_REQUESTS, 2 * waiting_requests)
    return api.cluster.CircuitBreakers(
        thresholds=[
            api.cluster.CircuitBreakersThresholds(
                priority=api.core.RoutingPriority.DEFAULT,
                max_connections=3 * requests,
                max_pending_requests=requests,
                max_requests=requests,
                max_retries=requests,
                track_remaining=True,
            )
        ]
    )


def outlier_detection(
    settings: EnvoySettings, *, most_percent: int, answers: bool
) -> api.cluster.OutlierDetection:
    """Ejects what cannot be reached, and with ``answers`` what answers nothing but errors.

    Failures to connect and errors that the engine answered are counted apart, so that a few bad prompts
    between good ones eject nobody while three failed connections do.

    Args:
        settings: how long for.
        most_percent: share of the hosts that may be ejected at once.
        answers: whether errors in answers count.
    """
    enforced = 100 if answers else 0
    return api.cluster.OutlierDetection(
        interval=api.seconds(1),
        base_ejection_time=api.seconds(settings.eject_s),
        max_ejection_time=api.seconds(10 * settings.eject_s),
        max_ejection_percent=most_percent,
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=3,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_success_rate=0,
        enforcing_local_origin_success_rate=0,
        consecutive_5xx=10 if answers else None,
        enforcing_consecutive_5xx=enforced,
        consecutive_gateway_failure=5 if answers else None,
        enforcing_consecutive_gateway_failure=enforced,
    )


def _known_hosts(cluster: api.cluster.Cluster, settings: EnvoySettings) -> None:
    """Hosts that Envoy knows, chosen by `override_host`, by least-request without a decision."""
    if settings.eds_path:
        cluster.type = api.cluster.ClusterDiscoveryType.EDS
        # Else requests go on to an endpoint that left for as long as its health checks pass.
        cluster.ignore_health_on_host_removal = True
        cluster.eds_cluster_config = api.cluster.ClusterEdsClusterConfig(
            eds_config=api.core.ConfigSource(
                resource_api_version=api.core.ApiVersion.V3,
                path_config_source=api.core.PathConfigSource(path=settings.eds_path),
            ),
            service_name=REPLICAS,
        )
    else:
        cluster.type = api.discovery(split(endpoint.address)[0] for endpoint in settings.endpoints)
        if cluster.type is api.cluster.ClusterDiscoveryType.STRICT_DNS:
            cluster.dns_lookup_family = api.cluster.ClusterDnsLookupFamily.V4_PREFERRED
        assignment = load_assignment(settings.endpoints, forwards=settings.forwards.values())
        cluster.load_assignment = api.endpoint.ClusterLoadAssignment.from_dict(assignment)
    if settings.health_check_path:
        check = api.core.HealthCheckHttpHealthCheck(path=settings.health_check_path)
        cluster.health_checks = [health_check(CONNECT_TIMEOUT_S, http_health_check=check)]
    cluster.transport_socket_matches = _transport_sockets(settings)
    if settings.eds_path:
        cluster.transport_socket = trusts_nobody()
    cluster.load_balancing_policy = override_host(
        api.metadata_key(DESTINATION_NAMESPACE, DESTINATION_KEY),
        api.metadata_key(DESTINATION_NAMESPACE, SERVED_KEY)
        if settings.envoy_version >= _SERVED_SINCE
        else None,
    )


#: First version that leaves who served in metadata; before it only the access log tells.
_SERVED_SINCE = (1, 38)


def override_host(
    source: api.metadata.MetadataKey, served: api.metadata.MetadataKey | None
) -> api.cluster.LoadBalancingPolicy:
    """The hosts named in metadata in their order, then least-request, but for bound requests none.

    Who served is left in metadata.
    """
    anyone = _policy(
        "envoy.load_balancing_policies.least_request",
        # A full scan is exact, and pools are small beside the cost of one prompt.
        api.least_request.LeastRequest(
            selection_method=api.least_request.LeastRequestSelectionMethod.FULL_SCAN,
        ),
    )
    bound = api.subset.SubsetLbSubsetSelector(
        keys=[BOUND_KEY],
        fallback_policy=api.subset.SubsetLbSubsetSelectorLbSubsetSelectorFallbackPolicy.NO_FALLBACK,
    )
    fallback = _policy(
        "envoy.load_balancing_policies.subset",
        api.subset.Subset(
            fallback_policy=api.subset.SubsetLbSubsetFallbackPolicy.ANY_ENDPOINT,
            subset_selectors=[bound],
            allow_redundant_keys=True,  # the namespace has the destination, too
            subset_lb_policy=anyone,
        ),
    )
    return _policy(
        "envoy.load_balancing_policies.override_host",
        api.override_host.OverrideHost(
            override_host_sources=[api.override_host.OverrideHostOverrideHostSource(metadata=source)],
            selected_host_key=served,
            fallback_policy=fallback,
        ),
    )


def _policy(
    name: str, message: api.override_host.OverrideHost | api.least_request.LeastRequest | api.subset.Subset
) -> api.cluster.LoadBalancingPolicy:
    return api.cluster.LoadBalancingPolicy(
        policies=[api.cluster.LoadBalancingPolicyPolicy(typed_extension_config=api.extension(name, message))]
    )


def health_check(
    timeout_s: float, interval_s: float = _HEALTH_CHECK_S, failures: int = 2, **how: betterproto2.Message
) -> api.core.HealthCheck:
    """Ask a host now and then whether it is there; so many failures take it out, one answer is enough.

    ``how`` is the kind of check, named as Envoy names it.
    """
    return api.core.HealthCheck(
        timeout=api.seconds(timeout_s),
        interval=api.seconds(interval_s),
        no_traffic_interval=api.seconds(interval_s),
        unhealthy_threshold=failures,
        healthy_threshold=1,
        **how,  # type: ignore[arg-type]  # one of its kinds
    )


def _original_dst(cluster: api.cluster.Cluster, settings: EnvoySettings) -> None:
    """Any address that the picker named. Which ones it may name is the route's business."""
    for endpoint in settings.endpoints:
        host, _ = split(endpoint.address)
        if not is_ip(host):
            raise ConfigError(
                "endpoints", endpoint.address, "original-dst cannot reach a host name", "write its address"
            )
    if settings.eds_path:
        raise ConfigError("envoy", "eds_path", "original-dst reads no endpoints", "remove it")
    cluster.type = api.cluster.ClusterDiscoveryType.ORIGINAL_DST
    cluster.lb_policy = api.cluster.ClusterLbPolicy.CLUSTER_PROVIDED
    cluster.original_dst_lb_config = api.cluster.ClusterOriginalDstLbConfig(
        metadata_key=api.metadata_key(DESTINATION_NAMESPACE, DESTINATION_KEY)
    )
    # Hosts are made at the first request to them and forgotten when unused for this long.
    cluster.cleanup_interval = api.seconds(60)
    sockets = {(e.tls, peer_name(e) if e.tls else "") for e in settings.endpoints}
    if len(sockets) > 1:
        problem = "original-dst has one TLS setting for all endpoints"
        fix = "give all of them the same server_name, or none of them TLS"
        raise ConfigError("endpoints", "tls", problem, fix)
    for tls, name in sockets:
        if tls:
            cluster.transport_socket = upstream_tls(_endpoint_tls(settings), name)


def _transport_sockets(settings: EnvoySettings) -> list[api.cluster.ClusterTransportSocketMatch]:
    """One entry for each way of speaking TLS in the pool, and plaintext for all that names none.

    With an EDS file plaintext is for endpoints that name it.
    """
    sockets = []
    for name in settings.socket_names:
        peer = name.removeprefix("ip:") if name != "name" else ""
        sockets.append((f"tls-{name}", name, upstream_tls(_endpoint_tls(settings), peer)))
    if sockets or settings.eds_path:
        plain = api.core.TransportSocket(
            name="envoy.transport_sockets.raw_buffer", typed_config=api.pack(api.raw_buffer.RawBuffer())
        )
        sockets.append(("plaintext", PLAINTEXT if settings.eds_path else "", plain))
    return [
        api.cluster.ClusterTransportSocketMatch(
            name=name,
            match=api.protobuf.Struct(
                fields={TLS_MATCH: api.protobuf.Value(string_value=wanted)} if wanted else {}
            ),
            transport_socket=socket,
        )
        for name, wanted, socket in sockets
    ]


def _endpoint_tls(settings: EnvoySettings) -> TlsFiles:
    return TlsFiles(settings.upstream_ca_file, insecure=settings.upstream_insecure)


def picker(settings: EnvoySettings) -> api.cluster.Cluster:
    """The picker's gRPC listener: few connections, many long streams, pings that notice a frozen process."""
    duplex, others = settings.variant is Variant.FULL_DUPLEX, settings.fallback_pickers
    # Elsewhere the message timeout finds a frozen picker, but for requests to which it has granted more time.
    ping = api.seconds(settings.picker_keepalive_s if duplex else settings.stall_limit_s / 2)
    http2 = api.core.Http2ProtocolOptions(
        # A stream lasts as long as its response. More of them open further connections.
        max_concurrent_streams=1000,
        connection_keepalive=api.core.KeepaliveSettings(interval=ping, timeout=ping),
    )
    host, port = settings.picker_host, settings.picker_port
    assignment = api.single_host(PICKER, api.socket_address(host, port))
    cluster = api.cluster.Cluster(
        name=PICKER,
        type=api.discovery([host, *(other for other, _ in others)]),
        dns_lookup_family=api.cluster.ClusterDnsLookupFamily.V4_PREFERRED,
        connect_timeout=api.ms(settings.message_timeout_ms),
        typed_extension_protocol_options=protocol(
            api.upstream_http.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
        ),
        circuit_breakers=limits(settings.queue_requests),
        upstream_connection_options=api.cluster.UpstreamConnectionOptions(tcp_keepalive=tcp_keepalive()),
        load_assignment=assignment,
    )
    if others:
        addresses = [api.socket_address(*other) for other in others]
        assignment.endpoints.append(api.hosts(*addresses, priority=1))
        assignment.policy = api.endpoint.ClusterLoadAssignmentPolicy(overprovisioning_factor=_ANY_HOST)
    if duplex or others:
        interval_s, check = settings.picker_keepalive_s, api.core.HealthCheckGrpcHealthCheck()
        cluster.health_checks = [health_check(interval_s, interval_s, 1, grpc_health_check=check)]
    if duplex:
        _leave_when_unhealthy(cluster)
    if settings.picker_tls:
        name = settings.picker_tls.server_name or host
        cluster.transport_socket = upstream_tls(settings.picker_tls, name, alpn="h2")
    return cluster


def _leave_when_unhealthy(cluster: api.cluster.Cluster) -> None:
    """Full duplex: stop asking a picker that fails its health check, and cut what hangs on it.

    There ext_proc knows no message timeout, and once a byte of body is on its way to the picker it cannot go
    on without it. With no healthy host the stream fails before that, which lets the request through.
    """
    cluster.common_lb_config = api.cluster.ClusterCommonLbConfig(
        healthy_panic_threshold=api.envoy_type.Percent(value=0)
    )
    cluster.close_connections_on_host_health_failure = True
