"""Access logs: a report on every request for the picker; a JSON line a request on stdout, off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE, picker_service

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
        reports = api.pack(_reports(settings))
        logs.append(api.accesslog.AccessLog(name="envoy.access_loggers.http_grpc", typed_config=reports))
    if settings.access_log:
        fields = {name: api.protobuf.Value(string_value=text) for name, text in _FIELDS.items()}
        stdout = api.stream_log.StdoutAccessLog(
            log_format=api.core.SubstitutionFormatString(json_format=api.protobuf.Struct(fields=fields))
        )
        logs.append(
            api.accesslog.AccessLog(name="envoy.access_loggers.stdout", typed_config=api.pack(stdout))
        )
    return logs


def _reports(settings: EnvoySettings) -> api.grpc_log.HttpGrpcAccessLogConfig:
    """One entry a request, with the dynamic metadata that the picker and the observer left.

    Sent when some ten are together or the interval has passed. A picker that is away loses them: Envoy keeps
    no more than the buffer and counts what it drops.
    """
    known = _REPORT_TAGS if settings.envoy_version >= _TAGS_SINCE else {}
    tags = [api.tracing.CustomTag(tag=tag, value=text) for tag, text in known.items()]
    return api.grpc_log.HttpGrpcAccessLogConfig(
        common_config=api.grpc_log.CommonGrpcAccessLogConfig(
            log_name=REPORTS_LOG,
            transport_api_version=api.core.ApiVersion.V3,
            grpc_service=picker_service(),
            buffer_flush_interval=api.ms(settings.report_interval_ms),
            buffer_size_bytes=_REPORTS_BUFFER_BYTES,
            custom_tags=tags,
        ),
        additional_response_headers_to_log=["retry-after"],
    )
