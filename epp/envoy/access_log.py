"""Access logs: one JSON line a request on stdout, off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE

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
    "duration_ms": "%DURATION%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
}
"""Envoy's format strings. No query, no header values: they can carry credentials."""


def access_logs(settings: EnvoySettings) -> list[api.accesslog.AccessLog]:
    """The logs that the settings ask for."""
    if not settings.access_log:
        return []
    fields = {name: api.protobuf.Value(string_value=text) for name, text in _FIELDS.items()}
    stdout = api.stream_log.StdoutAccessLog(
        log_format=api.core.SubstitutionFormatString(json_format=api.protobuf.Struct(fields=fields))
    )
    return [api.accesslog.AccessLog(name="envoy.access_loggers.stdout", typed_config=api.pack(stdout))]
