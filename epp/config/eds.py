"""The pool as Envoy's hosts: inline in a cluster, or as the EDS file that Envoy follows.

Rules: an endpoint's name for the picker and the address that Envoy knows must be the same string, or
`override_host` does not find it. For addresses they are: IPv6 is compressed the way Envoy prints it. A host
name becomes an address before Envoy knows it, inline by Envoy and in the EDS file by the picker; a decision
has to name that address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.address import is_ip, join_address, spell_ipv6, split_address
from epp.errors import ConfigError
from epp.types import Endpoint, split_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REPLICAS = "replicas"
"""Name of the cluster of endpoints."""

TLS_MATCH = "tls"
"""Key under `envoy.transport_socket_match` whose value names an endpoint's transport socket."""

PLAINTEXT = "plaintext"
"""Transport socket of EDS endpoints without TLS; named, so that no other endpoint is sent plaintext."""

PLACE = "epp.place"
"""Namespace of metadata: what stands before a host's paths, and who it is asked for."""

_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


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
    return endpoint.server_name or split(split_rank(endpoint.address)[0])[0]


def socket_name(endpoint: Endpoint) -> str:
    """Which transport socket an endpoint uses: ``""`` plaintext, ``"name"``, or ``"ip:..."`` one per address.

    All endpoints verified by host name share a socket that takes the name from the endpoint; a certificate
    for an IP address has to be named in the socket itself.
    """
    if not endpoint.tls:
        return ""
    name = peer_name(endpoint)
    return f"ip:{name}" if is_ip(name) else "name"


def load_assignment(
    endpoints: Iterable[Endpoint], plaintext: str = "", forwards: Collection[str] = ()
) -> dict[str, Any]:
    """The pool as Envoy's `ClusterLoadAssignment`; draining endpoints take no new requests.

    Args:
        endpoints: the pool.
        plaintext: transport socket of endpoints without TLS, the cluster's own when empty.
        forwards: addresses of the ways to peer regions, which decisions alone find: Envoy's own choice takes
            neither draining hosts nor those of a lower priority.
    """
    groups: list[dict[str, Any]] = [
        {"lb_endpoints": [lb_endpoint(each, plaintext) for each in endpoints if each.address not in forwards]}
    ]
    if forwards:
        hosts = [lb_endpoint(Endpoint(address, draining=True), plaintext) for address in forwards]
        for host in hosts:
            host["endpoint"]["health_check_config"] = {"disable_active_health_check": True}
        groups.append({"priority": 1, "lb_endpoints": hosts})
    return {"cluster_name": REPLICAS, "endpoints": groups}


def lb_endpoint(endpoint: Endpoint, plaintext: str) -> dict[str, Any]:
    """One endpoint as Envoy's `LbEndpoint`; see `load_assignment`."""
    host, port = split(endpoint.address)
    address = {"socket_address": {"address": host, "port_value": port}}
    found: dict[str, Any] = {"endpoint": {"address": address, "hostname": peer_name(endpoint)}}
    if endpoint.draining:
        found["health_status"] = "DRAINING"
    name = peer_name(endpoint)
    # A front that matches the host exactly knows it without its scheme's own port, as clients send it.
    named = name if port == (443 if endpoint.tls else 80) and ":" not in name else join_address(name, port)
    place = {"path": endpoint.base_path, "host": named}
    metadata = {PLACE: place} if endpoint.base_path else {}
    if socket := socket_name(endpoint) or plaintext:
        metadata["envoy.transport_socket_match"] = {TLS_MATCH: socket}
    if metadata:
        found["metadata"] = {"filter_metadata": metadata}
    return found


def eds_content(endpoints: Iterable[Endpoint], forwards: Collection[str] = ()) -> bytes:
    """The EDS file of these endpoints and of the way to peer regions, JSON.

    Raises:
        ConfigError: a host name: EDS takes addresses only.
    """
    pool = list(endpoints)
    for endpoint in pool:
        if not is_ip(split(endpoint.address)[0]):
            raise ConfigError(
                "endpoints", endpoint.address, "a host name cannot be in an EDS file", "write its address"
            )
    return eds_file(load_assignment(pool, PLAINTEXT, forwards))


def eds_file(assignment: dict[str, Any]) -> bytes:
    """The EDS file of an assignment, JSON."""
    resource = {"@type": _ASSIGNMENT, **assignment}
    return msgspec.json.format(msgspec.json.encode({"resources": [resource]})) + b"\n"
