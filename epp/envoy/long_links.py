"""What both tiers set for connections over long, fat links, and why.

Envoy's names for it: `Http2ProtocolOptions`, `KeepaliveSettings`, `SocketOption`
(envoyproxy.io/docs, api-v3/config/core/v3/protocol.proto and socket_option.proto).

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

from typing import TYPE_CHECKING

from epp.envoy import messages as api

if TYPE_CHECKING:
    from epp.config.relays import Relays

CONNECTION_BUFFER_BYTES = 4 * 1024 * 1024
"""Room for some fifty long prompts of one connection."""

# <netinet/tcp.h>
_IPPROTO_TCP, _TCP_CONGESTION = 6, 13


def http2(relays: Relays) -> api.core.Http2ProtocolOptions:
    """HTTP/2 between the tiers, for either side."""
    return api.core.Http2ProtocolOptions(
        allow_connect=True,  # WebSockets over HTTP/2 (RFC 8441)
        max_concurrent_streams=relays.max_streams,
        initial_stream_window_size=relays.stream_window_bytes,
        initial_connection_window_size=relays.connection_window_bytes,
        connection_keepalive=api.core.KeepaliveSettings(
            interval=api.seconds(relays.ping_s),
            timeout=api.seconds(relays.ping_timeout_s),
            # Many connections opened in one burst would be asked in one burst.
            interval_jitter=api.envoy_type.Percent(value=15),
        ),
    )


def congestion_control(name: str) -> list[api.core.SocketOption]:
    """The socket option that chooses a congestion control; none for the kernel's default."""
    if not name:
        return []
    return [
        api.core.SocketOption(
            description="congestion control",
            level=_IPPROTO_TCP,
            name=_TCP_CONGESTION,
            buf_value=name.encode(),
            state=api.core.SocketOptionSocketState.STATE_PREBIND,
        )
    ]
