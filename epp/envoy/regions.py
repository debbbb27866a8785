"""The Envoy of a region among peers: its clients' listener, the way to each peer, the listener for peers.

Owns what may leave a region and who may enter it. Each peer has a loopback listener, which lets pass what the
picker has allowed that region by header, and answers 503 to everything else: without a picker nothing leaves.
Peers enter with the certificate of their region, the entry with its own. A peer's request needs a decision,
which the picker makes of a signed token alone; the entry's is treated as any client's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from epp.config.eds import split
from epp.config.federation import (
    AWAY_KEY,
    DOMAIN,
    ENTRY_NAME,
    FORWARD_HEADER,
    HOP_HEADER,
    PEER_HEADER,
)
from epp.config.relays import UNSERVED_HEADER
from epp.envoy import messages as api
from epp.envoy.clusters import FORWARD_NAMESPACE, clusters, health_check, replicas
from epp.envoy.compression import compressors, decompressors
from epp.envoy.filters import DECISION_NAMESPACE, EXT_PROC, RESERVED_PREFIXES, early_mutations, router_filter
from epp.envoy.listener import (
    NOT_RETRIED,
    bound_routes,
    connection_manager,
    destined,
    listener,
    nowhere,
    open_routes,
    route_configuration,
    to_replicas,
)
from epp.envoy.long_links import CONNECTION_BUFFER_BYTES, http2, long_lived
from epp.envoy.observe import observer_clusters, observers
from epp.envoy.relay import ready, relay_listener
from epp.envoy.relays import assignment_of, ready_check, warm_cluster
from epp.envoy.replies import local_replies
from epp.envoy.settings import EnvoySettings, TlsFiles
from epp.envoy.sockets import downstream_tls
from epp.errors import ConfigError

if TYPE_CHECKING:
    from epp.config.relays import Relays

FORWARDS = "forwards"
"""Cluster of the ways to peers, for requests that may not stay."""

_PING_S, _PING_TIMEOUT_S = 0.5, 1.5
"""A region that is cut off is known to be so within two seconds; any frame counts as an answer to a ping."""
_CHECK_S = 1.0


def region_parts(settings: EnvoySettings) -> tuple[list[api.listener.Listener], list[api.cluster.Cluster]]:
    """Listeners and clusters of the Envoy of the own region.

    Raises:
        ConfigError: an endpoint of another region, or settings that contradict each other.
    """
    own, relays = _own(settings), _relays(settings)
    for endpoint in settings.endpoints:
        if endpoint.region not in ("", own):
            problem = f"{endpoint.region} is not the own region, {own}"
            raise ConfigError("endpoints", endpoint.address, problem, "give each region its own endpoints")
    between = [*observers(settings), _forward_filter()]
    routes = _client_routes(settings)
    forwards = replicas(replace(settings, endpoints=(), eds_path=""))
    forwards.name = FORWARDS
    listeners = [
        listener(settings, between, routes),
        _peers_listener(settings, relays, own, between, routes),
        *forwarders(settings),
    ]
    return listeners, [
        *clusters(settings, replicas(settings)),
        forwards,
        *peer_clusters(settings, sni=""),
        *observer_clusters(settings),
    ]


def _own(settings: EnvoySettings) -> str:
    return settings.federation.region if settings.federation else ""


def _relays(settings: EnvoySettings) -> Relays:
    if settings.relays is None or _own(settings) not in ("", *settings.relays.regions):
        raise ConfigError("epp.yaml", "relays.regions", f"no address of {_own(settings) or 'any region'!r}")
    return settings.relays


def _forward_filter() -> api.hcm.HttpFilter:
    """The headers of a forward into metadata: of the hosts tried, the ways to peers alone get them back."""
    moved = api.to_metadata(FORWARD_NAMESPACE, {name: name for name in (HOP_HEADER, FORWARD_HEADER)})
    moves = api.header_to_metadata.Config(request_rules=moved)
    return api.http_filter("envoy.filters.http.header_to_metadata", moves)


def _away(settings: EnvoySettings) -> api.route.Route:
    """The route of requests that no engine here may serve: none is their last resort.

    By the picker's word and not by the names in the decision: ports may be others than those known here, and
    where peers alone are named for want of a healthy engine, one here is better than none.
    """
    said = api.matcher.MetadataMatcher(
        filter=DECISION_NAMESPACE,
        path=[api.matcher.MetadataMatcherPathSegment(key=AWAY_KEY)],
        value=api.matcher.ValueMatcher(present_match=True),
    )
    return to_replicas(settings, api.route.RouteMatch(prefix="/", dynamic_metadata=[said]), FORWARDS)


def _client_routes(settings: EnvoySettings) -> list[api.route.Route]:
    """What a rule binds to other regions needs a decision that leads there; a model's rule needs any."""
    routes = [_away(settings)]
    away = [rule for rule in settings.region_rules if _own(settings) not in rule.allow]
    for rule in sorted(away, key=lambda rule: bool(rule.model)):
        headers = []
        if rule.header:
            exact = api.matcher.StringMatcher(exact=rule.value)
            headers.append(api.route.HeaderMatcher(name=rule.header.lower(), string_match=exact))
        prefix = rule.path_prefix or "/"
        if rule.model:
            picked = destined(api.matcher.ValueMatcher(present_match=True), prefix, headers)
            routes.append(to_replicas(settings, picked))
        routes.append(nowhere(settings, api.route.RouteMatch(prefix=prefix, headers=headers)))
    return [*routes, *open_routes(settings)]


def _peers_listener(
    settings: EnvoySettings,
    relays: Relays,
    own: str,
    between: list[api.hcm.HttpFilter],
    client_routes: list[api.route.Route],
) -> api.listener.Listener:
    """For peers, by their regions' certificates, and for the entry, which asks for its own name (SNI)."""
    files = TlsFiles(relays.ca_file, relays.cert_file, relays.key_file)
    check = ready()
    check.typed_per_filter_config = {EXT_PROC: api.pack(api.ext_proc.ExtProcPerRoute(disabled=True))}
    picked = to_replicas(settings, destined(api.matcher.ValueMatcher(present_match=True)))
    unpicked = nowhere(settings, api.route.RouteMatch(prefix="/"))
    entry, peers = connection_manager(settings, between), connection_manager(settings, between)
    for manager, routes in (
        (entry, client_routes),
        (peers, [_away(settings), *bound_routes(settings), picked, unpicked]),
    ):
        manager.route_config = route_configuration(settings, routes)
        manager.route_config.virtual_hosts[0].routes.insert(0, check)
        # Whoever sends from elsewhere may try another region.
        manager.route_config.virtual_hosts[0].response_headers_to_remove.remove(UNSERVED_HEADER)
        manager.local_reply_config = local_replies(unserved=True)
        manager.http_filters = [*decompressors(relays.compression), *manager.http_filters]
        manager.http2_protocol_options = http2(_PING_S, _PING_TIMEOUT_S)
        manager.use_remote_address, manager.skip_xff_append = False, True
        manager.common_http_protocol_options = long_lived()
    # Theirs is the token that the picker checks, and no more.
    peers.early_header_mutation_extensions = early_mutations(
        [*RESERVED_PREFIXES, FORWARD_HEADER, PEER_HEADER],
        api.set_header(PEER_HEADER, "%DOWNSTREAM_PEER_DNS_SAN%"),
    )
    # Without a name any certificate of the authority would do.
    names = [f"{region}.{DOMAIN}" for region in settings.forwards or [own]]
    chains = [
        api.filter_chain(entry, downstream_tls(files, ENTRY_NAME)),
        api.filter_chain(peers, downstream_tls(files, *names)),
    ]
    chains[0].filter_chain_match = api.listener.FilterChainMatch(server_names=[ENTRY_NAME])
    # Open to all addresses, and to these certificates.
    host = "::" if ":" in split(relays.regions[own])[0] else "0.0.0.0"
    made = relay_listener("peers", host, relays.addresses(own), chains)
    inspector = api.pack(api.tls_inspector.TlsInspector())
    made.listener_filters = [
        api.listener.ListenerFilter(name="envoy.filters.listener.tls_inspector", typed_config=inspector)
    ]
    return made


def forwarders(settings: EnvoySettings) -> list[api.listener.Listener]:
    """One loopback listener for each peer."""
    relays = _relays(settings)
    return [
        api.listener.Listener(
            name=f"forward-{region}",
            address=api.socket_address(*split(address)),
            per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
            filter_chains=[api.filter_chain(_forwarder(settings, region, relays.compression))],
        )
        for region, address in settings.forwards.items()
    ]


def _forwarder(settings: EnvoySettings, region: str, compression: str) -> api.hcm.HttpConnectionManager:
    """To the peer if the request may go there, else 503; in either case the next endpoint may be tried."""
    hcm = api.hcm
    regex = api.matcher.RegexMatcher(regex=f"(?:.*,)?{re.escape(region)}(?:,.*)?")
    allowed = api.route.HeaderMatcher(
        name=FORWARD_HEADER, string_match=api.matcher.StringMatcher(safe_regex=regex)
    )
    answered = f"response.code_details == 'via_upstream' && !('{UNSERVED_HEADER}' in response.headers)"
    passed = api.route.Route(
        match=api.route.RouteMatch(prefix="/", headers=[allowed]),
        request_headers_to_remove=[FORWARD_HEADER],
        # What its engines refused its own Envoy has retried: that is not retried here.
        response_headers_to_add=[api.set_header(NOT_RETRIED, f"%CEL({answered} ? 'true' : '')%")],
        route=api.route.RouteAction(
            cluster=_peer(region),
            timeout=api.seconds(0),
            idle_timeout=api.seconds(settings.stream_idle_timeout_s),
        ),
    )
    refused = api.route.Route(
        match=api.route.RouteMatch(prefix="/"),
        direct_response=api.route.DirectResponseAction(
            status=503,
            body=api.core.DataSource(inline_string=f"the request may not go to {region}"),
        ),
        response_headers_to_add=[api.set_header(UNSERVED_HEADER, "true")],
    )
    return hcm.HttpConnectionManager(
        stat_prefix="forward",
        codec_type=hcm.HttpConnectionManagerCodecType.AUTO,
        http_filters=[*compressors(compression), router_filter()],
        route_config=api.route.RouteConfiguration(
            name="forward",
            virtual_hosts=[api.route.VirtualHost(name="all", domains=["*"], routes=[passed, refused])],
            validate_clusters=True,
        ),
        local_reply_config=local_replies(unserved=True),
        skip_xff_append=True,
        preserve_external_request_id=True,
        generate_request_id=False,
        common_http_protocol_options=long_lived(),
        upgrade_configs=[hcm.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        max_request_headers_kb=96,
        stream_idle_timeout=api.seconds(settings.stream_idle_timeout_s),
        server_name="envoy",
    )


def _peer(region: str) -> str:
    return f"peer-{region}"


def peer_clusters(settings: EnvoySettings, sni: str) -> list[api.cluster.Cluster]:
    """The open connections to each peer, whose certificate has to be its region's."""
    relays, found = _relays(settings), []
    # Checks find who is away, and who is back, within a second; an ejection would last longer.
    check = health_check(_CHECK_S, _CHECK_S, 1, http_health_check=ready_check())
    for region in settings.forwards:
        only = msgspec.structs.replace(relays, regions={region: relays.regions[region]})
        hosts, http = assignment_of(replace(settings, endpoints=()), only), http2(_PING_S, _PING_TIMEOUT_S)
        cluster = warm_cluster(
            _peer(region), hosts, only, f"{region}.{DOMAIN}", http=http, check=check, sni=sni
        )
        # There is another to try, so sooner than a packet lost at the start of a connection is repeated.
        cluster.connect_timeout = api.seconds(_CHECK_S)
        cluster.common_lb_config = api.cluster.ClusterCommonLbConfig(
            healthy_panic_threshold=api.envoy_type.Percent(value=0)
        )
        found.append(cluster)
    return found
