"""What gateways write into Envoy for a pool and its picker: the ext_proc filter, the route and both clusters.

Each function makes one gateway's; `listings.yaml` has the same as text. What a gateway writes besides and what has no
bearing on picks (tracing, statistics, its other filters) is left out. Endpoints and picker are those of the settings;
the picker is spoken to over TLS where they have `picker_tls`, which no gateway verifies.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from epp.config.eds import REPLICAS
from epp.envoy import messages as api
from epp.envoy.clusters import DESTINATION_KEY, DESTINATION_NAMESPACE, PICKER, SERVED_KEY
from epp.envoy.filters import EXT_PROC, router_filter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from envoy_data_plane.envoy.extensions.load_balancing_policies.round_robin import v3 as round_robin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import betterproto2

    from epp.envoy.settings import EnvoySettings

HINTS = "envoy.lb.subset_hint"
_SEND = api.ext_proc.ProcessingModeHeaderSendMode.SEND
_SKIP = api.ext_proc.ProcessingModeHeaderSendMode.SKIP
_BODIES = api.ext_proc.ProcessingModeBodySendMode
#: Windows of the gateways that are built on Envoy Gateway's constants, and of llm-d's chart.
_WINDOWS: dict[str, Any] = {"initial_stream_window_size": 65536, "initial_connection_window_size": 1048576}


@dataclass
class Shape:
    """One gateway's Envoy.

    Attributes:
        processor: the filter, on the listener.
        route: where requests go.
        pool, picker: the clusters.
        overrides: of the filter on the route, None for none.
        disabled: whether the filter is off but on routes that turn it on.
        stream_idle_s: limit on silent streams, None for Envoy's (5 minutes).
        buffer_bytes: limit of the client's connections, None for Envoy's (1 MiB).
        removed: request headers that the route removes.
    """

    processor: api.ext_proc.ExternalProcessor
    route: api.route.RouteAction
    pool: api.cluster.Cluster
    picker: api.cluster.Cluster
    overrides: api.ext_proc.ExtProcOverrides | None = None
    disabled: bool = False
    stream_idle_s: float | None = None
    buffer_bytes: int | None = None
    removed: list[str] = field(default_factory=list)
    more_clusters: list[api.cluster.Cluster] = field(default_factory=list)


def istio(settings: EnvoySettings, *, fails_open: bool = False) -> Shape:
    """Istio 1.31: a filter that does nothing but where a route overrides it; EDS and metadata.

    Args:
        settings: see the module.
        fails_open: the InferencePool's `failureMode`.
    """
    namespaces = api.ext_proc.MetadataOptionsMetadataNamespaces(untyped=[DESTINATION_NAMESPACE])
    return Shape(
        api.ext_proc.ExternalProcessor(
            grpc_service=_asked("dummy", timeout=api.seconds(10)),
            failure_mode_allow=True,
            processing_mode=api.ext_proc.ProcessingMode(
                request_header_mode=_SKIP, response_header_mode=_SKIP
            ),
            message_timeout=api.seconds(1000),
            metadata_options=api.ext_proc.MetadataOptions(
                forwarding_namespaces=namespaces, receiving_namespaces=namespaces
            ),
        ),
        _istio_route(),
        _istio_pool(settings),
        _eds(
            PICKER,
            picker_file(settings),
            connect_timeout=api.seconds(10),
            typed_extension_protocol_options=_http2(auto_sni=settings.picker_tls is not None),
            transport_socket=_unverified(settings, alpn=["h2"]),
        ),
        overrides=api.ext_proc.ExtProcOverrides(
            processing_mode=_modes(_BODIES.FULL_DUPLEX_STREAMED),
            grpc_service=_asked(PICKER),
            failure_mode_allow=fails_open,
        ),
        stream_idle_s=0,
        more_clusters=[_static("dummy", [])],
    )


def _istio_route() -> api.route.RouteAction:
    predicate = api.route.RetryPolicyRetryHostPredicate(
        name="envoy.retry_host_predicates.previous_hosts",
        typed_config=api.pack(api.previous_hosts.PreviousHostsPredicate()),
    )
    retries = api.route.RetryPolicy(
        num_retries=2,
        retry_on="connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
        host_selection_retry_max_attempts=5,
        retry_host_predicate=[predicate],
    )
    return api.route.RouteAction(cluster=REPLICAS, timeout=api.seconds(0), retry_policy=retries)


def _istio_pool(settings: EnvoySettings) -> api.cluster.Cluster:
    source = api.metadata_key(DESTINATION_NAMESPACE, DESTINATION_KEY)
    policy = _override_host(
        api.override_host.OverrideHostOverrideHostSource(metadata=source),
        _policy("round_robin", round_robin.RoundRobin()),
    )
    policy.selected_host_key = api.metadata_key(DESTINATION_NAMESPACE, SERVED_KEY)
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return _eds(
        REPLICAS,
        settings.eds_path,
        connect_timeout=api.seconds(10),
        lb_policy=api.cluster.ClusterLbPolicy.CLUSTER_PROVIDED,
        load_balancing_policy=_policy("override_host", policy),
        circuit_breakers=_breakers(**dict.fromkeys(limits, 4294967295)),
        typed_extension_protocol_options=_protocol(http_protocol_options=api.core.Http1ProtocolOptions()),
    )


def ai_gateway(settings: EnvoySettings, *, buffered: bool = False) -> Shape:
    """Envoy AI Gateway 1.1: ORIGINAL_DST by the header, never open.

    Args:
        settings: see the module.
        buffered: the annotation `processing-body-mode` of the InferencePool.
    """
    return Shape(
        api.ext_proc.ExternalProcessor(
            grpc_service=_asked(PICKER, authority="picker.llm.svc:9002"),
            processing_mode=_modes(_BODIES.BUFFERED if buffered else _BODIES.FULL_DUPLEX_STREAMED),
            message_timeout=api.seconds(300),
        ),
        api.route.RouteAction(cluster=REPLICAS, timeout=api.seconds(60), auto_host_rewrite=False),
        _original_dst(
            connect_timeout=api.seconds(10),
            per_connection_buffer_limit_bytes=32768,
            typed_extension_protocol_options=_protocol(http_protocol_options=api.core.Http1ProtocolOptions()),
        ),
        _static(
            PICKER,
            [(settings.picker_host, settings.picker_port)],
            type=api.cluster.ClusterDiscoveryType.STRICT_DNS,
            lb_policy=api.cluster.ClusterLbPolicy.LEAST_REQUEST,
            connect_timeout=api.seconds(10),
            typed_extension_protocol_options=_http2(),
            transport_socket=_unverified(settings),
        ),
        disabled=True,
        stream_idle_s=3600,
        buffer_bytes=32768,
    )


def llm_d(settings: EnvoySettings, *, service: bool = False) -> Shape:
    """llm-d's standalone chart: ORIGINAL_DST by the header, an active health check of the picker.

    Args:
        settings: see the module.
        service: the picker's Envoy is a Deployment of its own and fails open; else it is a sidecar and fails closed.
    """
    most = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 40000)
    discovery = api.cluster.ClusterDiscoveryType
    return Shape(
        api.ext_proc.ExternalProcessor(
            grpc_service=_asked(PICKER, authority="localhost:9002", timeout=api.seconds(10)),
            failure_mode_allow=service,
            processing_mode=_modes(_BODIES.FULL_DUPLEX_STREAMED),
            message_timeout=api.seconds(1000),
        ),
        api.route.RouteAction(cluster=REPLICAS, timeout=api.seconds(86400), idle_timeout=api.seconds(86400)),
        _original_dst(connect_timeout=api.seconds(1000), circuit_breakers=_breakers(**most)),
        _static(
            PICKER,
            [(settings.picker_host, settings.picker_port)],
            type=discovery.STRICT_DNS if service else discovery.STATIC,
            connect_timeout=api.seconds(86400),
            circuit_breakers=_breakers(**most, max_retries=1024),
            health_checks=[
                api.core.HealthCheck(
                    timeout=api.seconds(2),
                    interval=api.seconds(10),
                    unhealthy_threshold=3,
                    healthy_threshold=2,
                    grpc_health_check=api.core.HealthCheckGrpcHealthCheck(
                        service_name="envoy.service.ext_proc.v3.ExternalProcessor"
                    ),
                    tls_options=api.core.HealthCheckTlsOptions(alpn_protocols=["h2"]),
                )
            ],
            typed_extension_protocol_options=_http2(**_WINDOWS),
            transport_socket=_unverified(settings),
        ),
        stream_idle_s=86400,
        buffer_bytes=32768,
    )


def envoy_gateway(settings: EnvoySettings, *, buffered: bool = False) -> Shape:
    """Envoy Gateway 1.9: an EnvoyExtensionPolicy with ExtProc, `endpointOverride` by the header; EDS.

    Args:
        settings: see the module.
        buffered: the body mode is `Buffered` for requests, and the policy fails open; with `FullDuplexStreamed`
            that is forbidden.
    """
    namespaces = api.ext_proc.MetadataOptionsMetadataNamespaces
    processor = api.ext_proc.ExternalProcessor(
        grpc_service=_asked(PICKER, authority="picker.llm:9002", timeout=api.seconds(10)),
        failure_mode_allow=buffered,
        processing_mode=_modes(_BODIES.FULL_DUPLEX_STREAMED),
        metadata_options=api.ext_proc.MetadataOptions(
            forwarding_namespaces=namespaces(untyped=[HINTS]),
            receiving_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE]),
        ),
    )
    if buffered:
        processor.processing_mode = api.ext_proc.ProcessingMode(
            request_header_mode=_SEND,
            request_body_mode=_BODIES.BUFFERED,
            request_trailer_mode=_SKIP,
            response_header_mode=_SKIP,
            response_trailer_mode=_SKIP,
        )
    policy = _override_host(
        api.override_host.OverrideHostOverrideHostSource(header=DESTINATION_KEY),
        _policy("least_request", api.least_request.LeastRequest()),
    )
    common: dict[str, Any] = {
        "ignore_health_on_host_removal": True,
        "connect_timeout": api.seconds(10),
        "dns_lookup_family": api.cluster.ClusterDnsLookupFamily.ALL,
        "per_connection_buffer_limit_bytes": 32768,
        "circuit_breakers": _breakers(max_retries=1024),
        "common_lb_config": api.cluster.ClusterCommonLbConfig(),
    }
    return Shape(
        processor,
        api.route.RouteAction(cluster=REPLICAS),
        _eds(REPLICAS, settings.eds_path, load_balancing_policy=_policy("override_host", policy), **common),
        _eds(
            PICKER,
            picker_file(settings),
            load_balancing_policy=_policy("least_request", api.least_request.LeastRequest()),
            typed_extension_protocol_options=_http2(**_WINDOWS),
            transport_socket=_unverified(settings),
            **common,
        ),
        disabled=True,
        buffer_bytes=32768,
    )


def bootstrap(shape: Shape, settings: EnvoySettings, *, strips: bool = False) -> api.bootstrap.Bootstrap:
    """Make a whole Envoy of a gateway's part.

    Args:
        shape: that part.
        settings: ports.
        strips: remove clients' own destination headers before anything reads them, as the docs advise.
    """
    hint = api.header_to_metadata.ConfigRule(
        header="x-hint",
        on_header_present=api.header_to_metadata.ConfigKeyValuePair(
            metadata_namespace=HINTS, key=f"{DESTINATION_KEY}-subset"
        ),
        remove=True,
    )
    processor = api.http_filter(EXT_PROC, shape.processor)
    processor.disabled = shape.disabled
    manager = api.hcm.HttpConnectionManager(
        stat_prefix="requests",
        codec_type=api.hcm.HttpConnectionManagerCodecType.AUTO,
        use_remote_address=True,
        early_header_mutation_extensions=[without_destination()] if strips else [],
        http_filters=[
            api.http_filter(
                "envoy.filters.http.header_to_metadata", api.header_to_metadata.Config(request_rules=[hint])
            ),
            processor,
            router_filter(),
        ],
        route_config=api.route.RouteConfiguration(
            name="requests",
            virtual_hosts=[api.route.VirtualHost(name="all", domains=["*"], routes=[_route(shape)])],
        ),
    )
    if shape.stream_idle_s is not None:
        manager.stream_idle_timeout = api.seconds(shape.stream_idle_s)
    listener = api.listener.Listener(
        name="requests",
        address=api.socket_address(settings.listener_host, settings.listener_port),
        filter_chains=[api.filter_chain(manager)],
    )
    if shape.buffer_bytes is not None:
        listener.per_connection_buffer_limit_bytes = shape.buffer_bytes
    return api.bootstrap.Bootstrap(
        node=api.core.Node(id="gateway", cluster="gateway"),
        admin=api.bootstrap.Admin(address=api.socket_address("127.0.0.1", settings.admin_port)),
        static_resources=api.bootstrap.BootstrapStaticResources(
            listeners=[listener], clusters=[shape.pool, shape.picker, *shape.more_clusters]
        ),
    )


def renderer(shape_of: Callable[[EnvoySettings], Shape], **options: bool) -> Callable[[EnvoySettings], str]:
    """Make what takes the place of `epp.envoy.process.render`; ``options`` are of `bootstrap`."""

    def render(settings: EnvoySettings) -> str:
        if settings.eds_path:
            write_picker(settings)
        return yaml.safe_dump(tree(bootstrap(shape_of(settings), settings, **options)))

    return render


def picker_file(settings: EnvoySettings) -> str:
    """The EDS file with the picker, beside that of the endpoints."""
    return str(Path(settings.eds_path).with_name("picker.json"))


def write_picker(settings: EnvoySettings, *, there: bool = True) -> None:
    """Write the picker's EDS file, with nobody in it unless it is ``there``."""
    hosts = [(settings.picker_host, settings.picker_port)] if there else []
    resource = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        **tree(_assignment(PICKER, hosts)),
    }
    path = Path(picker_file(settings))
    path.with_suffix(".new").write_text(json.dumps({"version_info": str(there), "resources": [resource]}))
    path.with_suffix(".new").replace(path)


def tree(message: betterproto2.Message) -> dict[str, Any]:
    """A message as Envoy reads it."""
    # Field names stay as the API spells them.
    as_they_are: Any = str
    made: dict[str, Any] = message.to_dict(casing=as_they_are)
    return made


def without_destination() -> api.core.TypedExtensionConfig:
    """As Envoy Gateway writes `headers.earlyRequestHeaders.remove` of a ClientTrafficPolicy."""
    mutation = api.mutation_rules.HeaderMutation(remove=DESTINATION_KEY)
    return api.extension(
        "envoy.http.early_header_mutation.header_mutation",
        api.early_mutation.HeaderMutation(mutations=[mutation]),
    )


def _route(shape: Shape) -> api.route.Route:
    per_route: betterproto2.Message | None = None
    if shape.overrides:
        per_route = api.ext_proc.ExtProcPerRoute(overrides=shape.overrides)
    elif shape.disabled:
        # Envoy Gateway turns a filter on with an empty `Any`, which no text can hold.
        nothing = api.ext_proc.ExtProcPerRoute(overrides=api.ext_proc.ExtProcOverrides())
        per_route = api.route.FilterConfig(config=api.pack(nothing))
    return api.route.Route(
        match=api.route.RouteMatch(prefix="/"),
        route=shape.route,
        request_headers_to_remove=shape.removed,
        typed_per_filter_config={EXT_PROC: api.pack(per_route)} if per_route else {},
    )


def _modes(body: api.ext_proc.ProcessingModeBodySendMode) -> api.ext_proc.ProcessingMode:
    """Everything is sent."""
    return api.ext_proc.ProcessingMode(
        request_header_mode=_SEND,
        request_body_mode=body,
        request_trailer_mode=_SEND,
        response_header_mode=_SEND,
        response_body_mode=body,
        response_trailer_mode=_SEND,
    )


def _asked(cluster: str, *, authority: str = "", **fields: Any) -> api.core.GrpcService:
    return api.core.GrpcService(
        envoy_grpc=api.core.GrpcServiceEnvoyGrpc(cluster_name=cluster, authority=authority), **fields
    )


def _http2(*, auto_sni: bool = False, **windows: Any) -> dict[str, api.protobuf.Any]:
    return _protocol(auto_sni=auto_sni, http2_protocol_options=api.core.Http2ProtocolOptions(**windows))


def _protocol(*, auto_sni: bool = False, **http: Any) -> dict[str, api.protobuf.Any]:
    options = api.upstream_http.HttpProtocolOptions(
        explicit_http_config=api.upstream_http.HttpProtocolOptionsExplicitHttpConfig(**http),
        upstream_http_protocol_options=api.core.UpstreamHttpProtocolOptions(auto_sni=True)
        if auto_sni
        else None,
    )
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": api.pack(options)}


def _breakers(**limits: Any) -> api.cluster.CircuitBreakers:
    return api.cluster.CircuitBreakers(thresholds=[api.cluster.CircuitBreakersThresholds(**limits)])


def _policy(name: str, message: betterproto2.Message) -> api.cluster.LoadBalancingPolicy:
    extension = api.extension(f"envoy.load_balancing_policies.{name}", message)
    return api.cluster.LoadBalancingPolicy(
        policies=[api.cluster.LoadBalancingPolicyPolicy(typed_extension_config=extension)]
    )


def _override_host(
    source: api.override_host.OverrideHostOverrideHostSource, fallback: api.cluster.LoadBalancingPolicy
) -> api.override_host.OverrideHost:
    return api.override_host.OverrideHost(override_host_sources=[source], fallback_policy=fallback)


def _eds(name: str, path: str, **fields: Any) -> api.cluster.Cluster:
    source = api.core.ConfigSource(
        resource_api_version=api.core.ApiVersion.V3, path_config_source=api.core.PathConfigSource(path=path)
    )
    return api.cluster.Cluster(
        name=name,
        type=api.cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=api.cluster.ClusterEdsClusterConfig(eds_config=source, service_name=name),
        **fields,
    )


def _static(name: str, hosts: Iterable[tuple[str, int]], **fields: Any) -> api.cluster.Cluster:
    kind = fields.pop("type", api.cluster.ClusterDiscoveryType.STATIC)
    return api.cluster.Cluster(name=name, type=kind, load_assignment=_assignment(name, hosts), **fields)


def _assignment(name: str, hosts: Iterable[tuple[str, int]]) -> api.endpoint.ClusterLoadAssignment:
    ends = [
        api.endpoint.LbEndpoint(endpoint=api.endpoint.Endpoint(address=api.socket_address(*host)))
        for host in hosts
    ]
    return api.endpoint.ClusterLoadAssignment(
        cluster_name=name, endpoints=[api.endpoint.LocalityLbEndpoints(lb_endpoints=ends)]
    )


def _original_dst(**fields: Any) -> api.cluster.Cluster:
    return api.cluster.Cluster(
        name=REPLICAS,
        type=api.cluster.ClusterDiscoveryType.ORIGINAL_DST,
        lb_policy=api.cluster.ClusterLbPolicy.CLUSTER_PROVIDED,
        original_dst_lb_config=api.cluster.ClusterOriginalDstLbConfig(
            use_http_header=True, http_header_name=DESTINATION_KEY
        ),
        **fields,
    )


def _unverified(settings: EnvoySettings, *, alpn: Iterable[str] = ()) -> api.core.TransportSocket | None:
    if settings.picker_tls is None:
        return None
    common = api.tls.CommonTlsContext(
        alpn_protocols=list(alpn), validation_context=api.tls.CertificateValidationContext()
    )
    return api.tls_socket(api.tls.UpstreamTlsContext(common_tls_context=common))
