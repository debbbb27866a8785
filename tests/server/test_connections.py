"""How many connections a gRPC listener takes at once, on real sockets, and what becomes of those beyond."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from grpc_health.v1 import health_pb2

from epp.clock import ManualClock
from epp.config.listen import ServerTls
from epp.server.accepting import Acceptor, allow_files, allowed_connections
from epp.server.rpc_server import RpcServer
from epp.server.sparse_log import SparseLog
from epp.server.tls import rpc_context
from tests.kit.http2 import message
from tests.kit.logs import own_lines
from tests.kit.rawpeer import RawPeer, Serving, until
from tests.kit.transports import BOTH, BUILTIN

if TYPE_CHECKING:
    from pathlib import Path

CHECK = b"/grpc.health.v1.Health/Check"
REFUSED = 'epp_connections_refused_total{listener="grpc"}'


async def answered(peer: RawPeer) -> bool:
    """Whether a health check is answered, False when the other side hangs up instead."""
    peer.open(1, CHECK, ((b"te", b"trailers"),))
    peer.write(peer.client.data(1, message(health_pb2.HealthCheckRequest().SerializeToString()), end=True))
    await until(lambda: peer.ended() or (1 in peer.told and peer.told[1].status))
    return not peer.ended()


@pytest.mark.parametrize("transport", BOTH)
async def test_connections_beyond_the_bound_are_closed_and_room_is_made_by_those_that_go(
    tmp_path: Path, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    serving = await Serving.start(
        tmp_path, ManualClock(), listen={"transport": transport, "max_connections": 3}
    )
    caplog.clear()
    inside = [await RawPeer.connect(serving.address) for _ in range(3)]
    for peer in inside[:2]:  # the third says nothing but its greeting
        assert await answered(peer)
    for _ in range(20):
        outside = await RawPeer.connect(serving.address)
        await until(outside.ended)
        await outside.close()
    assert not any(peer.ended() for peer in inside)
    if transport == BUILTIN:
        assert await serving.metric(REFUSED) == 20
        assert own_lines(caplog, logging.WARNING) == ["a connection was closed at once: 3 are open"]
    await inside.pop().close()
    async with asyncio.timeout(30):
        while not await answered(late := await RawPeer.connect(serving.address)):
            await late.close()
    for peer in (*inside, late):
        await peer.close()
    await serving.stop()


async def test_handshakes_that_nobody_ends_count(tmp_path: Path) -> None:
    context = rpc_context(ServerTls(self_signed=True), tmp_path, "epp.yaml")
    refused = asyncio.Semaphore(0)
    server = RpcServer(
        {},
        max_receive_bytes=1000,
        max_send_bytes=1000,
        tls=context,
        max_connections=2,
        on_refused=refused.release,
    )
    host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    for _ in range(3):
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b"", "no handshake is begun"
        writer.close()
        await refused.acquire()
    silent.pop()[1].close()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    trusting.set_alpn_protocols(["h2"])
    async with asyncio.timeout(30):
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
            except OSError:
                continue
            assert await reader.readexactly(9), "its greeting"
            break
    writer.close()
    silent.pop()[1].close()
    await server.stop(0)


async def test_a_connection_that_is_taken_in_the_turn_of_a_stop_is_closed(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Its task is cancelled before its first step: nobody left its socket to the garbage collector."""
    acceptor = Acceptor(
        asyncio.Protocol,
        most=2,
        tls=None,
        lines=SparseLog(logging.getLogger(__name__)),
        on_refused=lambda: None,
    )
    bound = socket.create_server(("127.0.0.1", 0))
    acceptor.listen(bound)
    with socket.create_connection(bound.getsockname()) as client:
        acceptor._accept(bound)
        acceptor.close()
        await asyncio.sleep(0)
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    gc.collect()
    assert not recwarn.list
    assert not acceptor._beginning


async def test_without_a_file_to_accept_with_the_loop_does_not_turn_about_the_socket(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.server.accepting._PAUSE_S", 3600.0)
    server = RpcServer({}, max_receive_bytes=1000, max_send_bytes=1000)
    host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")
    acceptor, loop = server._acceptor, asyncio.get_running_loop()
    assert acceptor is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            await loop.sock_connect(client, (host, int(port)))
            await until(lambda: "no connection can be taken" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not loop.remove_reader(acceptor._sockets[0]), "nobody listens until the pause is over"
        acceptor._go_on()
        assert await loop.sock_recv(client, 9), "its greeting"
    await server.stop(0)


def test_connections_leave_files_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 20_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    assert allowed_connections(100) == 100
    assert allowed_connections(4096) == 128
    allow_files()
    assert limits[-1] == (20_000, 20_000)
    assert allowed_connections(4096) == 2500
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    allow_files()
    assert limits[-1] == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert allowed_connections(4096) == 4096
