"""The regional tier: an Envoy that takes requests from the global one alone, for its region's engines.

Owns what a relay believes. The endpoint that the picker named comes in a header; a connection without the
global Envoy's certificate is refused before a request can come, so who speaks may choose. Endpoints of other
regions in the list are unknown here and passed over; when none of it can be reached the region's least busy
endpoint serves. Which one did is told in a response header, and so is that none could be reached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.eds import split
from epp.config.relays import GLOBAL_NAME, READY_PATH, UNSERVED_HEADER
from epp.config.retries import RELAYED
from epp.envoy import messages as api
from epp.envoy.access_log import access_logs
from epp.envoy.clusters import DESTINATION_KEY, DESTINATION_NAMESPACE, replicas
from epp.envoy.compression import decompressors
from epp.envoy.filters import router_filter
from epp.envoy.listener import open_routes
from epp.envoy.long_links import CONNECTION_BUFFER_BYTES, http2, long_lived
from epp.envoy.overload import overload_manager
from epp.envoy.relays import SERVED_HEADER
from epp.envoy.replies import local_replies, long_patterns
from epp.envoy.settings import EnvoySettings, TlsFiles
from epp.envoy.sockets import downstream_tls
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.config.relays import Relays


def relay_bootstrap(settings: EnvoySettings, region: str) -> api.bootstrap.Bootstrap:
    """The whole configuration of one region's relay.

    Args:
        settings: those of the global Envoy; the relay takes its region's endpoints of them.
        region: its region. It listens on `listener_host`, on the ports that its address is known by.

    Raises:
        ConfigError: no such relay, or settings that contradict each other.
    """
    if settings.relays is None or region not in settings.relays.regions:
        known = ", ".join(settings.relays.regions if settings.relays else ()) or "there are none"
        raise ConfigError("epp.yaml", "relays.regions", f"no relay for {region!r}", f"one of: {known}")
    relays = settings.relays
    local = replace(
        settings,
        relays=None,
        # Nothing to watch for the picker: the global Envoy does.
        observe=False,
        # What the global Envoy lets pass has a decision.
        fail_closed=False,
        endpoints=tuple(endpoint for endpoint in settings.endpoints if endpoint.region == region),
    )
    return api.bootstrap.Bootstrap(
        node=api.core.Node(id=f"epp-relay-{region}", cluster="epp-relay"),
        admin=api.bootstrap.Admin(address=api.socket_address("127.0.0.1", settings.admin_port)),
        overload_manager=overload_manager(local),
        layered_runtime=long_patterns(),
        static_resources=api.bootstrap.BootstrapStaticResources(
            listeners=[_listener(local, relays, region)], clusters=[replicas(local)]
        ),
    )


def _listener(settings: EnvoySettings, relays: Relays, region: str) -> api.listener.Listener:
    """Mutual TLS or nothing."""
    files = TlsFiles(relays.ca_file, relays.cert_file, relays.key_file)
    chain = api.filter_chain(_connection_manager(settings, relays), downstream_tls(files, GLOBAL_NAME))
    return relay_listener("relayed", settings.listener_host, relays.addresses(region), [chain])


def relay_listener(
    name: str, host: str, addresses: Iterable[str], chains: list[api.listener.FilterChain]
) -> api.listener.Listener:
    """One listener on a port for each connection.

    Args:
        name: of the listener.
        host: where it listens.
        addresses: under which it is known.
        chains: who may speak, and what becomes of it.
    """
    first, *others = [split(address)[1] for address in addresses]
    return api.listener.Listener(
        name=name,
        address=api.socket_address(host, first),
        additional_addresses=[
            api.listener.AdditionalAddress(address=api.socket_address(host, port)) for port in others
        ],
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
        filter_chains=chains,
    )


def _connection_manager(settings: EnvoySettings, relays: Relays) -> api.hcm.HttpConnectionManager:
    """An inner hop: what the global Envoy has checked and written stays as it is."""
    hcm = api.hcm
    return hcm.HttpConnectionManager(
        stat_prefix="relayed",
        codec_type=hcm.HttpConnectionManagerCodecType.AUTO,
        http_filters=[
            _destination_filter(),
            _retries_filter(),
            *decompressors(relays.compression),
            router_filter(),
        ],
        route_config=_routes(settings),
        access_log=access_logs(settings),
        local_reply_config=local_replies(unserved=True),
        # The address before the last is the client's; the last is the global Envoy's, appended there.
        skip_xff_append=True,
        preserve_external_request_id=True,
        generate_request_id=False,
        common_http_protocol_options=long_lived(),
        http2_protocol_options=http2(),
        upgrade_configs=[hcm.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        max_request_headers_kb=96,
        stream_idle_timeout=api.seconds(settings.stream_idle_timeout_s),
        server_name="envoy",
    )


def _destination_filter() -> api.hcm.HttpFilter:
    """The chosen endpoints from their header into metadata, where the cluster looks; engines never see it."""
    moved = api.to_metadata(DESTINATION_NAMESPACE, {DESTINATION_KEY: DESTINATION_KEY})
    moves = api.header_to_metadata.Config(request_rules=moved)
    return api.http_filter("envoy.filters.http.header_to_metadata", moves)


def _retries_filter() -> api.hcm.HttpFilter:
    """The picker's leave to retry refusals, under the names that this Envoy takes and removes."""
    mutation, changes = api.mutation_rules.HeaderMutation, []
    for name, relayed in RELAYED.items():
        changes += [mutation(append=api.set_header(name, f"%REQ({relayed})%")), mutation(remove=relayed)]
    return api.request_mutations(changes)


def ready() -> api.route.Route:
    """The route of health checks between tiers."""
    return api.route.Route(
        name="ready",
        match=api.route.RouteMatch(path=READY_PATH),
        direct_response=api.route.DirectResponseAction(status=200),
    )


def _routes(settings: EnvoySettings) -> api.route.RouteConfiguration:
    return api.route.RouteConfiguration(
        name="relayed",
        virtual_hosts=[
            api.route.VirtualHost(
                name="all",
                domains=["*"],
                routes=[ready(), *open_routes(settings)],
                # What an engine calls so is not ours.
                response_headers_to_remove=[SERVED_HEADER, UNSERVED_HEADER],
                response_headers_to_add=[api.set_header(SERVED_HEADER, "%UPSTREAM_REMOTE_ADDRESS%")],
            )
        ],
        validate_clusters=True,
    )
