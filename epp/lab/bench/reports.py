"""What Envoy tells of a request besides ext_proc: the first token's call and the access log's entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.pb.access_log_pb2 import StreamAccessLogsMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

_STARTED_S, _DURATION_NS = 1_767_323_045, 912_000_000
_USAGE = (
    '{"prompt_tokens": 18000, "completion_tokens": 128, "total_tokens": 18128,'
    ' "prompt_tokens_details": {"cached_tokens": 16200}}'
)


def log_message(decisions: Iterable[tuple[str, str]], chunks: int = 130) -> bytes:
    """A message of the access log: an entry for each decision id and endpoint, as our filter fills them."""
    message = StreamAccessLogsMessage()
    for decision_id, endpoint in decisions:
        entry = message.http_logs.log_entry.add()
        common = entry.common_properties
        common.start_time.seconds, common.duration.nanos = _STARTED_S, _DURATION_NS
        common.time_to_last_rx_byte.nanos = 900_000
        common.time_to_first_upstream_tx_byte.nanos = 2_100_000
        common.time_to_first_upstream_rx_byte.nanos = 180_000_000
        common.upstream_request_attempt_count = 1
        host, _, port = endpoint.rpartition(":")
        socket = common.upstream_remote_address.socket_address
        socket.address, socket.port_value = host, int(port)
        fields = common.metadata.filter_metadata
        fields["envoy.lb"].fields["x-gateway-destination-endpoint"].string_value = endpoint
        fields["epp"].fields["decision_id"].string_value = decision_id
        seen = fields["epp.observe"].fields
        seen["first_us"].number_value = (_STARTED_S + 0.2) * 1e6
        seen["chunks"].number_value = chunks
        seen["streamed"].bool_value = True
        seen["usage"].string_value = _USAGE
        common.custom_tags["connect_us"] = "150"
        common.custom_tags["fresh_us"] = "-"
        entry.request.request_body_bytes = 73_000
        entry.response.response_code.value = 200
        entry.response.response_body_bytes = 24_000
        entry.response.response_code_details = "via_upstream"
    return message.SerializeToString()


def first_token_call(decision_id: str) -> bytes:
    """The head of the call as Envoy sends it; it has no body."""
    return (
        f"POST /first-token/{decision_id} HTTP/1.1\r\nhost: picker\r\nx-envoy-internal: true\r\n"
        "x-forwarded-for: 127.0.0.1\r\nx-envoy-expected-rq-timeout-ms: 1000\r\ncontent-length: 0\r\n\r\n"
    ).encode()
