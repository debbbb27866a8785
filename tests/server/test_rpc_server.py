"""The picker's own listener and real clients: grpcio's and grpclib's."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpclib.client import Channel, UnaryUnaryMethod

from epp.config.listen import ServerTls
from epp.extproc.types import Finish
from epp.pb.access_log_pb2 import StreamAccessLogsMessage
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.server.access_log import METHOD as ACCESS_LOG_METHOD
from epp.server.access_log import SERVICE as ACCESS_LOG
from epp.server.access_log import AccessLogReceiver
from epp.server.health import EXT_PROC, HealthNames, HealthState
from epp.server.metrics import Metrics
from epp.server.rpc_server import RpcServer
from epp.server.services import Services
from epp.server.tls import rpc_context
from tests.kit import certificates
from tests.kit.logs import own_lines
from tests.kit.transports import LONGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PROCESS = f"/{EXT_PROC}/Process"
#: What the exchanges below are told in a message's body.
WAIT, LAST, LONG, LONG_LAST = b"wait", b"last", b"long", b"long and last"


class Echo:
    """An exchange that gives bodies back, and waits where it is told to.

    Attributes:
        go: what waiting exchanges wait for.
        ends: how exchanges were closed.
    """

    left = False

    def __init__(self, go: asyncio.Event, ends: list[bool]) -> None:
        self.go, self.ends = go, ends

    def take(self, message: ProcessingRequest) -> Any:
        body = message.request_body.body
        return self._wait(body) if body == WAIT else self._answer(body)

    async def _wait(self, body: bytes) -> Any:
        await self.go.wait()
        return self._answer(body)

    def _answer(self, body: bytes) -> Any:
        reply = ProcessingResponse()
        said = b"x" * (LONGEST_BYTES + 1) if body in {LONG, LONG_LAST} else body
        reply.request_body.response.body_mutation.body = said
        return [reply], Finish() if body in {LAST, LONG_LAST} else None

    def closed(self, *, cut: bool) -> None:
        self.ends.append(cut)


class Served:
    """A listener with exchanges that echo."""

    def __init__(self) -> None:
        self.go, self.ends, self.state = asyncio.Event(), list[bool](), HealthState()
        self.log = AccessLogReceiver(self)  # type: ignore[arg-type]  # takes what is reported
        self.reports = 0
        new_exchange: Callable[[Any], Any] = lambda _: Echo(self.go, self.ends)  # noqa: E731
        names = HealthNames(self.state, any_name=False)
        self.metrics = Metrics()
        self.services = Services(self.metrics, names, new_exchange, self.log)
        self.server = self._make(None)

    def _make(self, tls: ssl.SSLContext | None) -> RpcServer:
        return RpcServer(
            self.services.methods(), max_receive_bytes=LONGEST_BYTES, max_send_bytes=LONGEST_BYTES, tls=tls
        )

    async def start(self, tls: ssl.SSLContext | None = None) -> str:
        if tls is not None:
            self.server = self._make(tls)
        self.address = await self.server.start("127.0.0.1:0")
        return self.address

    def finished(self, _report: object) -> None:
        self.reports += 1


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    await made.start()
    yield made
    made.go.set()
    await made.server.stop(0)


def request(body: bytes) -> ProcessingRequest:
    made = ProcessingRequest()
    made.request_body.body = body
    return made


def open_call(channel: grpc.aio.Channel, **settings: Any) -> Any:
    method = channel.stream_stream(
        PROCESS, ProcessingRequest.SerializeToString, ProcessingResponse.FromString
    )
    return method(**settings)


def body_of(reply: Any) -> bytes:
    return bytes(reply.request_body.response.body_mutation.body)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [1, 20_000, 100_000, 3_000_000])
async def test_messages_of_all_lengths_there_and_back(served: Served, size: int) -> None:
    options = (("grpc.max_receive_message_length", -1),)
    async with grpc.aio.insecure_channel(served.address, options=options) as channel:
        call = open_call(channel)
        for turn in range(3):
            await call.write(request(bytes((turn,)) * size))
            assert body_of(await call.read()) == bytes((turn,)) * size
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    await until(lambda: served.ends)
    assert served.ends == [False]


async def test_the_last_answer_and_the_end(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = open_call(channel)
        await call.write(request(LAST))
        assert body_of(await call.read()) == LAST
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    assert served.ends == [False]


async def test_answers_keep_their_order_behind_one_that_waits(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        call, other = open_call(channel), open_call(channel)
        for body in (b"1", WAIT, b"2", b"3"):
            await call.write(request(body))
        await call.done_writing()
        await other.write(request(b"meanwhile"))
        assert body_of(await other.read()) == b"meanwhile"
        assert body_of(await call.read()) == b"1"
        assert not served.ends
        served.go.set()
        assert [body_of(await call.read()) for _ in range(3)] == [WAIT, b"2", b"3"]
        assert await call.code() is grpc.StatusCode.OK


async def test_a_client_that_gives_up_ends_its_exchange_once(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        for body in (b"x", WAIT):
            call = open_call(channel)
            await call.write(request(b"first"))
            await call.read()
            await call.write(request(body))
            call.cancel()
        await until(lambda: len(served.ends) == 2)
        waiting = open_call(channel)
        await waiting.write(request(WAIT))
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    await until(lambda: len(served.ends) == 3)
    served.go.set()
    assert served.ends == [True, True, True]


async def test_a_client_that_does_not_read_is_waited_for(served: Served) -> None:
    """Thirty megabytes of answers to who reads none: they are not made before there is room for them."""
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = open_call(channel)
        body = b"x" * 1_000_000

        async def write() -> None:
            for _ in range(30):
                await call.write(request(body))
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        assert not writing.done()
        assert [len(body_of(reply)) async for reply in call] == [len(body)] * 30
        await writing


async def test_what_goes_wrong_is_told_as_grpc_tells_it(served: Served) -> None:
    async def ends(call: Any) -> tuple[grpc.StatusCode, str]:
        return await call.code(), await call.details()

    async with grpc.aio.insecure_channel(served.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/no.Service/Method")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        call = open_call(channel)
        await call.write(request(b"x" * (LONGEST_BYTES + 1)))
        code, words = await ends(call)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in words
        for long in (LONG, LONG_LAST):
            call = open_call(channel)
            await call.write(request(long))
            assert (await ends(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        call = open_call(channel, timeout=0.2)
        await call.write(request(WAIT))
        assert (await ends(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        call = channel.stream_stream(PROCESS)()
        await call.write(b"\xff\xff\xff no protobuf")
        assert await ends(call) == (grpc.StatusCode.INTERNAL, "a message is no ProcessingRequest")
    await until(lambda: len(served.ends) == 5)
    assert served.ends == [True] * 5
    assert served.metrics.value("epp_faults_total", "stream").value == 2, "answers that were too long"


async def test_the_synchronous_client_and_the_access_log(served: Served) -> None:
    def talk() -> tuple[list[bytes], Any]:
        with grpc.insecure_channel(served.address) as channel:
            method = channel.stream_stream(
                PROCESS, ProcessingRequest.SerializeToString, ProcessingResponse.FromString
            )
            replies = [body_of(reply) for reply in method(map(request, (b"a", b"b")))]
            report = StreamAccessLogsMessage()
            report.http_logs.log_entry.add()
            log = channel.stream_unary(f"/{ACCESS_LOG}/{ACCESS_LOG_METHOD}")
            log(iter([report.SerializeToString()] * 3))
            return replies, health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status

    assert await asyncio.to_thread(talk) == ([b"a", b"b"], health_pb2.HealthCheckResponse.NOT_SERVING)
    assert served.reports == 3


async def test_grpclib_speaks_to_it(served: Served) -> None:
    host, _, port = served.address.rpartition(":")
    channel = Channel(host, int(port))
    asked, told = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    try:
        answer = await UnaryUnaryMethod(channel, "/grpc.health.v1.Health/Check", asked, told)(asked())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    finally:
        channel.close()


async def test_a_stop_lets_calls_finish_and_takes_no_new_ones(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = open_call(channel)
        await call.write(request(WAIT))
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        stopping = asyncio.ensure_future(served.server.stop(60))
        await asyncio.sleep(0)
        late = grpc.aio.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)])
        async with late:
            with pytest.raises(grpc.aio.AioRpcError):
                await late.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=15)
        assert not stopping.done()
        served.go.set()
        assert body_of(await call.read()) == WAIT
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        async with asyncio.timeout(30):
            await stopping


async def test_what_does_not_end_is_cut(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = open_call(channel)
        await call.write(request(WAIT))
        log = channel.stream_unary(f"/{ACCESS_LOG}/{ACCESS_LOG_METHOD}")()
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        await until(lambda: served.log._streams)
        served.log.end_streams()
        assert await log.code() is grpc.StatusCode.OK
        await served.server.stop(0.1)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert served.ends == [True]


async def test_two_cannot_listen_on_one_port(served: Served) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        await Served().server.start(served.address)


async def test_tls_with_and_without_a_clients_certificate(tmp_path: Path) -> None:
    certificates.self_signed(
        tmp_path / "tls.crt", tmp_path / "tls.key", "localhost", algorithm=certificates.EC
    )
    mutual = ServerTls(cert_file="tls.crt", key_file="tls.key", client_ca_file="tls.crt")
    served = Served()
    address = await served.start(rpc_context(mutual, tmp_path, "epp.yaml"))
    cert, key = (tmp_path / "tls.crt").read_bytes(), (tmp_path / "tls.key").read_bytes()
    options = (("grpc.ssl_target_name_override", "localhost"),)
    try:
        for known in (True, False):
            pair = (key, cert) if known else (None, None)
            credentials = grpc.ssl_channel_credentials(cert, *pair)
            async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=15)
                if known:
                    await check
                    call = open_call(channel)
                    await call.write(request(b"x" * 500_000))
                    assert len(body_of(await call.read())) == 500_000
                else:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await check
    finally:
        await served.server.stop(0)


async def test_tls_without_http2_is_refused(tmp_path: Path) -> None:
    served = Served()
    address = await served.start(rpc_context(ServerTls(self_signed=True), tmp_path, "epp.yaml"))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        async with asyncio.timeout(15):
            assert not await reader.read()
        writer.close()
    finally:
        await served.server.stop(0)


async def test_a_flood_on_one_connection_leaves_turns_to_others(served: Served) -> None:
    """A connection that always has more to read must not keep a health check waiting for its end."""
    many = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(served.address, options=many) as busy,
        grpc.aio.insecure_channel(served.address, options=many) as other,
    ):
        call = open_call(busy)
        (connection,) = await _connections(served, 1)
        connection._worked_s = 1.0
        await call.write(request(b"x"))
        await until(lambda: connection._worked_s < 1.0)
        assert body_of(await call.read()) == b"x"
        await call.write(request(b"y"))
        assert body_of(await call.read()) == b"y", "it reads again"
        await other.unary_unary("/grpc.health.v1.Health/Check")(b"")
        call.cancel()


async def _connections(served: Served, count: int) -> list[Any]:
    await until(lambda: len(served.server._connections) == count)
    return list(served.server._connections)


async def test_a_handler_that_cannot_be_made_ends_its_call_and_no_other(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_room: Any) -> Any:
        raise ZeroDivisionError

    served.services.new_exchange = broken
    server = served._make(None)
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            call = open_call(channel)
            assert await call.code() is grpc.StatusCode.INTERNAL
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    finally:
        await server.stop(0)
    assert len(own_lines(caplog)) == 1
