"""The listener that clients connect to: connection manager, routes, retries, timeouts.

Owns what a client can and cannot make Envoy do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.apis.paths import LEAVES, SHUT_WORDS, OpenPaths
from epp.config.eds import REPLICAS, known_as
from epp.config.federation import FORWARD_HEADER, HOP_HEADER, PEER_HEADER
from epp.config.relays import UNSERVED_HEADER
from epp.config.retries import BOUND_HEADER, NO_MODEL, REFUSALS, REFUSED_HEADER
from epp.envoy import messages as api
from epp.envoy.access_log import access_logs, attempt_logs
from epp.envoy.clusters import BOUND_KEY, DESTINATION_KEY, DESTINATION_NAMESPACE, NOWHERE
from epp.envoy.filters import EXT_PROC, RESERVED_PREFIXES, early_mutations, http_filters
from epp.envoy.relays import SERVED_HEADER
from epp.envoy.replies import local_replies
from epp.envoy.retry import ASKED, DECISION_HEADER, ENDPOINT_HEADER, REFUSAL_HEADER, TOLD, decision_headers
from epp.envoy.settings import CLIENTS, MOST_HEADERS, EnvoySettings, Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""Failures before an endpoint has seen the request. Later ones are not repeated: the work may be done."""

#: First version whose listeners probe idle clients; before it a client that vanished holds its connection
#: until `stream_idle_timeout_s`.
_KEEPALIVE_SINCE = (1, 37)

#: First version whose routes' body limits go beyond the connection's.
_BODY_LIMIT_SINCE = (1, 37)
_SLOW_READER_BYTES = 1024 * 1024

NOT_RETRIED = "x-envoy-ratelimited"
"""Response header of an Envoy behind this one: its statuses are final here."""

_INT64_END = (1 << 63) - 1


def listener(
    settings: EnvoySettings, observers: Sequence[api.hcm.HttpFilter], routes: Sequence[api.route.Route] = ()
) -> api.listener.Listener:
    """The client-facing listener; with other routes than the replicas' where given."""
    keepalive = api.core.TcpKeepalive(keepalive_time=30, keepalive_interval=10, keepalive_probes=3)
    return api.listener.Listener(
        name=CLIENTS,
        address=api.socket_address(settings.listener_host, settings.listener_port),
        per_connection_buffer_limit_bytes=_buffer_bytes(settings),
        filter_chains=[api.filter_chain(connection_manager(settings, observers, routes))],
        tcp_keepalive=keepalive if settings.envoy_version >= _KEEPALIVE_SINCE else None,
    )


def _buffer_bytes(settings: EnvoySettings) -> int:
    """What a slow reader may hold; request bodies have their own, larger limit on the route.

    Before that limit was honoured beyond this one, this one must leave room for the longest body.
    """
    if settings.envoy_version >= _BODY_LIMIT_SINCE:
        return _SLOW_READER_BYTES
    return max(_SLOW_READER_BYTES, settings.max_body_bytes)


def connection_manager(
    settings: EnvoySettings, observers: Sequence[api.hcm.HttpFilter], routes: Sequence[api.route.Route] = ()
) -> api.hcm.HttpConnectionManager:
    """Edge settings: paths normalised, client addresses not believed, no limit on a request's duration."""
    hcm = api.hcm
    return hcm.HttpConnectionManager(
        stat_prefix="requests",
        codec_type=hcm.HttpConnectionManagerCodecType.AUTO,
        early_header_mutation_extensions=early_mutations([*RESERVED_PREFIXES, *forward_names(settings)]),
        http_filters=http_filters(settings, observers, attempt_logs(settings)),
        route_config=route_configuration(settings, routes),
        access_log=access_logs(settings),
        local_reply_config=local_replies(retry_after=settings.variant is Variant.FULL_DUPLEX),
        use_remote_address=True,
        preserve_external_request_id=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action=hcm.HttpConnectionManagerPathWithEscapedSlashesAction.UNESCAPE_AND_FORWARD,
        strip_trailing_host_dot=True,
        common_http_protocol_options=api.core.HttpProtocolOptions(
            idle_timeout=api.seconds(3600), max_headers_count=MOST_HEADERS
        ),
        # nginx and ApacheBench speak it unless told otherwise, and name no host.
        http_protocol_options=api.core.Http1ProtocolOptions(
            accept_http_10=True, default_host_for_http_10="localhost"
        ),
        upgrade_configs=[hcm.HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        http2_protocol_options=api.core.Http2ProtocolOptions(
            allow_connect=True,  # WebSockets over HTTP/2 (RFC 8441)
            max_concurrent_streams=1000,
            initial_stream_window_size=1024 * 1024,
            initial_connection_window_size=4 * 1024 * 1024,
        ),
        max_request_headers_kb=96,
        request_headers_timeout=api.seconds(10),
        stream_idle_timeout=api.seconds(settings.stream_idle_timeout_s),
        server_name="envoy",
    )


def forward_names(settings: EnvoySettings) -> tuple[str, ...]:
    """Name the headers that pickers and Envoys of peer regions alone may set; none without peers."""
    return (HOP_HEADER, FORWARD_HEADER, PEER_HEADER) if settings.federation else ()


def route_configuration(
    settings: EnvoySettings, others: Sequence[api.route.Route] = ()
) -> api.route.RouteConfiguration:
    """Too long: 413; shut: 404. Else to the replicas; by original-dst where the destination is allowed."""
    routes = [_too_long(settings), *_shut(settings)]
    if others:
        routes += others
    elif settings.variant is Variant.ORIGINAL_DST:
        routes += [_picked(settings), nowhere(settings, api.route.RouteMatch(prefix="/"))]
    else:
        routes += open_routes(settings)
    return api.route.RouteConfiguration(
        name="requests",
        virtual_hosts=[
            api.route.VirtualHost(
                name="all",
                domains=["*"],
                routes=routes,
                # Removed first: what an upstream calls so is not ours.
                response_headers_to_remove=_engines_headers(settings),
                response_headers_to_add=decision_headers(settings),
                request_headers_to_remove=[
                    *ASKED,
                    *forward_names(settings)[2:],
                    # Of one that came back.
                    *([REFUSED_HEADER, "x-envoy-original-url"] if settings.puts_back else []),
                ],
            )
        ],
        validate_clusters=True,
    )


def _engines_headers(settings: EnvoySettings) -> list[str]:
    """Name the response headers that only the picker and Envoy set; a relay's go once they are read."""
    names = [
        DECISION_HEADER,
        REFUSAL_HEADER,
        *TOLD,
        DESTINATION_KEY,
        f"{DESTINATION_KEY}-subset",
        f"{DESTINATION_KEY}-scores",
    ]
    if settings.federation:
        return [*names, SERVED_HEADER, UNSERVED_HEADER, NOT_RETRIED]
    names.append(ENDPOINT_HEADER)
    return names if settings.relays else [*names, SERVED_HEADER]


def open_routes(settings: EnvoySettings) -> list[api.route.Route]:
    """The routes of requests that nothing binds to a region: to the replicas, without a decision as well.

    Fail-closed a request without a decision gets 503.
    """
    everything = api.route.RouteMatch(prefix="/")
    if not settings.fail_closed:
        return [*bound_routes(settings), to_replicas(settings, everything)]
    picked = to_replicas(settings, destined(api.matcher.ValueMatcher(present_match=True)))
    return [*bound_routes(settings), picked, nowhere(settings, everything)]


def bound_routes(settings: EnvoySettings) -> list[api.route.Route]:
    """The route of requests that none but the endpoints of their decision may serve; of relays each has it.

    An engine that answers that it does not have the model is passed over there.
    """
    if settings.relayed:
        return []
    marked = api.route.HeaderMatcher(name=BOUND_HEADER, present_match=True)
    key = api.protobuf.Struct(fields={BOUND_KEY: api.protobuf.Value(string_value="true")})
    route = to_replicas(
        settings,
        api.route.RouteMatch(prefix="/", headers=[marked]),
        retry=_retry_policy(settings, NO_MODEL),
        metadata=api.core.Metadata(filter_metadata={DESTINATION_NAMESPACE: key}),
    )
    route.request_headers_to_remove = [BOUND_HEADER]
    return [route]


def to_replicas(
    settings: EnvoySettings,
    match: api.route.RouteMatch,
    cluster: str = REPLICAS,
    retry: api.route.RetryPolicy | None = None,
    metadata: api.core.Metadata | None = None,
) -> api.route.Route:
    """The route to endpoints, or to the relays before them.

    Args:
        settings: of timeouts, bodies and retries.
        match: which requests.
        cluster: where they go.
        retry: in place of the settings' retries.
        metadata: what hosts must have that are not named.
    """
    # Back to the picker, once: `put_back.lua` makes a redirect of a refusal; engines hardly use that status.
    put_back = api.route.InternalRedirectPolicy(
        redirect_response_codes=[308], response_headers_to_copy=[REFUSED_HEADER]
    )
    return api.route.Route(
        name=cluster,
        match=match,
        request_body_buffer_limit=settings.max_body_bytes,
        route=api.route.RouteAction(
            cluster=cluster,
            # 0 is no limit: an answer may take as long as it takes while bytes still flow.
            timeout=api.seconds(0),
            idle_timeout=api.seconds(settings.stream_idle_timeout_s),
            retry_policy=retry or _retry_policy(settings),
            metadata_match=metadata,
            internal_redirect_policy=put_back if settings.puts_back else None,
        ),
    )


def _retry_policy(settings: EnvoySettings, *further: int) -> api.route.RetryPolicy | None:
    """Each retry takes the next endpoint of the decision; hosts tried before are passed over.

    Refusals are retried, and ``further`` statuses.
    """
    if not settings.retries:
        return None
    predicate = api.route.RetryPolicyRetryHostPredicate(
        name="envoy.retry_host_predicates.previous_hosts",
        typed_config=api.pack(api.previous_hosts.PreviousHostsPredicate()),
    )
    unserved = api.route.HeaderMatcher(name=UNSERVED_HEADER, present_match=True)
    return api.route.RetryPolicy(
        retry_on=f"{RETRY_ON},retriable-headers" if settings.relays else RETRY_ON,
        # A relay that reached no endpoint says so; another region's may.
        retriable_headers=[unserved] if settings.relays else [],
        # Where the picker allows it; the innermost Envoy does it.
        retriable_status_codes=[] if settings.relayed else [*REFUSALS, *further],
        num_retries=settings.retries,
        retry_host_predicate=[predicate] if settings.variant is not Variant.ORIGINAL_DST else [],
        host_selection_retry_max_attempts=5,
        retry_back_off=api.route.RetryPolicyRetryBackOff(base_interval=api.ms(5), max_interval=api.ms(100)),
    )


def _too_long(settings: EnvoySettings) -> api.route.Route:
    """Refuse a body by its announced length, before a byte of it is read."""
    length = api.envoy_type.Int64Range(start=settings.max_body_bytes + 1, end=_INT64_END)
    header = api.route.HeaderMatcher(name="content-length", range_match=length)
    words = f"request body is longer than {settings.max_body_bytes} bytes"
    return _refused("too-long", api.route.RouteMatch(prefix="/", headers=[header]), 413, words)


def _shut(settings: EnvoySettings) -> list[api.route.Route]:
    """Refuse what is not open to clients (`epp.apis.paths`)."""
    pattern = OpenPaths(settings.open_paths).pattern
    text = api.matcher.StringMatcher(safe_regex=api.matcher.RegexMatcher(regex=pattern))
    header = api.route.HeaderMatcher(name=":path", string_match=text, invert_match=True)
    matches = (
        api.route.RouteMatch(prefix="/", headers=[header]),
        api.route.RouteMatch(safe_regex=api.matcher.RegexMatcher(regex=LEAVES)),
    )
    return [_refused("shut", match, 404, SHUT_WORDS) for match in matches]


def _refused(name: str, match: api.route.RouteMatch, status: int, words: str) -> api.route.Route:
    """Answer without asking the picker; `local_replies` puts the words as the path's API does."""
    return api.route.Route(
        name=name,
        match=match,
        direct_response=api.route.DirectResponseAction(
            status=status, body=api.core.DataSource(inline_string=words)
        ),
        typed_per_filter_config={EXT_PROC: api.pack(api.ext_proc.ExtProcPerRoute(disabled=True))},
    )


def _picked(settings: EnvoySettings) -> api.route.Route:
    """To the destination in metadata if it is one of ours: the endpoints, or what a pattern allows.

    Endpoints one by one: of a pattern of them all Envoy takes no more than a dozen (RE2's program size, 100).
    """
    patterns = "|".join(f"(?:{pattern})" for pattern in settings.destination_patterns)
    texts = [api.matcher.StringMatcher(exact=known_as(endpoint.address)) for endpoint in settings.endpoints]
    if patterns or not texts:
        regex = api.matcher.RegexMatcher(regex=patterns or "(?:no endpoint)")
        texts.append(api.matcher.StringMatcher(safe_regex=regex))
    one, *others = [api.matcher.ValueMatcher(string_match=text) for text in texts]
    anyone = api.matcher.ValueMatcher(or_match=api.matcher.OrMatcher(value_matchers=[one, *others]))
    return to_replicas(settings, destined(anyone if others else one))


def destined(
    value: api.matcher.ValueMatcher, prefix: str = "/", headers: Sequence[api.route.HeaderMatcher] = ()
) -> api.route.RouteMatch:
    """Match requests by what the picker chose for them."""
    destination = api.matcher.MetadataMatcher(
        filter=DESTINATION_NAMESPACE,
        path=[api.matcher.MetadataMatcherPathSegment(key=DESTINATION_KEY)],
        value=value,
    )
    return api.route.RouteMatch(prefix=prefix, headers=list(headers), dynamic_metadata=[destination])


def nowhere(settings: EnvoySettings, match: api.route.RouteMatch) -> api.route.Route:
    """Where every request that needs a decision begins: a cluster without hosts, 503, until it is decided.

    Not a direct response: Envoy takes a request's buffer limit from a route that forwards, and this is the
    route in force while the body is read.
    """
    return api.route.Route(
        name="not-picked",
        match=match,
        request_body_buffer_limit=settings.max_body_bytes,
        route=api.route.RouteAction(cluster=NOWHERE, timeout=api.seconds(0)),
    )
