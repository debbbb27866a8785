"""What a long link does to packets: holds, reorders never, loses some.

Pure: packets and times in, packets out. Which packets are lost depends on their number and a seed alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from epp.keyed_uniform import keyed_uniform


@dataclass(frozen=True, slots=True)
class Shape:
    """One direction of a link.

    Attributes:
        delay_ms: how long a packet is under way.
        loss: share of packets that never arrive, 0 to 1.
        cut: nothing arrives.
    """

    delay_ms: float = 0.0
    loss: float = 0.0
    cut: bool = False


class Line:
    """One direction of a link at work.

    Args:
        shape: what it does; may be replaced while packets are under way.
        seed: which packets are lost.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self._seed = shape, seed
        self._packets: deque[tuple[float, bytes]] = deque()
        self._taken, self._last_s = 0, 0.0

    def take(self, packet: bytes, now_s: float) -> None:
        """Let a packet enter the link; no earlier one is overtaken, even where the delay has shrunk."""
        self._taken += 1
        if self.shape.cut or keyed_uniform(self._seed, str(self._taken), "loss") < self.shape.loss:
            return
        self._last_s = max(now_s + self.shape.delay_ms / 1e3, self._last_s)
        self._packets.append((self._last_s, packet))

    def arrived(self, now_s: float) -> list[bytes]:
        """Take out the packets that leave the link by now, in order; those of a cut link never do."""
        packets = []
        while self._packets and self._packets[0][0] <= now_s:
            packets.append(self._packets.popleft()[1])
        return [] if self.shape.cut else packets

    @property
    def next_s(self) -> float | None:
        """Return when the next packet arrives; None for an empty link."""
        return self._packets[0][0] if self._packets else None
