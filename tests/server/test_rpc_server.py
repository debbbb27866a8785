"""Both gRPC listeners and real clients: the same conversations on either transport."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from epp.config.listen import ServerTls
from epp.extproc.types import Abort, Finish
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.pb.access_log_pb2 import StreamAccessLogsMessage
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.request import access_log
from epp.request.access_log import ACCESS_LOG, AccessLogReceiver
from epp.request.ext_proc import PROCESS
from epp.rpc.server import RpcServer
from epp.server.grpc import grpc_methods
from epp.server.health import HealthState
from epp.server.tls import GRPC_SECTION, Certificates
from tests.kit import certificates
from tests.kit.conversation import request_body
from tests.kit.logs import own_lines
from tests.kit.transports import BOTH, LONGEST_BYTES, listener
from tests.kit.waiting import HANGS_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CHECK = "/grpc.health.v1.Health/Check"
#: What the exchanges below are told in a message's body.
WAIT, LAST, LONG, LONG_LAST, WRONG, BROKEN = b"wait", b"last", b"long", b"long and last", b"wrong", b"broken"


class Echo:
    """An exchange that gives bodies back, and waits where it is told to.

    Attributes:
        go: what waiting exchanges wait for.
        ends: how exchanges were closed.
    """

    left = False
    more_time = None

    def __init__(self, go: asyncio.Event, ends: list[bool]) -> None:
        self.go, self.ends = go, ends

    def take(self, message: ProcessingRequest) -> Any:
        body = message.request_body.body
        return self._wait(body) if body == WAIT else self._answer(body)

    async def _wait(self, body: bytes) -> Any:
        await self.go.wait()
        return self._answer(body)

    def _answer(self, body: bytes) -> Any:
        if body == BROKEN:
            raise ZeroDivisionError
        if body == WRONG:
            return [], Abort("INVALID_ARGUMENT", "a message out of turn")
        reply = ProcessingResponse()
        said = b"x" * (LONGEST_BYTES + 1) if body in {LONG, LONG_LAST} else body
        reply.request_body.response.body_mutation.body = said
        return [reply], Finish() if body in {LAST, LONG_LAST} else None

    def closed(self, *, cut: bool) -> None:
        self.ends.append(cut)


class Served:
    """A listener with exchanges that echo."""

    def __init__(self, transport: str) -> None:
        self.go, self.ends, self.health = asyncio.Event(), list[bool](), HealthState()
        self.log = AccessLogReceiver(self)  # type: ignore[arg-type]  # takes what is reported
        self.reports = 0
        self.metrics = Metrics(TABLE)
        self.methods = grpc_methods(self.metrics, self.health, self._exchange, self.log)
        self.server = listener(transport, self.methods)
        self.broken = False

    def _exchange(self, _room: Any) -> Any:
        if self.broken:
            raise ZeroDivisionError
        return Echo(self.go, self.ends)

    def finished(self, _report: object) -> None:
        self.reports += 1

    async def streams(self, name: str) -> float:
        """A count of streams, labels included in the name."""
        for line in (await self.metrics.page()).decode().splitlines():
            if line.startswith(f"llm_d_epp_extproc_stream{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0


@pytest.fixture(params=BOTH)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    made = Served(request.param)
    made.address = await made.server.start("127.0.0.1:0")  # type: ignore[attr-defined]
    yield made
    made.go.set()
    await made.server.stop(0)


@pytest.fixture
async def channel(served: Served) -> AsyncIterator[grpc.aio.Channel]:
    options = (("grpc.max_receive_message_length", -1),)
    async with grpc.aio.insecure_channel(served.address, options=options) as made:  # type: ignore[attr-defined]
        yield made


def open_call(channel: grpc.aio.Channel, **settings: Any) -> Any:
    return channel.stream_stream(PROCESS, ProcessingRequest.SerializeToString, ProcessingResponse.FromString)(
        **settings
    )


def body_of(reply: Any) -> bytes:
    return bytes(reply.request_body.response.body_mutation.body)


@pytest.mark.parametrize("size", [1, 100_000, 3_000_000])
async def test_messages_of_all_lengths_there_and_back(
    served: Served, channel: grpc.aio.Channel, size: int
) -> None:
    call = open_call(channel)
    for turn in range(3):
        await call.write(request_body(bytes((turn,)) * size))
        assert body_of(await call.read()) == bytes((turn,)) * size
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await until(lambda: served.ends)
    assert served.ends == [False]


async def test_answers_keep_their_order_behind_one_that_waits(
    channel: grpc.aio.Channel, served: Served
) -> None:
    call, other = open_call(channel), open_call(channel)
    for body in (b"1", WAIT, b"2", LAST):
        await call.write(request_body(body))
    await other.write(request_body(b"meanwhile"))
    assert body_of(await other.read()) == b"meanwhile"
    assert body_of(await call.read()) == b"1"
    assert not served.ends
    served.go.set()
    assert [body_of(await call.read()) for _ in range(3)] == [WAIT, b"2", LAST]
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_client_that_gives_up_ends_its_exchange_once(
    channel: grpc.aio.Channel, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.rpc.grpcio_server._RESET_S", HANGS_S)  # so late may a busy machine say it
    for body in (b"x", WAIT):
        call = open_call(channel)
        await call.write(request_body(b"first"))
        await call.read()
        await call.write(request_body(body))
        call.cancel()
    await until(lambda: len(served.ends) == 2)
    assert served.ends == [True, True]
    assert await served.streams('s_total{code="Canceled"}') == 2
    assert await served.streams("s_inflight") == 0


async def test_a_client_that_does_not_read_is_waited_for(channel: grpc.aio.Channel) -> None:
    """Thirty megabytes of answers to who reads none: they are not made before there is room for them."""
    call = open_call(channel)
    body = b"x" * 1_000_000

    async def write() -> None:
        for _ in range(30):
            await call.write(request_body(body))
        await call.done_writing()

    writing = asyncio.ensure_future(write())
    await channel.unary_unary(CHECK)(b"")
    assert not writing.done()
    assert [len(body_of(reply)) async for reply in call] == [len(body)] * 30
    await writing


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        (b"x" * (LONGEST_BYTES + 1), ("RESOURCE_EXHAUSTED", "larger than max", "", 0)),
        (LONG, ("RESOURCE_EXHAUSTED", "larger than max", "ResourceExhausted", 1)),
        (LONG_LAST, ("RESOURCE_EXHAUSTED", "larger than max", "ResourceExhausted", 1)),
        (WRONG, ("INVALID_ARGUMENT", "a message out of turn", "InvalidArgument", 0)),
        (BROKEN, ("INTERNAL", "internal error", "Internal", 1)),
        (None, ("INTERNAL", "a message is no ProcessingRequest", "Internal", 0)),
    ],
    ids=["long question", "long answer", "long last answer", "violation", "fault", "garbage"],
)
async def test_what_goes_wrong_is_reported_as_grpc_does_and_counted(
    channel: grpc.aio.Channel, served: Served, body: bytes | None, ends: tuple[str, str, str, int]
) -> None:
    code, words, counted, faults = ends
    call = channel.stream_stream(PROCESS)()
    await call.write(b"\xff\xff\xff no protobuf" if body is None else request_body(body).SerializeToString())
    assert await call.code() is grpc.StatusCode[code]
    assert words in await call.details()
    await until(lambda: served.ends)
    assert served.ends == [True]
    if counted:
        assert await served.streams(f's_total{{code="{counted}"}}') == 1
        assert await served.streams("_duration_seconds_count") == 1
    assert served.metrics.value("epp_faults_total", "stream").value == faults


async def test_a_handler_that_cannot_be_made_ends_its_call_and_no_other(
    channel: grpc.aio.Channel, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.broken = True
    assert await open_call(channel).code() is grpc.StatusCode.INTERNAL
    await channel.unary_unary(CHECK)(b"")
    assert len(own_lines(caplog)) == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/no.Service/Method")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_of_the_access_log_ends_for_envoy_to_open_the_next_where_it_prefers(
    channel: grpc.aio.Channel, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "MOST_MESSAGES", 3)
    report = StreamAccessLogsMessage()
    report.http_logs.log_entry.add()
    for _ in range(2):
        log = channel.stream_unary(ACCESS_LOG)()
        for _ in range(3):
            await log.write(report.SerializeToString())
        assert await log.code() is grpc.StatusCode.OK
    assert served.reports == 6
    assert not served.log._streams


async def test_a_stop_lets_calls_finish_and_takes_no_new_ones(
    channel: grpc.aio.Channel, served: Served
) -> None:
    call = open_call(channel)
    await call.write(request_body(WAIT))
    await channel.unary_unary(CHECK)(b"")
    stopping = asyncio.ensure_future(served.server.stop(60))
    await asyncio.sleep(0)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(served.address, options=options) as late:  # type: ignore[attr-defined]
        with pytest.raises(grpc.aio.AioRpcError):
            await late.unary_unary(CHECK)(b"", timeout=240)
    assert not stopping.done()
    served.go.set()
    assert body_of(await call.read()) == WAIT
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    async with asyncio.timeout(240):
        await stopping


async def test_what_does_not_end_is_cut(channel: grpc.aio.Channel, served: Served) -> None:
    call = open_call(channel)
    await call.write(request_body(WAIT))
    log = channel.stream_unary(ACCESS_LOG)()
    await channel.unary_unary(CHECK)(b"")
    await until(lambda: served.log._streams)
    served.log.end_streams()
    assert await log.code() is grpc.StatusCode.OK
    await served.server.stop(0.1)
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: served.ends)
    assert served.ends == [True]


async def test_tls_wants_a_clients_certificate_and_http2(tmp_path: Path) -> None:
    certificates.self_signed(tmp_path / "tls.crt", tmp_path / "tls.key", "localhost")
    mutual = ServerTls(cert_file="tls.crt", key_file="tls.key", client_ca_file="tls.crt")
    tls = Certificates(tmp_path, "epp.yaml").context(mutual, GRPC_SECTION)
    server = RpcServer(Served(BOTH[0]).methods, max_receive_bytes=10**6, max_send_bytes=10**6, tls=tls)
    address = await server.start("127.0.0.1:0")
    cert, key = (tmp_path / "tls.crt").read_bytes(), (tmp_path / "tls.key").read_bytes()
    options = (("grpc.ssl_target_name_override", "localhost"),)
    for known in (True, False):
        credentials = grpc.ssl_channel_credentials(cert, *((key, cert) if known else (None, None)))
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            if known:
                call = open_call(channel)
                await call.write(request_body(b"x" * 500_000))
                assert len(body_of(await call.read())) == 500_000
            else:
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary(CHECK)(b"", timeout=240)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    async with asyncio.timeout(240):
        assert not await reader.read(), "without ALPN"
    writer.close()
    await server.stop(0)
