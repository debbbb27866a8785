"""``host:port`` names to Envoy's endpoint messages, inline or as the file that Envoy watches (EDS).

Rules: an endpoint's name for the picker and the address that Envoy knows must be the same string, or
`override_host` does not find it. For addresses they are: IPv6 is compressed the way Envoy prints it. A host
name is resolved by Envoy, which then knows the resolved ``ip:port`` alone: for such an endpoint the picker
has to answer the resolved address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.address import is_ip, spell_ipv6, split_address
from epp.envoy import messages as api
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.signals.endpoint import Endpoint

REPLICAS = "replicas"
"""Name of the cluster of endpoints."""

TLS_MATCH = "tls"
"""Key under `envoy.transport_socket_match` whose value names an endpoint's transport socket."""


def split(address: str) -> tuple[str, int]:
    """``host:port`` to host (IPv6 without brackets, compressed) and port.

    Raises:
        ConfigError: not such an address.
    """
    try:
        host, port = split_address(address)
    except ValueError as error:
        fix = "e.g. 10.0.0.1:8000 or [fd00::1]:8000"
        raise ConfigError("endpoints", address, str(error), fix) from error
    return (spell_ipv6(host) if ":" in host else host), port


def known_as(address: str) -> str:
    """The spelling under which Envoy knows an address, which the picker's answer has to use."""
    host, port = split(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_name(endpoint: Endpoint) -> str:
    """The name that a TLS endpoint's certificate must carry."""
    return endpoint.server_name or split(endpoint.address)[0]


def socket_name(endpoint: Endpoint) -> str:
    """Which transport socket an endpoint uses: ``""`` plaintext, ``"name"``, or ``"ip:..."`` one per address.

    All endpoints verified by host name share a socket that takes the name from the endpoint; a certificate
    for an IP address has to be named in the socket itself.
    """
    if not endpoint.tls:
        return ""
    name = peer_name(endpoint)
    return f"ip:{name}" if is_ip(name) else "name"


def load_assignment(endpoints: Sequence[Endpoint]) -> api.endpoint.ClusterLoadAssignment:
    """The pool as Envoy's endpoint message; draining endpoints take no new requests from any policy."""
    return api.endpoint.ClusterLoadAssignment(
        cluster_name=REPLICAS,
        endpoints=[api.endpoint.LocalityLbEndpoints(lb_endpoints=[_lb_endpoint(e) for e in endpoints])],
    )


def _lb_endpoint(endpoint: Endpoint) -> api.endpoint.LbEndpoint:
    host, port = split(endpoint.address)
    metadata = None
    if socket := socket_name(endpoint):
        fields = {TLS_MATCH: api.protobuf.Value(string_value=socket)}
        metadata = api.core.Metadata(
            filter_metadata={"envoy.transport_socket_match": api.protobuf.Struct(fields=fields)}
        )
    return api.endpoint.LbEndpoint(
        endpoint=api.endpoint.Endpoint(
            address=api.socket_address(host, port),
            hostname=peer_name(endpoint),
        ),
        health_status=api.core.HealthStatus.DRAINING if endpoint.draining else api.core.HealthStatus.UNKNOWN,
        metadata=metadata,
    )


def discovery_response(endpoints: Sequence[Endpoint]) -> api.discovery.DiscoveryResponse:
    """The content of the EDS file.

    Raises:
        ConfigError: a host name: Envoy takes addresses only from EDS.
    """
    for endpoint in endpoints:
        host, _ = split(endpoint.address)
        if not is_ip(host):
            raise ConfigError(
                "endpoints", endpoint.address, "a host name cannot be in an EDS file", "write its address"
            )
    return api.discovery.DiscoveryResponse(resources=[api.pack(load_assignment(endpoints))])
