"""The global tier's side of the relays: one cluster of them all, few long-lived encrypted connections.

Owns how the picker's path becomes a relay. The picker names its endpoint in a header, which clients cannot
set, and the relays of that endpoint's region in metadata; Envoy takes these in their order, and without a
decision any relay, by load and by how many endpoints it has. What the relay says it was served by goes into
metadata for the access log, and no further.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from epp.config.eds import REPLICAS, split
from epp.config.relays import (
    READY_PATH,
    RELAY_NAME,
    RELAY_NAMESPACE,
    RELAY_SERVED_KEY,
    RELAYS_KEY,
    UNSERVED_HEADER,
)
from epp.envoy import messages as api
from epp.envoy.clusters import (
    CONNECT_TIMEOUT_S,
    SERVED_KEY,
    health_check,
    limits,
    outlier_detection,
    override_host,
    protocol,
    tcp_keepalive,
)
from epp.envoy.compression import compressors
from epp.envoy.filters import DECISION_NAMESPACE
from epp.envoy.long_links import CONNECTION_BUFFER_BYTES, PING_TIMEOUT_S, http2
from epp.envoy.settings import TlsFiles
from epp.envoy.sockets import upstream_tls
from epp.errors import ConfigError

if TYPE_CHECKING:
    from epp.config.relays import Relays
    from epp.envoy.settings import EnvoySettings

SERVED_HEADER = SERVED_KEY
"""Response header of a relay: the endpoint that served."""


def relay_cluster(settings: EnvoySettings, relays: Relays) -> api.cluster.Cluster:
    """All relays, each with an address for every connection to it.

    Raises:
        ConfigError: an endpoint whose region has no relay.
    """
    _check_regions(settings, relays)
    # Says when a region is back; that it is gone, its connections' pings find as well.
    check = health_check(PING_TIMEOUT_S, http_health_check=ready_check())
    cluster = warm_cluster(
        REPLICAS, assignment_of(settings, relays), relays, RELAY_NAME, http=http2(), check=check
    )
    cluster.circuit_breakers = limits(settings.queue_requests)
    # TCP and TLS together, so two round trips and perhaps a lost packet's repeat.
    cluster.connect_timeout = api.seconds(CONNECT_TIMEOUT_S)
    cluster.load_balancing_policy = override_host(
        api.metadata_key(DECISION_NAMESPACE, RELAYS_KEY), served=None
    )
    # By failed connections alone: errors are the engines', and one bad engine must not cost its region.
    cluster.outlier_detection = outlier_detection(settings, most_percent=100, answers=False)
    return cluster


def ready_check() -> api.core.HealthCheckHttpHealthCheck:
    """Ask the Envoy before a region whether it is there."""
    return api.core.HealthCheckHttpHealthCheck(
        path=READY_PATH, codec_client_type=api.envoy_type.CodecClientType.HTTP2
    )


def warm_cluster(
    name: str,
    assignment: api.endpoint.ClusterLoadAssignment,
    relays: Relays,
    peer: str,
    *,
    http: api.core.Http2ProtocolOptions,
    check: api.core.HealthCheck,
    sni: str = "",
) -> api.cluster.Cluster:
    """Few long-lived encrypted connections to Envoys before other regions.

    Args:
        name: of the cluster.
        assignment: its hosts.
        relays: addresses and the own certificate.
        peer: name that theirs have to be for.
        http: how connections are held.
        check: says who is there.
        sni: name that is asked for, where it is another one.
    """
    hosts = [split(address)[0] for region in relays.regions for address in relays.addresses(region)]
    files = TlsFiles(relays.ca_file, relays.cert_file, relays.key_file)
    return api.cluster.Cluster(
        name=name,
        type=api.discovery(hosts),
        dns_lookup_family=api.cluster.ClusterDnsLookupFamily.V4_PREFERRED,
        load_assignment=assignment,
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
        typed_extension_protocol_options=protocol(
            api.upstream_http.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http),
            # 0 is never: an idle connection costs a ping now and then, a new one several round trips.
            idle_timeout_s=0.0,
        ),
        circuit_breakers=limits(),
        health_checks=[check],
        upstream_connection_options=api.cluster.UpstreamConnectionOptions(tcp_keepalive=tcp_keepalive()),
        transport_socket=upstream_tls(files, peer, alpn="h2", sni=sni),
    )


def _check_regions(settings: EnvoySettings, relays: Relays) -> None:
    for endpoint in settings.endpoints:
        if endpoint.region not in relays.regions:
            region = endpoint.region or "without a region"
            problem = f"there is no relay for {region}"
            raise ConfigError("endpoints", endpoint.address, problem, "add it to relays.regions")


def assignment_of(settings: EnvoySettings, relays: Relays) -> api.endpoint.ClusterLoadAssignment:
    """All addresses of each region's Envoy, by region and by how many endpoints it has."""
    endpoints = Counter(endpoint.region for endpoint in settings.endpoints if not endpoint.draining)
    return api.endpoint.ClusterLoadAssignment(
        cluster_name=REPLICAS,
        endpoints=[
            api.endpoint.LocalityLbEndpoints(
                locality=api.core.Locality(region=region),
                lb_endpoints=[
                    api.endpoint.LbEndpoint(
                        endpoint=api.endpoint.Endpoint(address=api.socket_address(*split(address))),
                        load_balancing_weight=max(1, endpoints[region]),
                    )
                    for address in relays.addresses(region)
                ],
            )
            for region in relays.regions
        ],
    )


def relay_filters(settings: EnvoySettings) -> list[api.hcm.HttpFilter]:
    """The filters next to the router: compression, and who served."""
    if settings.relays is None:
        return []
    told = api.to_metadata(RELAY_NAMESPACE, {SERVED_HEADER: RELAY_SERVED_KEY, UNSERVED_HEADER: "unserved"})
    moves = api.header_to_metadata.Config(response_rules=told)
    return [
        *compressors(settings.relays.compression),
        api.http_filter("envoy.filters.http.header_to_metadata", moves),
    ]
