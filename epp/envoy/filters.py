"""The HTTP filters between client and router, and the cleaning of headers before all of them.

Owns the order. Whatever restores or observes responses comes between the picker and the router, the observer
last, where it sees a response before anything else does: `http_filters` takes such filters as an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epp.config.section import MAX_MODEL_WAIT_S
from epp.envoy import messages as api
from epp.envoy.clusters import DESTINATION_NAMESPACE, PICKER
from epp.envoy.settings import EnvoySettings, Variant
from epp.types import RANK_ADDRESS_HEADER, WORKER_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

EXT_PROC = "envoy.filters.http.ext_proc"
DECISION_NAMESPACE = "epp"
"""Dynamic metadata of ours: the decision id, to join reports."""

RESERVED_PREFIXES = (
    "x-gateway-destination-endpoint",
    "x-envoy-",
    "x-epp-decision-id",
    *WORKER_HEADERS.values(),
    RANK_ADDRESS_HEADER,
)
"""Names that only the picker and Envoy may set: destination, its subset, what served; Envoy's own, with
which a client it takes for internal could set timeouts, retries or an original destination; a decision's id,
which upstreams may log; and whom sidecars ask, also while no picker removes them. A rank without its address
is left to engines that have several."""


def early_mutations(
    prefixes: Sequence[str] = RESERVED_PREFIXES, *added: api.core.HeaderValueOption
) -> list[api.core.TypedExtensionConfig]:
    """Removes reserved headers as soon as they are read: before routes, ext_proc and everything else.

    Args:
        prefixes: what their names begin with.
        added: set afterwards.
    """
    mutations = [
        api.mutation_rules.HeaderMutation(
            remove_on_match=api.mutation_rules.HeaderMutationRemoveOnMatch(
                key_matcher=api.matcher.StringMatcher(prefix=prefix, ignore_case=True)
            )
        )
        for prefix in prefixes
    ]
    mutations += [api.mutation_rules.HeaderMutation(append=header) for header in added]
    return [
        api.extension(
            "envoy.http.early_header_mutation.header_mutation",
            api.early_mutation.HeaderMutation(mutations=mutations),
        )
    ]


def http_filters(
    settings: EnvoySettings,
    observers: Sequence[api.hcm.HttpFilter],
    attempts: Sequence[api.accesslog.AccessLog],
) -> list[api.hcm.HttpFilter]:
    """Picker, filters of responses, router with its logs of attempts."""
    return [
        api.http_filter(EXT_PROC, external_processor(settings)),
        *observers,
        router_filter(attempts),
    ]


def router_filter(attempts: Sequence[api.accesslog.AccessLog] = ()) -> api.hcm.HttpFilter:
    """The last filter of both tiers, with logs of attempts."""
    # Upstreams and clients have no use for x-envoy-* headers, and engines log them.
    router = api.router.Router(suppress_envoy_headers=True, upstream_log=list(attempts))
    return api.http_filter("envoy.filters.http.router", router)


def picker_service(settings: EnvoySettings) -> api.core.GrpcService:
    """Name the picker as who is asked, and reported to; the others are, where it cannot be reached."""
    service = api.core.GrpcService(
        envoy_grpc=api.core.GrpcServiceEnvoyGrpc(cluster_name=PICKER, skip_envoy_headers=True)
    )
    if settings.fallback_pickers:
        service.retry_policy = api.core.RetryPolicy(
            retry_on="connect-failure,reset",
            retry_priority=api.core.RetryPolicyRetryPriority(**next_priority()),
        )
    return service


def next_priority() -> dict[str, Any]:
    """Name what makes a retry go to hosts of a priority that was not tried."""
    tried = api.previous_priorities.PreviousPrioritiesConfig(update_frequency=1)
    return {"name": "envoy.retry_priorities.previous_priorities", "typed_config": api.pack(tried)}


def external_processor(settings: EnvoySettings) -> api.ext_proc.ExternalProcessor:
    """The ext_proc filter that asks the picker.

    Envoy goes on without a picker that fails, also where there is no host to fall back to: in ORIGINAL_DST a
    request without a decision has no route but the one to nowhere (503). Failing in the filter would cut
    answers in flight as well, beside which their streams stay open until the end.
    """
    by_route = settings.variant is Variant.ORIGINAL_DST or settings.federation is not None
    namespaces = api.ext_proc.MetadataOptionsMetadataNamespaces
    unavailable = api.envoy_type.HttpStatus(code=api.envoy_type.StatusCode(503))
    return api.ext_proc.ExternalProcessor(
        stat_prefix=PICKER,
        grpc_service=picker_service(settings),
        processing_mode=processing_mode(settings.variant),
        # The picker spares itself and Envoy the bodies that it has no use for; full duplex knows no override.
        allow_mode_override=settings.variant is not Variant.FULL_DUPLEX,
        # So that the picker allows retries of what engines refuse.
        mutation_rules=api.mutation_rules.HeaderMutationRules(allow_envoy=settings.retries > 0),
        message_timeout=api.ms(settings.message_timeout_ms),
        # Who served, after a decision whose first endpoint could not be reached.
        response_attributes=["upstream.address"] if settings.variant is Variant.FULL_DUPLEX else [],
        # The picker asks for more time where it must ask engines first, then lets a request wait, or both.
        max_message_timeout=api.ms((MAX_MODEL_WAIT_S + settings.queue_wait_s + 1.0) * 1e3),
        failure_mode_allow=True,
        # Of requests whose body has begun: clients may try again.
        status_on_error=unavailable if settings.variant is Variant.FULL_DUPLEX else None,
        # The destination decides the route of original-dst and between regions; a cached route is older.
        route_cache_action=api.ext_proc.ExternalProcessorRouteCacheAction.CLEAR
        if by_route
        else api.ext_proc.ExternalProcessorRouteCacheAction.DEFAULT,
        metadata_options=api.ext_proc.MetadataOptions(
            forwarding_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE]),
            receiving_namespaces=namespaces(untyped=[DESTINATION_NAMESPACE, DECISION_NAMESPACE]),
        ),
    )


def processing_mode(variant: Variant) -> api.ext_proc.ProcessingMode:
    """What of an exchange passes the picker."""
    header, body = api.ext_proc.ProcessingModeHeaderSendMode, api.ext_proc.ProcessingModeBodySendMode
    if variant is Variant.FULL_DUPLEX:
        return api.ext_proc.ProcessingMode(
            request_header_mode=header.SEND,
            request_body_mode=body.FULL_DUPLEX_STREAMED,
            request_trailer_mode=header.SEND,
            response_header_mode=header.SEND,
            response_body_mode=body.FULL_DUPLEX_STREAMED,
            response_trailer_mode=header.SEND,
        )
    # The request headers must be sent too: without them the router chooses a host before the body is read.
    return api.ext_proc.ProcessingMode(
        request_header_mode=header.SEND,
        request_body_mode=body.BUFFERED,
        request_trailer_mode=header.SKIP,
        response_header_mode=header.SKIP,
        response_body_mode=body.NONE,
        response_trailer_mode=header.SKIP,
    )
