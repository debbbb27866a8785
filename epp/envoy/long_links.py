"""What both tiers set for connections over long, fat links, and why.

Envoy's names for it: `Http2ProtocolOptions`, `KeepaliveSettings`
(envoyproxy.io/docs, api-v3/config/core/v3/protocol.proto).

* Windows (HTTP/2 flow control): the receiver grants them, so for request bodies the relay's count and for
  answers the global Envoy's. A stream that may have W bytes on its way moves at most W in a round trip: with
  HTTP/2's own 64 KiB an 18k-token prompt waits one round trip in the middle, however fast the link.
* Buffers: Envoy stops reading what it is to send when a connection's buffer is full, for all its streams.
  Several long bodies share a connection here, so the limit is raised from what a single stream needs.
* Socket buffers are left to the kernel, whose tuning follows bandwidth times round trip; a size set by hand
  ends it.
* Pings find a dead path where TCP alone would repeat for many minutes, and keep middleboxes from forgetting
  the connection. They do not keep it fast: a kernel that slows down after idle does so in spite of them.
* Streams per connection are many: a further connection would be a cold one. How many connections there are
  is chosen by addresses, not by this limit.
"""

from __future__ import annotations

from epp.config.relays import STREAM_WINDOW_BYTES
from epp.envoy import messages as api
from epp.envoy.settings import MOST_HEADERS

CONNECTION_BUFFER_BYTES = 4 * 1024 * 1024
"""Room for some fifty long prompts of one connection."""

CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
"""What of all requests of a connection may be on its way unacknowledged."""
MAX_STREAMS = 1000
"""Requests at once on one connection; more open another one."""
PING_S, PING_TIMEOUT_S = 2.0, 4.0
"""How often a sign of life is asked for, and when a connection is given up without one: more than a round
trip and a lost packet's repeat."""


def long_lived() -> api.core.HttpProtocolOptions:
    """Connections of the tier before: kept without an end, with as many headers as it takes."""
    return api.core.HttpProtocolOptions(idle_timeout=api.seconds(0), max_headers_count=MOST_HEADERS)


def http2(ping_s: float = PING_S, timeout_s: float = PING_TIMEOUT_S) -> api.core.Http2ProtocolOptions:
    """HTTP/2 between the tiers, for either side."""
    return api.core.Http2ProtocolOptions(
        allow_connect=True,  # WebSockets over HTTP/2 (RFC 8441)
        max_concurrent_streams=MAX_STREAMS,
        initial_stream_window_size=STREAM_WINDOW_BYTES,
        initial_connection_window_size=CONNECTION_WINDOW_BYTES,
        connection_keepalive=api.core.KeepaliveSettings(
            interval=api.seconds(ping_s),
            timeout=api.seconds(timeout_s),
            # Many connections opened in one burst would be asked in one burst.
            interval_jitter=api.envoy_type.Percent(value=15),
        ),
    )
