"""Real TCP over links of our own. Root and TUN only; elsewhere skipped with the reason.

Times are compared with the round trip asked for and with each other, never with a clock's idea of fast.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epp_lab.wan.delay import Shape
from epp_lab.wan.network import HUB, Network, remove_stale, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NEAR_S, FAR_S = 0.02, 0.3
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
connection = socket.create_connection((host, port), timeout=240)
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
    done = subprocess.run(
        network.command(HUB, *arguments), check=True, capture_output=True, timeout=240, env=dict(os.environ)
    )
    seconds: list[float] = json.loads(done.stdout)
    return seconds


@pytest.fixture(scope="module")
def wan() -> Iterator[Network]:
    """Two regions, 20 and 300 ms away."""
    regions = {"near": Shape(delay_ms=NEAR_S * 500), "far": Shape(delay_ms=FAR_S * 500)}
    with running(regions) as network:
        yield network


def namespaces(pid: int | None = None) -> list[str]:
    """Those that this process made, or another one: others on the machine may come and go meanwhile."""
    made_by = f"epp-wan-{pid or os.getpid()}-*"
    return sorted(path.name for path in Path("/run/netns").glob(made_by))


def test_a_round_trip_takes_as_long_as_asked(wan: Network) -> None:
    """A connect is one round trip; the least of several, because a busy machine only ever adds."""
    near_s = min(timed(wan, "near", [])[0] for _ in range(5))
    far_s = min(timed(wan, "far", [])[0] for _ in range(3))
    assert NEAR_S <= near_s < FAR_S
    assert FAR_S <= far_s < 2 * FAR_S


def test_regions_reach_each_other_through_the_hub_and_what_they_send_is_counted() -> None:
    """A connect takes both links' round trips."""
    require_network()
    script = "import socket, sys; socket.create_connection((sys.argv[1], 9000), timeout=240)"
    with Network({"one": Shape(NEAR_S * 500), "two": Shape(FAR_S * 500)}, routed=True) as network:
        server = (sys.executable, "-c", _SERVER, network.address("two"), str(PORT))
        with subprocess.Popen(network.command("two", *server), stdout=subprocess.PIPE) as listening:
            assert listening.stdout is not None
            assert listening.stdout.readline() == b"up\n"
            before, began_s = network.sent_bytes("one"), time.monotonic()
            asking = network.command("one", sys.executable, "-c", script, network.address("two"))
            subprocess.run(asking, check=True, timeout=240)
            assert time.monotonic() - began_s >= NEAR_S + FAR_S
            assert network.sent_bytes("one") > before
            listening.kill()


def test_links_change_while_they_run(wan: Network) -> None:
    wan.change("far", delay_ms=0.0)
    try:
        assert min(timed(wan, "far", [])[0] for _ in range(5)) < FAR_S
    finally:
        wan.change("far", delay_ms=FAR_S * 500)
    assert timed(wan, "far", [])[0] >= FAR_S


def test_nothing_is_left_behind() -> None:
    require_network()
    before = namespaces()
    with Network({"one": Shape()}) as network:
        assert network.namespace("one") in namespaces()
    assert namespaces() == before


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    require_network()
    script = (
        "from epp_lab.wan.network import Network\nfrom epp_lab.wan.delay import Shape\n"
        "with Network({'one': Shape()}):\n    print('made', flush=True)\n    input()\n"
    )
    child = subprocess.Popen(
        (sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"made\n"
    assert len(namespaces(child.pid)) == 2
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    child.stdin.close()
    remove_stale()
    assert not namespaces(child.pid)
