"""What a long link does to packets: holds, reorders never, loses some, lets so many bytes a second through.

Pure: packets and times in, packets out. Knows no socket and no clock. Randomness is keyed by the packet's
number, so a link with the same seed loses the same packets.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from epp.errors import ConfigError
from epp.keyed_uniform import keyed_uniform


@dataclass(frozen=True, slots=True)
class Shape:
    """One direction of a link.

    Attributes:
        delay_ms: how long a packet is under way.
        jitter_ms: up to so much more or less, uniformly; order is kept, so late packets hold others up.
        loss: share of packets that never arrive, 0 to 1.
        rate_mbit: bits that pass in a second, in millions; 0 for no limit.
        cut: nothing arrives.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    rate_mbit: float = 0.0
    cut: bool = False

    def __post_init__(self) -> None:
        """Reject what no link does.

        Raises:
            ConfigError: naming the field.
        """
        for name in ("delay_ms", "jitter_ms", "rate_mbit"):
            if getattr(self, name) < 0:
                raise ConfigError("link", name, "must not be below 0")
        if not 0 <= self.loss <= 1:
            raise ConfigError("link", "loss", "must be from 0 to 1", "0.005 is half a percent")


class Line:
    """One direction of a link at work.

    Args:
        shape: what it does; may be replaced while packets are under way.
        seed: which packets are lost and how they jitter.

    Attributes:
        taken: packets offered.
        lost: of these, those that will never arrive.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self._seed = seed
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._sent_s = self._last_s = 0.0
        self.taken = self.lost = 0

    def take(self, packet: bytes, now_s: float) -> None:
        """A packet enters the link."""
        shape, number = self.shape, str(self.taken)
        self.taken += 1
        if shape.cut or (shape.loss and keyed_uniform(self._seed, number, "loss") < shape.loss):
            self.lost += 1
            return
        sent_s = now_s
        if shape.rate_mbit:
            sent_s = self._sent_s = max(now_s, self._sent_s) + len(packet) * 8 / (shape.rate_mbit * 1e6)
        delay_ms = shape.delay_ms
        if shape.jitter_ms:
            delay_ms += shape.jitter_ms * (2 * keyed_uniform(self._seed, number, "jitter") - 1)
        self._last_s = max(sent_s + max(0.0, delay_ms) / 1e3, self._last_s)
        self._under_way.append((self._last_s, packet))

    def arrived(self, now_s: float) -> list[bytes]:
        """Packets that leave the link by now, in order; those of a cut link never do."""
        packets = []
        while self._under_way and self._under_way[0][0] <= now_s:
            packet = self._under_way.popleft()[1]
            if self.shape.cut:
                self.lost += 1
            else:
                packets.append(packet)
        return packets

    @property
    def next_s(self) -> float | None:
        """When the next packet arrives; None for an empty link."""
        return self._under_way[0][0] if self._under_way else None
