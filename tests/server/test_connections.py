"""How many connections a gRPC listener takes at once, on real sockets, and what becomes of those beyond."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from grpc_health.v1 import health_pb2

from epp.config.address import split_address
from epp.config.listen import ServerTls
from epp.rpc.accepting import Acceptor
from epp.rpc.http2 import frames
from epp.rpc.http2.connection import Call, Connection
from epp.rpc.http2.frames import ErrorCode
from epp.rpc.server import RpcConnection, RpcServer
from epp.server.tls import GRPC_SECTION, Certificates
from tests.kit import certificates
from tests.kit.clock import ManualClock
from tests.kit.http2 import message, settings
from tests.kit.logs import own_lines
from tests.kit.rawpeer import RawPeer, Serving
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CHECK = b"/grpc.health.v1.Health/Check"
REFUSED = 'epp_connections_closed_total{listener="grpc",reason="limit"}'


async def answered(peer: RawPeer, number: int = 1) -> bool:
    """Whether a health check is answered, False when the other side hangs up instead."""
    peer.open(number, CHECK, ((b"te", b"trailers"),))
    asked = message(health_pb2.HealthCheckRequest().SerializeToString())
    peer.write(peer.client.data(number, asked, end=True))
    await until(lambda: peer.ended() or (number in peer.told and peer.told[number].status))
    return not peer.ended()


async def busy(serving: Serving, source: str) -> RawPeer:
    """A connection with an open stream."""
    peer = await serving.connect(source=source)
    peer.open(1)
    await peer.round_trip()
    return peer


async def test_a_peer_has_half_of_the_places_for_connections_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serving = await Serving.start(tmp_path, ManualClock(), listen={"max_connections": 4})
    caplog.clear()
    inside = [await busy(serving, "127.0.0.1") for _ in range(2)]
    for _ in range(20):
        outside = await serving.connect()
        await until(outside.ended)
        await outside.close()
    assert await serving.metric(REFUSED) == 20
    assert set(own_lines(caplog, logging.WARNING)) == {
        "a connection was closed at once: no place was left for its peer"
    }
    inside += [await busy(serving, "127.0.0.2") for _ in range(2)]
    outside = await serving.connect(source="127.0.0.3")
    await until(outside.ended)
    assert not any(peer.ended() for peer in inside)
    await inside.pop().close()
    async with asyncio.timeout(240):
        while not await answered(late := await serving.connect(source="127.0.0.3")):
            await late.close()
    await serving.stop()


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.3"], ids=["of the same peer", "of another"])
async def test_the_oldest_idle_connection_of_the_peer_with_the_most_makes_room(
    tmp_path: Path, source: str
) -> None:
    serving = await Serving.start(tmp_path, listen={"max_connections": 4})
    used = await busy(serving, "127.0.0.1")
    idle = [await serving.connect() for _ in range(2)]
    await until(idle[0].ended)
    assert idle[0].goaway == ErrorCode.NO_ERROR, "three are more than half"
    others = [await serving.connect(source="127.0.0.2") for _ in range(2)]
    for peer in (idle[1], *others):
        await peer.round_trip()
    late = await serving.connect(source=source)
    assert await answered(late)
    await until(idle[1].ended)
    assert await serving.metric('epp_connections_closed_total{listener="grpc",reason="room"}') == 2
    assert not any(peer.ended() for peer in (used, *others))
    await serving.stop()


async def test_connections_taken_in_one_turn_make_the_oldest_go_and_not_each_other(tmp_path: Path) -> None:
    serving = await Serving.start(tmp_path, listen={"max_connections": 8})
    idle = [await serving.connect() for _ in range(4)]
    for peer in idle:
        await peer.round_trip()
    late = [socket.create_connection(split_address(serving.address)) for _ in range(3)]
    await until(lambda: all(peer.ended() for peer in idle[:3]))
    assert not idle[3].ended()
    for taken in late:
        taken.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(taken, 9), "it is greeted"
        taken.close()
    await serving.stop()


async def test_a_connection_that_never_carried_a_call_makes_room_before_those_that_did(
    tmp_path: Path,
) -> None:
    serving = await Serving.start(tmp_path, listen={"max_connections": 6})
    first = await serving.connect()
    assert await answered(first)
    unused = await serving.connect()
    await unused.round_trip()
    second = await serving.connect()
    assert await answered(second)
    third = await serving.connect()
    assert await answered(third)
    await until(unused.ended)
    listener: Any = serving.app._grpc._listener
    for connection in listener._connections:
        connection.used_s -= 2.0
    late = await serving.connect()
    assert await answered(late)
    await until(first.ended)
    assert not any(peer.ended() for peer in (second, third, late)), "the first was unused for longest"
    await serving.stop()


async def test_handshakes_that_nobody_ends_keep_no_place(tmp_path: Path) -> None:
    context = Certificates(tmp_path, "epp.yaml").context(ServerTls(self_signed=True), GRPC_SECTION)
    server = RpcServer({}, max_receive_bytes=1000, max_send_bytes=1000, tls=context, max_connections=2)
    host, _, port = (await server.start("127.0.0.1:0")).rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    for reader, _ in silent[:2]:
        assert await reader.read() == b"", "its place was needed"
    reader, writer = await asyncio.open_connection(host, int(port), ssl=certificates.trusting())
    assert await reader.readexactly(9), "its greeting"
    assert await silent[2][0].read() == b""
    deaf: Any = writer.transport
    deaf.pause_reading()
    await server.stop(0)
    assert not server._connections, "it does not answer the end of TLS"
    for transport in (deaf, *(other.transport for _, other in silent)):
        transport.abort()


async def test_a_client_certificate_is_a_peer_wherever_it_comes_from(tmp_path: Path) -> None:
    pairs = []
    for name in ("one", "other"):
        pair = certificates.self_signed(tmp_path / f"{name}.crt", tmp_path / f"{name}.key", name)
        pairs.append(pair)
    (tmp_path / "ca.crt").write_bytes(b"".join(cert.read_bytes() for cert, _ in pairs))
    mutual = ServerTls(cert_file="one.crt", key_file="one.key", client_ca_file="ca.crt")
    server = RpcServer(
        {},
        max_receive_bytes=1000,
        max_send_bytes=1000,
        tls=Certificates(tmp_path, "epp.yaml").context(mutual, GRPC_SECTION),
    )
    address = await server.start("127.0.0.1:0")
    clients = []
    for (cert, key), source in ((pairs[0], "127.0.0.1"), (pairs[0], "127.0.0.2"), (pairs[1], "127.0.0.1")):
        context = certificates.trusting()
        context.load_cert_chain(cert, key)
        clients.append(await RawPeer.connect(address, source=source, tls=context))
        await clients[-1].round_trip()
    acceptor = server._acceptor
    assert acceptor is not None
    assert [len(client.connections) for client in acceptor._clients.by_connections()] == [2, 1, 0, 0]
    for client in clients:
        await client.close()
    await until(lambda: not acceptor._places)
    await server.stop(0)


async def test_a_connection_without_streams_for_minutes_is_drained(tmp_path: Path) -> None:
    serving = await Serving.start(tmp_path)
    server = serving.app._grpc._listener
    assert isinstance(server, RpcServer)
    idle, crossing, used = [await serving.connect() for _ in range(3)]
    used.open(1)
    for peer in (idle, crossing, used):
        await peer.round_trip()
    for connection in server._connections:
        connection.used_s -= 301.0
    server._end_long_idle()
    assert await answered(crossing), "a request that crosses the GOAWAY is not lost"
    await until(lambda: idle.goaway == ErrorCode.NO_ERROR)
    assert crossing.goaway == ErrorCode.NO_ERROR
    assert await serving.metric('epp_connections_closed_total{listener="grpc",reason="idle"}') == 2
    for connection in server._connections:
        connection.used_s -= 60.0
    server._end_long_idle()  # it has not answered the PING
    await until(idle.ended)
    assert not any(peer.ended() for peer in (crossing, used))
    used.reset(1)
    await used.round_trip()
    server._end_long_idle()
    assert used.goaway is None, "its stream was open a moment ago"
    await serving.stop()


async def test_who_is_still_sending_reads_why_its_connection_ends() -> None:
    server = RpcServer({}, max_receive_bytes=1000, max_send_bytes=1000)
    address = await server.start("127.0.0.1:0")
    loop = asyncio.get_running_loop()
    with socket.create_connection(split_address(address)) as client:
        client.setblocking(False)
        ping = frames.frame(frames.PING, 0, 3, bytes(8))  # of a stream
        client.sendall(frames.PREFACE + settings() + ping[:-1])
        read = b""
        while b"type 6 on stream 3" not in read:
            read += await loop.sock_recv(client, 1 << 16)
        client.sendall(ping[-1:])
        assert await loop.sock_recv(client, 1) == b""
    await server.stop(0)


async def test_a_connection_that_is_taken_in_the_turn_of_a_stop_is_closed(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Its task is cancelled before its first step: nobody left its socket to the garbage collector."""
    acceptor = Acceptor(
        asyncio.Protocol,
        most=2,
        tls=None,
        on_refused=lambda: None,
    )
    with socket.create_connection(split_address(acceptor.listen("127.0.0.1:0"))) as client:
        acceptor._accept(acceptor._sockets[0])
        acceptor.close()
        await asyncio.sleep(0)
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    gc.collect()
    assert not recwarn.list
    assert not acceptor._beginning


async def test_a_connection_that_was_reset_before_it_is_taken_is_not_served() -> None:
    acceptor = Acceptor(serve := Mock(), most=2, tls=None, on_refused=Mock())
    with socket.create_connection(split_address(acceptor.listen("127.0.0.1:0"))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    acceptor._accept(acceptor._sockets[0])
    acceptor.close()
    serve.assert_not_called()


async def test_streams_and_connections_are_freed_without_a_garbage_collection(tmp_path: Path) -> None:
    """A full collection stops the loop, and is made once a minute."""

    def kept() -> int:
        return sum(isinstance(each, RpcConnection | Connection | Call) for each in gc.get_objects())

    serving = await Serving.start(tmp_path)
    gc.collect()
    gc.disable()
    try:
        before = kept()
        peer = await busy(serving, "127.0.0.1")
        for number in (3, 5):
            peer.open(number)
        peer.write(peer.client.data(3, b"", end=True))
        peer.reset(5)
        for _ in range(2):  # what the last read brought is kept until the next
            await peer.round_trip()
        assert kept() == before + 3, "a connection with its protocol, and the call that is open"
        await peer.close()
        await until(lambda: kept() == before)
    finally:
        gc.enable()
    await serving.stop()
