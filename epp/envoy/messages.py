"""The Envoy API's packages under short names, and the messages that several builders here make.

Owns the import of `envoy_data_plane`. Importing its modules makes pydantic warn about the way they were
generated; those warnings are about generated code that we neither own nor can change, so they are silenced
during the import and only then.

All builders of this folder import the API from here. Without the extra ``envoy`` the import succeeds and the
first use raises: commands that may render nothing, and every ``--help``, work all the same.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from epp.config.address import is_ip
from epp.errors import EppError

with warnings.catch_warnings(), suppress(ModuleNotFoundError):
    warnings.simplefilter("ignore")
    from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
    from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap
    from envoy_data_plane.envoy.config.cluster import v3 as cluster
    from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_rules
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
    from envoy_data_plane.envoy.config.listener import v3 as listener
    from envoy_data_plane.envoy.config.overload import v3 as overload
    from envoy_data_plane.envoy.config.route import v3 as route
    from envoy_data_plane.envoy.extensions.access_loggers.grpc import v3 as grpc_log
    from envoy_data_plane.envoy.extensions.access_loggers.stream import v3 as stream_log
    from envoy_data_plane.envoy.extensions.compression.gzip.compressor import v3 as gzip
    from envoy_data_plane.envoy.extensions.compression.gzip.decompressor import v3 as gunzip
    from envoy_data_plane.envoy.extensions.filters.http.compressor import v3 as compressor
    from envoy_data_plane.envoy.extensions.filters.http.decompressor import v3 as decompressor
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
    from envoy_data_plane.envoy.extensions.filters.http.header_mutation import v3 as header_mutation
    from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata import v3 as header_to_metadata
    from envoy_data_plane.envoy.extensions.filters.http.lua import v3 as lua
    from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
    from envoy_data_plane.envoy.extensions.filters.http.upstream_codec import v3 as upstream_codec
    from envoy_data_plane.envoy.extensions.filters.listener.tls_inspector import v3 as tls_inspector
    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
    from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation import (
        v3 as early_mutation,
    )
    from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request import v3 as least_request
    from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override_host
    from envoy_data_plane.envoy.extensions.load_balancing_policies.subset import v3 as subset
    from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections import (
        v3 as downstream_connections,
    )
    from envoy_data_plane.envoy.extensions.resource_monitors.fixed_heap import v3 as fixed_heap
    from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as previous_hosts
    from envoy_data_plane.envoy.extensions.retry.priority.previous_priorities import v3 as previous_priorities
    from envoy_data_plane.envoy.extensions.transport_sockets.raw_buffer import v3 as raw_buffer
    from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
    from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstream_http
    from envoy_data_plane.envoy.type import v3 as envoy_type
    from envoy_data_plane.envoy.type.matcher import v3 as matcher
    from envoy_data_plane.envoy.type.metadata import v3 as metadata
    from envoy_data_plane.envoy.type.tracing import v3 as tracing
    from envoy_data_plane.google import protobuf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import betterproto2

__all__ = [
    "accesslog",
    "bootstrap",
    "cluster",
    "compressor",
    "core",
    "decompressor",
    "discovery",
    "downstream_connections",
    "early_mutation",
    "endpoint",
    "envoy_type",
    "ext_proc",
    "extension",
    "filter_chain",
    "fixed_heap",
    "grpc_log",
    "gunzip",
    "gzip",
    "hcm",
    "header_mutation",
    "header_to_metadata",
    "hosts",
    "http_filter",
    "least_request",
    "listener",
    "lua",
    "lua_filter",
    "matcher",
    "metadata",
    "metadata_key",
    "ms",
    "mutation_rules",
    "overload",
    "override_host",
    "pack",
    "previous_hosts",
    "previous_priorities",
    "protobuf",
    "raw_buffer",
    "request_mutations",
    "route",
    "router",
    "seconds",
    "set_header",
    "single_host",
    "socket_address",
    "stream_log",
    "subset",
    "tls",
    "tls_inspector",
    "tls_socket",
    "tracing",
    "upstream_codec",
    "upstream_http",
]

if not TYPE_CHECKING:  # a misspelt name stays an error of types

    def __getattr__(name: str) -> NoReturn:
        """Raise for whatever the import above has not brought.

        Raises:
            AttributeError: one of Python's own names, which is looked for without being needed.
            EppError: the extra is not installed.
        """
        if name not in __all__:
            raise AttributeError(name)
        raise EppError("Envoy's API (envoy-data-plane) is not installed: pip install 'gorgo-epp[envoy]'")


def pack(message: betterproto2.Message) -> protobuf.Any:
    """A message as the ``Any`` that extension points take."""
    return protobuf.Any.pack(message)


def extension(name: str, message: betterproto2.Message) -> core.TypedExtensionConfig:
    """A named extension with its configuration."""
    return core.TypedExtensionConfig(name=name, typed_config=pack(message))


HANDSHAKE_S = 10.0
"""Whoever has not shown its certificate by then, on a listener that asks for one, is cut off."""


def seconds(value: float) -> timedelta:
    """Seconds as the API's duration, to the millisecond."""
    return timedelta(milliseconds=round(value * 1000))


def ms(value: float) -> timedelta:
    """Milliseconds as the API's duration."""
    return timedelta(milliseconds=round(value))


def socket_address(host: str, port: int) -> core.Address:
    """A TCP address; IPv6 hosts without brackets, as Envoy wants them."""
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))


def http_filter(name: str, message: betterproto2.Message) -> hcm.HttpFilter:
    """Name an HTTP filter with its configuration."""
    return hcm.HttpFilter(name=name, typed_config=pack(message))


def to_metadata(namespace: str, keys: Mapping[str, str]) -> list[header_to_metadata.ConfigRule]:
    """Make rules that move headers, by name, into fields of metadata."""
    return [
        header_to_metadata.ConfigRule(
            header=header,
            on_header_present=header_to_metadata.ConfigKeyValuePair(metadata_namespace=namespace, key=key),
            remove=True,
        )
        for header, key in keys.items()
    ]


def request_mutations(changes: list[mutation_rules.HeaderMutation]) -> hcm.HttpFilter:
    """Make a filter that changes request headers."""
    mutations = header_mutation.Mutations(request_mutations=changes)
    return http_filter(
        "envoy.filters.http.header_mutation", header_mutation.HeaderMutation(mutations=mutations)
    )


def lua_filter(name: str, source: str, stat_prefix: str) -> hcm.HttpFilter:
    """Make a filter that runs a script."""
    code = core.DataSource(inline_string=source)
    return http_filter(name, lua.Lua(default_source_code=code, stat_prefix=stat_prefix))


def filter_chain(
    manager: hcm.HttpConnectionManager, transport_socket: core.TransportSocket | None = None
) -> listener.FilterChain:
    """Make a listener's chain, which is one connection manager; who does not end its handshake is cut off."""
    name = "envoy.filters.network.http_connection_manager"
    return listener.FilterChain(
        filters=[listener.Filter(name=name, typed_config=pack(manager))],
        transport_socket=transport_socket,
        transport_socket_connect_timeout=seconds(HANDSHAKE_S) if transport_socket else None,
    )


def set_header(name: str, value: str) -> core.HeaderValueOption:
    """Set a response header, whatever it was."""
    return core.HeaderValueOption(
        header=core.HeaderValue(key=name, value=value),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def metadata_key(namespace: str, key: str) -> metadata.MetadataKey:
    """Name a field of dynamic metadata."""
    return metadata.MetadataKey(key=namespace, path=[metadata.MetadataKeyPathSegment(key=key)])


def discovery(hosts: Iterable[str]) -> cluster.ClusterDiscoveryType:
    """Say whether Envoy has to resolve a host's name."""
    static = all(map(is_ip, hosts))
    return cluster.ClusterDiscoveryType.STATIC if static else cluster.ClusterDiscoveryType.STRICT_DNS


def single_host(name: str, address: core.Address) -> endpoint.ClusterLoadAssignment:
    """Make the assignment of a cluster with one host."""
    return endpoint.ClusterLoadAssignment(cluster_name=name, endpoints=[hosts(address)])


def hosts(*addresses: core.Address, priority: int = 0) -> endpoint.LocalityLbEndpoints:
    """Make a group of hosts; those of a higher number take over where none of the lower ones is fit."""
    ends = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address)) for address in addresses]
    return endpoint.LocalityLbEndpoints(priority=priority, lb_endpoints=ends)


def tls_socket(context: tls.UpstreamTlsContext | tls.DownstreamTlsContext) -> core.TransportSocket:
    """Make the transport socket of a connection over TLS."""
    return core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=pack(context))
