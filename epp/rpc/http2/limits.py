"""What one connection may take up, and how often the other side may ask for what costs us and brings nothing.

Owns the figures. Windows are large because a picker reads long prompts and reads them at once; what they
allow to be held is bounded by the connection's window, whatever the number of streams. Frames that want an
answer, or that say nothing, come out of buckets that fill with time: known attacks are floods of such frames
(CVE-2019-9512 to 9518, CVE-2023-44487, CVE-2024-24549, CVE-2025-8671), and no proxy comes near these rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from epp.rpc.http2.frames import Setting

#: Work is counted in units of 1 to 2 microseconds of CPU: a frame, a header field, a short message.
UNLIMITED_UNITS = 1 << 62
PING_FRAMES, SETTINGS_FRAMES = 5, 100


@dataclass(frozen=True, slots=True)
class Rate:
    """A burst, and what a second adds to it."""

    burst: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one connection.

    Attributes:
        max_streams: open at once; proxies open another connection beyond, and what comes nevertheless is
            refused.
        stream_window_bytes: what may come on a stream before we say that more may.
        connection_window_bytes: the same of all streams.
        max_frame_bytes: longest DATA frame, in either direction.
        max_control_bytes: longest frame of any other kind, and longest header block, in however many frames.
            Twice the headers that are taken: too many cost their stream, and not all that run beside it. Also
            bounds what decoding one block costs: 32 KiB of Huffman codes take 6 ms.
        max_header_list_bytes: of a request, as RFC 9113 counts it: 32 bytes a field, name and value.
        max_continuations: frames that a header block may be spread over.
        idle_frames: empty DATA frames, PRIORITY, resets of what is over, and kinds that nobody knows. A PING
            counts as `PING_FRAMES` of them, a SETTINGS as `SETTINGS_FRAMES`: each may touch every stream. The
            one reset that answers our own early end of a stream is none: Envoy sends it for every exchange.
        useless_streams: streams reset before they carried anything, by either side.
    """

    max_streams: int = 1024
    stream_window_bytes: int = 4 * 1024 * 1024
    connection_window_bytes: int = 64 * 1024 * 1024
    max_frame_bytes: int = 256 * 1024
    max_control_bytes: int = 32 * 1024
    max_header_list_bytes: int = 16 * 1024
    max_continuations: int = 32
    idle_frames: Rate = Rate(10_000, 1000)
    useless_streams: Rate = Rate(1000, 100)


def announced(limits: Limits) -> dict[Setting, int]:
    """Make the settings that the other side is sent."""
    return {
        Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
    }


class Bucket:
    """A token bucket that its owner may overdraw: the cost of work is known once it is done.

    Args:
        rate: how it fills.
        units: in it at first, None for a full one.
        now_s: the time; without it the first refill starts the time.

    Attributes:
        units: left as of the last refill; whoever works subtracts.
    """

    __slots__ = ("_filled_s", "_rate", "units")

    def __init__(self, rate: Rate, units: float | None = None, now_s: float = float("-inf")) -> None:
        self._rate, self._filled_s = rate, now_s
        self.units = rate.burst if units is None else units

    def refill(self, now_s: float) -> float:
        """Add what the time has brought, to a debt of at most one burst; the units left."""
        waited_s = now_s - self._filled_s
        if waited_s > 0:
            rate = self._rate
            self.units = min(rate.burst, max(self.units, -rate.burst) + waited_s * rate.per_s)
            self._filled_s = now_s
        return self.units

    def take(self, now_s: float, units: int = 1) -> bool:
        """Take units; whether there were so many."""
        if self.refill(now_s) < units:
            return False
        self.units -= units
        return True
