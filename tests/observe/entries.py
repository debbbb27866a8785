"""Access log entries written with `envoy-data-plane`, which knows nothing of our own messages."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.data.accesslog import v3 as accesslog
    from envoy_data_plane.envoy.service.accesslog import v3 as als
    from envoy_data_plane.google import protobuf

__all__ = ["START", "accesslog", "als", "core", "entry", "protobuf", "wire"]

START = datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)


def value(plain: object) -> Any:
    if isinstance(plain, bool):
        return protobuf.Value(bool_value=plain)
    if isinstance(plain, int | float):
        return protobuf.Value(number_value=plain)
    return protobuf.Value(string_value=str(plain))


def struct(fields: dict[str, object]) -> Any:
    return protobuf.Struct(fields={name: value(plain) for name, plain in fields.items()})


def _flags(names: tuple[str, ...]) -> Any:
    flags = accesslog.ResponseFlags()
    for name in names:
        setattr(flags, name, True)
    return flags


def entry(
    *,
    flags: tuple[str, ...] = (),
    status: int | None = 200,
    details: str = "via_upstream",
    served: str = "10.0.0.1",
    seen: dict[str, object] | None = None,
    ours: dict[str, object] | None = None,
    destination: str = "10.0.0.1:8001,10.0.0.2:8001",
    tags: dict[str, str] | None = None,
    **common: Any,
) -> Any:
    """One entry of a request that went well, but for what the arguments say."""
    namespaces = {"envoy.lb": struct({"x-gateway-destination-endpoint": destination})}
    namespaces["epp"] = struct({"decision_id": "d-1"} if ours is None else ours)
    if seen is not None:
        namespaces["epp.observe"] = struct(seen)
    values: dict[str, Any] = {
        "start_time": START,
        "duration": timedelta(milliseconds=900),
        "metadata": core.Metadata(filter_metadata=namespaces),
        "response_flags": _flags(flags),
        "upstream_request_attempt_count": 1,
        "custom_tags": tags or {},
    }
    if served:
        socket = core.SocketAddress(address=served, port_value=8001)
        values["upstream_remote_address"] = core.Address(socket_address=socket)
    return accesslog.HttpAccessLogEntry(
        common_properties=accesslog.AccessLogCommon(**(values | common)),
        request=accesslog.HttpRequestProperties(request_body_bytes=2),
        response=accesslog.HttpResponseProperties(
            response_code=status, response_body_bytes=309, response_code_details=details
        ),
    )


def wire(*entries: Any) -> bytes:
    """A message of the stream."""
    return bytes(
        als.StreamAccessLogsMessage(
            http_logs=als.StreamAccessLogsMessageHttpAccessLogEntries(log_entry=list(entries))
        )
    )
