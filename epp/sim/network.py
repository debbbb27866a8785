"""What distance costs: half a round trip each way, and slow start for large bodies on a cold connection.

Pure arithmetic; who sleeps is in ``http.py``. Source: gorgo.md section 4 - tiny prompts pay one round trip to
a far region, 8-24k-token prompts about three, because their body goes up in TCP slow start.
"""

from __future__ import annotations

from dataclasses import dataclass

# RFC 6928: ten segments of 1,460 bytes before the first acknowledgement.
INITIAL_WINDOW_BYTES = 14_600


@dataclass(slots=True)
class SendWindow:
    """The congestion window that a peer has opened on one connection."""

    window_bytes: int = INITIAL_WINDOW_BYTES

    def upload_round_trips(self, body_bytes: int) -> int:
        """Whole round trips that a body adds to the first half one; the window stays as wide as it grew."""
        sent, extra = self.window_bytes, 0
        while sent < body_bytes:
            self.window_bytes *= 2
            sent += self.window_bytes
            extra += 1
        return extra
