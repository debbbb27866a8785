"""The process that is the distance: reads packets from TUN devices, holds them, writes them at the other end.

    python -m epp.wan.delay < commands

Started by `epp.wan.network` alone, which speaks to it in JSON lines. The first line lists links, each with
its two devices and their namespaces; the answer is one line, ``up``. Every further line replaces the shape
of one link. The devices vanish with the process, and it ends when its standard input does, so with its
parent. Real TCP runs over it: handshakes, slow start, loss recovery and congestion control are the kernel's
own.

Its rules: order is kept; nothing is copied but the packet; no packet waits for another link's.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from typing import Any

from epp.wan.shape import Line, Shape

# <linux/if_tun.h>: TUNSETIFF; IFF_TUN without the four bytes of packet information.
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x0001 | 0x1000
_IFREQ = struct.Struct("16sH22x")
# <linux/prctl.h>. The default slack of 50 us is added to every wait.
_PR_SET_TIMERSLACK, _SLACK_NS = 29, 1
_PACKET_BYTES = 65_536
#: Packets read from one device before the others have their turn.
_AT_ONCE = 64
_TX_QUEUE_PACKETS = "10000"


def new_tun() -> tuple[int, str]:
    """A TUN device in this namespace, gone when its file is closed; the file and its name.

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


def open_tun(end: dict[str, str]) -> int:
    """A TUN device in a namespace, up and addressed; the file to read and write its packets with.

    Args:
        end: ``namespace``, ``device``, ``address`` and ``peer``, the address at the other end.

    Raises:
        OSError: no TUN on this machine, or no right to it.
        subprocess.CalledProcessError: the namespace or the addresses are wrong.
    """
    file, name = new_tun()
    namespace, device = end["namespace"], end["device"]
    _ip("link", "set", name, "netns", namespace, "name", device)
    _ip("-n", namespace, "addr", "add", end["address"], "peer", end["peer"], "dev", device)
    _ip("-n", namespace, "link", "set", device, "up", "txqueuelen", _TX_QUEUE_PACKETS)
    return file


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)  # noqa: S603, S607  # names of ours, on PATH as usual


class Links:
    """All links of the process: devices, lines and who waits for what."""

    def __init__(self, described: list[dict[str, Any]]) -> None:
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, tuple[Line, int]] = {}  # device -> where its packets go, and at which device
        self._of_link: dict[str, tuple[Line, Line]] = {}
        for link in described:
            near, far = open_tun(link["ends"][0]), open_tun(link["ends"][1])
            shape, seed = Shape(**link["shape"]), link["seed"]
            there, back = Line(shape, 2 * seed), Line(shape, 2 * seed + 1)
            self._lines |= {near: (there, far), far: (back, near)}
            self._of_link[link["name"]] = there, back
        for device in self._lines:
            self._selector.register(device, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        os.set_blocking(0, False)
        self._commands = b""

    def run(self) -> None:
        """Until standard input ends."""
        while True:
            for key, _ in self._selector.select(self._wait_s()):
                if key.fd != 0:
                    self._read(key.fd)
                elif not self._command():
                    return
            for line, device in self._lines.values():
                for packet in line.arrived(time.monotonic()):
                    _write(device, packet)

    def _wait_s(self) -> float | None:
        due = [line.next_s for line, _ in self._lines.values() if line.next_s is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _read(self, device: int) -> None:
        line = self._lines[device][0]
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(device, _PACKET_BYTES)
            except BlockingIOError:
                return
            line.take(packet, time.monotonic())

    def _command(self) -> bool:
        """Take what has come on standard input; False at its end."""
        text = os.read(0, _PACKET_BYTES)
        self._commands += text
        *lines, self._commands = self._commands.split(b"\n")
        for line in lines:
            command = json.loads(line)
            for direction in self._of_link[command["name"]]:
                direction.shape = Shape(**command["shape"])
        return bool(text)


def _write(device: int, packet: bytes) -> None:
    try:
        os.write(device, packet)
    except OSError:
        # A full queue or a device that is down: lost, as on any link.
        return


def main() -> None:
    """Read the links, make them, run."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
    # Unbuffered: later lines stay where the loop finds them.
    with open(0, "rb", buffering=0, closefd=False) as commands:  # a descriptor, no path
        links = Links(json.loads(commands.readline()))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    links.run()


if __name__ == "__main__":
    main()
