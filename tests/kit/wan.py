"""A network with distance for tests, and a tiny server and client that measure over it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from epp.lab.wan.network import HUB, Network, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epp.lab.wan.shape import Shape

PORT = 9000

_SERVER = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
def serve(connection):
    with connection:
        while need := int.from_bytes(connection.recv(4), "big"):
            while need > 0:
                need -= len(connection.recv(min(need, 65536)) or b" " * need)
            connection.sendall(b"k")
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

_CLIENT = """
import json, socket, sys, time
host, port, sizes = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
started = time.monotonic()
connection = socket.create_connection((host, port), timeout=30)
took = [time.monotonic() - started]
for size in sizes:
    started = time.monotonic()
    connection.sendall(size.to_bytes(4, "big") + bytes(size))
    assert connection.recv(1) == b"k"
    took.append(time.monotonic() - started)
print(json.dumps(took))
"""


def require_network() -> None:
    """Skip the calling test where no such network can be made, saying why."""
    if reason := why_not():
        pytest.skip(reason)


@contextmanager
def running(regions: Mapping[str, Shape]) -> Iterator[Network]:
    """A network with a server in each region that takes a length and so many bytes, and answers one."""
    require_network()
    servers: list[subprocess.Popen[bytes]] = []
    with Network(regions) as network:
        try:
            for region in regions:
                arguments = (sys.executable, "-c", _SERVER, network.address(region), str(PORT))
                server = subprocess.Popen(network.command(region, *arguments), stdout=subprocess.PIPE)
                servers.append(server)
                assert server.stdout is not None
                assert server.stdout.readline() == b"up\n"
            yield network
        finally:
            for server in servers:
                server.kill()
                server.wait()
                assert server.stdout is not None
                server.stdout.close()


def timed(network: Network, region: str, sizes: Sequence[int]) -> list[float]:
    """Seconds for a connect from the hub, then for each body in turn, sent on that one connection."""
    arguments = (sys.executable, "-c", _CLIENT, network.address(region), str(PORT), json.dumps(list(sizes)))
    done = subprocess.run(network.command(HUB, *arguments), check=True, capture_output=True, timeout=120)
    seconds: list[float] = json.loads(done.stdout)
    return seconds
