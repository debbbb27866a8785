"""An attacking process, niced: `python -m tests.attacks.attacker ADDRESS [tls]`, orders on its standard input.

An order is a line of JSON: an attack's name, connections, seconds, the address to come from. A line is printed
when it begins, and what happened when its time is over and all connections are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from epp.config.address import split_address
from tests.attacks.floods import FLOODS, Flood

_NICE = 10
#: The first bytes of a record of TLS, and then silence.
_HANDSHAKE = b"\x16\x03\x01"


@dataclass
class Tally:
    """Connections that were made, that the picker ended, that were not taken; bytes handed to the kernel."""

    made: int = 0
    ended: int = 0
    refused: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True)
class Target:
    """Whom one order is for."""

    host: str
    port: int
    source: str
    tls: ssl.SSLContext | None


def client_tls() -> ssl.SSLContext:
    """TLS that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def _peer(flood: Flood, target: Target, tally: Tally) -> None:
    """One connection, and the next as soon as it is over."""
    tls = None if flood.raw else target.tls
    greeting = _HANDSHAKE if flood.raw and target.tls else flood.greeting
    while True:
        try:
            reader, writer = await asyncio.open_connection(
                target.host, target.port, local_addr=(target.source, 0), ssl=tls
            )
        except OSError:
            tally.refused += 1
            await asyncio.sleep(0.02)
            continue
        tally.made += 1
        # Cut by a reset: a connection that waits for its end for a minute would use up the ports.
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        reading = asyncio.ensure_future(_drain(reader))
        try:
            await _send(flood, greeting, writer, reading, tally)
        except OSError:
            tally.ended += 1
        else:
            tally.ended += reading.done()
        finally:
            reading.cancel()
            writer.transport.abort()


async def _send(
    flood: Flood, greeting: bytes, writer: asyncio.StreamWriter, reading: asyncio.Future[None], tally: Tally
) -> None:
    writer.write(greeting)
    for blob in flood.blobs():
        writer.write(blob)
        await writer.drain()
        tally.sent_bytes += len(blob)
        await asyncio.sleep(0)
        if reading.done():
            return
    if flood.holds:
        await writer.drain()
        await reading


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 18):
            pass


async def _attack(flood: Flood, target: Target, connections: int, seconds: float) -> Tally:
    tally = Tally()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(_peer(flood, target, tally) for _ in range(connections)))
    return tally


def main() -> None:
    """Carry out orders."""
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # where the kernel groups sessions, a nice value counts within one
        Path("/proc/self/autogroup").write_text(str(_NICE))
    (host, port), tls = split_address(sys.argv[1]), client_tls() if "tls" in sys.argv else None
    for line in sys.stdin:
        order = json.loads(line)
        target, flood = Target(host, port, order["source"], tls), FLOODS[order["name"]]
        for _ in zip(range(2), flood.blobs(), strict=False):
            pass  # what takes long is made before it begins
        print(flush=True)
        tally = uvloop.run(_attack(flood, target, order["connections"], order["seconds"]))
        print(json.dumps(asdict(tally)), flush=True)


if __name__ == "__main__":
    main()
