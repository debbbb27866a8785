"""An attacking process, niced: `python -m tests.attacks.attacker ADDRESS [tls]`, orders on its standard input.

An order is a line of JSON: an attack's name, connections, seconds since the first one, the address to come from.
A line is printed when it begins, and one with counts when its time is over and all connections are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from epp.config.address import split_address
from tests.attacks.floods import FLOODS, Flood
from tests.attacks.peers import attack
from tests.kit import certificates

if TYPE_CHECKING:
    import ssl

_NICE = 10
#: The first bytes of a record of TLS, and then silence.
_HANDSHAKE = b"\x16\x03\x01"
#: Cut by a reset: connections that wait a minute for their end would use up the ports.
_NO_LINGER = struct.pack("ii", 1, 0)


async def _peer(flood: Flood, greeting: bytes, connect: dict[str, Any], tally: Counter[str]) -> None:
    """One connection, and the next as soon as it is over."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(**connect)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        tally["made"] += 1
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        reading = asyncio.ensure_future(_drain(reader))
        try:
            writer.write(greeting)
            for blob in flood.blobs():
                writer.write(blob)
                await writer.drain()
                await asyncio.sleep(0)
                if reading.done():
                    break
            if flood.holds:
                await reading
        except OSError:
            tally["ended"] += 1
        else:
            tally["ended"] += reading.done()
        finally:
            reading.cancel()
            writer.transport.abort()


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 18):
            pass


async def _attack(address: str, tls: ssl.SSLContext | None, order: dict[str, Any]) -> Counter[str]:
    # uvloop logs what it raises inside of TLS when a connection is cut.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    (host, port), flood = split_address(address), FLOODS[order["name"]]
    connect = {"host": host, "port": port, "local_addr": (order["source"], 0)}
    greeting = _HANDSHAKE if flood.raw and tls else flood.greeting
    if tls and not flood.raw:
        connect["ssl"] = tls
    tally = Counter(made=0, ended=0)
    peers = asyncio.gather(*(_peer(flood, greeting, connect, tally) for _ in range(order["connections"])))
    while not (tally["made"] or peers.done()):  # it is niced: on a busy machine that alone may take the time
        await asyncio.sleep(0.01)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(peers, order["seconds"])
    return tally


def main() -> None:
    """Carry out orders."""
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # where the kernel groups sessions, a nice value counts within one
        Path("/proc/self/autogroup").write_text(str(_NICE))
    tls = certificates.trusting() if "tls" in sys.argv else None
    for line in sys.stdin:
        order = json.loads(line)
        if order["name"] in FLOODS:
            for _ in zip(range(2), FLOODS[order["name"]].blobs(), strict=False):
                pass  # what takes long is made before it begins
        print(flush=True)
        work = _attack(sys.argv[1], tls, order) if order["name"] in FLOODS else attack(sys.argv[1], order)
        print(json.dumps(uvloop.run(work)), flush=True)


if __name__ == "__main__":
    main()
