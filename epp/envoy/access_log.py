"""Access logs: a report on every request for the picker; a JSON line a request on stdout, off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.relays import UNSERVED_HEADER
from epp.config.retries import NO_MODEL, REFUSALS
from epp.envoy import messages as api
from epp.envoy.clusters import DESTINATION_KEY
from epp.envoy.filters import DECISION_NAMESPACE, picker_service
from epp.envoy.replies import status_is
from epp.envoy.retry import DECISION_HEADER
from epp.envoy.settings import Variant

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

_FIELDS = {
    "time": "%START_TIME%",
    "decision": f"%DYNAMIC_METADATA({DECISION_NAMESPACE}:decision_id)%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "upstream": "%UPSTREAM_HOST%",
    "connection": "%UPSTREAM_CONNECTION_ID%",
    "served": "%DYNAMIC_METADATA(epp.relay:served)%",
    "duration_ms": "%DURATION%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
}
"""Envoy's format strings. No query, no header values: they can carry credentials."""


REPORTS_LOG = "epp"
"""Name under which reports come."""

_REPORT_TAGS = {
    "connect_us": "%COMMON_DURATION(US_CX_BEG:US_CX_END:us)%",
    "fresh_us": "%COMMON_DURATION(DS_RX_BEG:US_CX_BEG:us)%",
}
"""What the log's own fields do not tell: how long the upstream connection took to open, and when it began,
counted from the request's start; a connection that was there before has no such time."""

#: First version whose tags take format strings; before it connection times are not known.
_TAGS_SINCE = (1, 37)

_REPORTS_BUFFER_BYTES = 16 * 1024


def access_logs(settings: EnvoySettings) -> list[api.accesslog.AccessLog]:
    """The logs that the settings ask for."""
    logs = []
    if settings.observed:
        logs.append(_reports(settings))
    if settings.access_log:
        fields = {name: api.protobuf.Value(string_value=text) for name, text in _FIELDS.items()}
        stdout = api.stream_log.StdoutAccessLog(
            log_format=api.core.SubstitutionFormatString(json_format=api.protobuf.Struct(fields=fields))
        )
        logs.append(
            api.accesslog.AccessLog(name="envoy.access_loggers.stdout", typed_config=api.pack(stdout))
        )
    return logs


def _reports(settings: EnvoySettings) -> api.accesslog.AccessLog:
    """One entry a request, with the dynamic metadata that the picker and the observer left.

    Sent when some ten are together or the interval has passed. A picker that is away loses them: Envoy keeps
    no more than the buffer and counts what it drops.
    """
    known = _REPORT_TAGS if settings.envoy_version >= _TAGS_SINCE else {}
    common = _common(settings, _REPORTS_BUFFER_BYTES)
    common.buffer_flush_interval = api.ms(settings.report_interval_ms)
    common.custom_tags = [api.tracing.CustomTag(tag=tag, value=text) for tag, text in known.items()]
    reports = api.grpc_log.HttpGrpcAccessLogConfig(
        common_config=common, additional_response_headers_to_log=["retry-after"]
    )
    return api.accesslog.AccessLog(name="envoy.access_loggers.http_grpc", typed_config=api.pack(reports))


def attempt_logs(settings: EnvoySettings) -> list[api.accesslog.AccessLog]:
    """An entry, at once, for each attempt that an endpoint refused or that failed: normal ones have none.

    Where there are relays the attempts are theirs, and `original-dst` knows one address a request.
    """
    if not settings.observe or settings.relayed or settings.variant is Variant.ORIGINAL_DST:
        return []
    unreached = {"response_flag_filter": {"flags": ["UF", "UR", "UC"]}}
    either = [unreached, *(status_is("EQ", status) for status in (*REFUSALS, NO_MODEL))]
    wanted = api.accesslog.AccessLogFilter.from_dict({"or_filter": {"filters": either}})
    attempts = api.grpc_log.HttpGrpcAccessLogConfig(
        common_config=_common(settings, 0),
        # An attempt has no metadata; headers tell it from a request's entry, too.
        additional_request_headers_to_log=[DECISION_HEADER, DESTINATION_KEY],
        additional_response_headers_to_log=["retry-after", UNSERVED_HEADER],
    )
    return [api.accesslog.AccessLog(name="attempts", filter=wanted, typed_config=api.pack(attempts))]


def _common(settings: EnvoySettings, buffer_bytes: int) -> api.grpc_log.CommonGrpcAccessLogConfig:
    return api.grpc_log.CommonGrpcAccessLogConfig(
        log_name=REPORTS_LOG,
        transport_api_version=api.core.ApiVersion.V3,
        grpc_service=picker_service(settings),
        buffer_size_bytes=buffer_bytes,
    )
