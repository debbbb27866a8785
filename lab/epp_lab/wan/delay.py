"""The process that is the distance: reads packets from TUN devices, holds them, writes them at the other end.

    python -m epp_lab.wan.delay < commands

Started by `epp_lab.wan.network` alone, which speaks to it in JSON lines. The first line lists links, each
with its two devices and their namespaces; the answer is one line, ``up``. Every further line replaces the
shape of one link. The devices vanish with the process, and it ends when its standard input does, so with its
parent. Real TCP runs over it: handshakes, slow start, loss recovery and congestion control are the kernel's
own.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from epp.keyed_uniform import keyed_uniform

# <linux/if_tun.h>: TUNSETIFF; IFF_TUN without the four bytes of packet information.
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x0001 | 0x1000
_IFREQ = struct.Struct("16sH22x")
_PACKET_BYTES = 65_536
#: Packets read from one device before the others have their turn.
_AT_ONCE = 64
_TX_QUEUE_PACKETS = "10000"


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


class DelayLine:
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


def new_tun() -> tuple[int, str]:
    """Make a TUN device in this namespace, gone when its file is closed; the file and its name.

    Raises:
        OSError: no TUN on this machine, or no right to it.
    """
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        # The kernel numbers it; the name is final only inside the namespace.
        made = fcntl.ioctl(file, _TUNSETIFF, _IFREQ.pack(b"eppwan%d", _IFF_TUN_NO_PI))
    except OSError:
        os.close(file)
        raise
    return file, _IFREQ.unpack(made)[0].rstrip(b"\0").decode()


def open_tun(namespace: str, device: str, address: str, peer: str) -> int:
    """Make a TUN device in a namespace, up and addressed; the file to read and write its packets with.

    Raises:
        OSError: no TUN on this machine, or no right to it.
        subprocess.CalledProcessError: the namespace or the addresses are wrong.
    """
    file, name = new_tun()
    for words in (
        ("link", "set", name, "netns", namespace, "name", device),
        ("-n", namespace, "addr", "add", address, "peer", peer, "dev", device),
        ("-n", namespace, "link", "set", device, "up", "txqueuelen", _TX_QUEUE_PACKETS),
    ):
        subprocess.run(("ip", *words), check=True)  # noqa: S603, S607  # names of ours, on PATH as usual
    return file


class Links:
    """All links of the process: which packets are where.

    Args:
        described: a link's name, shape, seed and both ends.
    """

    def __init__(self, described: list[dict[str, Any]]) -> None:
        # device -> where its packets go, and at which device
        self._lines: dict[int, tuple[DelayLine, int]] = {}
        self._of_link: dict[str, tuple[DelayLine, DelayLine]] = {}
        for link in described:
            near, far = (open_tun(**end) for end in link["ends"])
            shape, seed = Shape(**link["shape"]), link["seed"]
            there, back = DelayLine(shape, 2 * seed), DelayLine(shape, 2 * seed + 1)
            self._lines |= {near: (there, far), far: (back, near)}
            self._of_link[link["name"]] = there, back

    def run(self, commands: Any) -> None:
        """Move packets until the commands end."""
        selector = selectors.DefaultSelector()
        for file in (*self._lines, commands.fileno()):
            selector.register(file, selectors.EVENT_READ)
        while True:
            due_s = [line.next_s for line, _ in self._lines.values() if line.next_s is not None]
            for key, _ in selector.select(max(0.0, min(due_s) - time.monotonic()) if due_s else None):
                if key.fd in self._lines:
                    self._read(key.fd)
                elif text := commands.readline():
                    command = json.loads(text)
                    for line in self._of_link[command["name"]]:
                        line.shape = Shape(**command["shape"])
                else:
                    return
            for line, device in self._lines.values():
                for packet in line.arrived(time.monotonic()):
                    _write(device, packet)

    def _read(self, device: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(device, _PACKET_BYTES)
            except BlockingIOError:
                return
            self._lines[device][0].take(packet, time.monotonic())


def _write(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:
        # A full queue or a device that is down: lost, as on any link.
        return


def main() -> None:
    """Read the links, make them, run."""
    # Unbuffered: later lines stay where the loop finds them.
    with open(0, "rb", buffering=0, closefd=False) as commands:  # a descriptor, no path
        links = Links(json.loads(commands.readline()))
        sys.stdout.write("up\n")
        sys.stdout.flush()
        links.run(commands)


if __name__ == "__main__":
    main()
