"""A picker's memory under peers that let it wait: within its budget whatever waits, and given back at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from epp.extproc.message_size import MAX_BODILESS_BYTES
from epp.lab.bench.cpu import held
from epp.server.health import EXT_PROC
from epp.transport.connection import STREAM_BYTES
from epp.transport.status import Status
from tests.kit.conversation import DUPLEX, request_body, request_headers, with_metadata, with_modes
from tests.kit.http2 import message
from tests.kit.picker import PickerProcess
from tests.kit.rawpeer import PROCESS, RawPeer, Serving
from tests.kit.transports import BOTH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.pb.ext_proc_pb2 import ProcessingRequest

HELD = "epp_held_body_bytes"
BUDGET, LONGEST = 8 * 1024 * 1024, 1024 * 1024
#: Buffers of sockets, what is being read and decoded, and what the allocator does not return.
BESIDE = 64 * 1024 * 1024
WATCH = b"/grpc.health.v1.Health/Watch"


@pytest.fixture
async def picker(tmp_path: Path) -> AsyncIterator[PickerProcess]:
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '10.0.0.1:8000'}]")
    made = PickerProcess(
        tmp_path,
        listen={
            "grpc": "127.0.0.1:0",
            "http": "127.0.0.1:0",
            "first_token": "127.0.0.1:0",
            "transport": "builtin",
            "max_receive_bytes": LONGEST,
        },
        request={"max_body_bytes": 512 * 1024, "max_held_body_bytes": BUDGET},
        probe={"interval_s": 0},
        scrape={"interval_s": 0},
    )
    await made.start()
    yield made
    await made.stop()


def opening() -> ProcessingRequest:
    """The headers of a request whose body is to come."""
    return with_modes(request_headers(), DUPLEX)


def open_stream(peer: RawPeer, number: int) -> None:
    peer.open(number)


def headed(peer: RawPeer, number: int) -> None:
    peer.open(number)
    peer.say(number, opening())


def many_headers(peer: RawPeer, number: int) -> None:
    told = opening()
    for name in range(5000):
        told.request_headers.headers.headers.add(key=f"{name:x}", raw_value=b"a1")
    peer.open(number)
    peer.say(number, told)


def wide_header(peer: RawPeer, number: int) -> None:
    """One character beyond the basic plane makes Python keep four bytes of each."""
    told = opening()
    told.request_headers.headers.headers.add(key="x", raw_value=b"\xf0\x9f\x98\x80" + b"a" * 200_000)
    peer.open(number)
    peer.say(number, told)


def long_hint(peer: RawPeer, number: int) -> None:
    peer.open(number)
    peer.say(number, with_metadata(opening(), "envoy.lb.subset_hint", {"x": [{}] * 3000}))


def half_a_body(peer: RawPeer, number: int) -> None:
    headed(peer, number)
    peer.pour(number, message(request_body(bytes(100_000)).SerializeToString())[:-1])


def answers_unread(peer: RawPeer, number: int) -> None:
    peer.open(number)
    peer.say(number, opening(), request_body(b'{"model": "%s"' % (b"x" * 3000), end=True))


def behind_an_answer(peer: RawPeer, number: int) -> None:
    """Whole messages that wait until an answer before them is read."""
    answers = with_modes(request_headers(), DUPLEX)
    answers.protocol_config.request_body_mode = 2  # type: ignore[assignment]  # open enum: BUFFERED
    peer.open(number)
    peer.say(number, answers)
    peer.pour(number, message(bytes(2000)) * 100)


#: What makes a stream wait, on how many of each connection, and the window for answers.
WAITING = (
    (open_stream, 400, 1 << 30),
    (headed, 400, 1 << 30),
    (many_headers, 20, 1 << 30),
    (wide_header, 20, 1 << 30),
    (long_hint, 60, 1 << 30),
    (half_a_body, 60, 1 << 30),
    (answers_unread, 400, 0),
    (behind_an_answer, 20, 0),
)


async def test_whatever_waits_stays_within_the_budget_and_is_given_back(picker: PickerProcess) -> None:
    for holds, streams, window in WAITING:
        before, peers = held(picker.pid).rss_bytes, list[RawPeer]()
        for _ in range(4):
            peer = await RawPeer.connect(picker.grpc, initial_window_size=window)
            peers.append(peer)
            for number in range(1, 2 * streams, 2):
                holds(peer, number)
            await peer.round_trip()
            assert await picker.metric(HELD) <= BUDGET + LONGEST, holds.__name__
            assert held(picker.pid).rss_bytes - before < BUDGET + LONGEST + BESIDE, holds.__name__
        assert await picker.metric(HELD) > BUDGET / 2, holds.__name__
        told = [told for peer in peers for told in peer.told.values()]
        assert any(one.status or one.reset is not None for one in told), f"{holds.__name__}: none was refused"
        await picker.until_ready()
        for peer in peers:
            await peer.close()
        await picker.until_metric(HELD, lambda held: held == 0)


@pytest.fixture(params=BOTH)
async def serving(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Serving]:
    made = await Serving.start(tmp_path, listen={"transport": request.param})
    yield made
    await made.stop()


async def test_a_message_without_a_body_has_a_limit_of_its_own(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    limit = MAX_BODILESS_BYTES
    async with grpc.aio.insecure_channel(serving.address) as channel:
        process = channel.stream_stream(f"/{EXT_PROC}/Process")
        for told, taken in (
            (with_modes(request_headers({"x": "a" * (limit - 1000)}), DUPLEX), True),
            (with_modes(request_headers({"x": "a" * limit}), DUPLEX), False),
            (with_metadata(request_body(bytes(400_000)), "other", {"x": "a" * limit}), False),
        ):
            call = process()
            if told.HasField("request_body"):
                await call.write(opening().SerializeToString())
            await call.write(told.SerializeToString())
            if taken:
                await call.write(request_body(bytes(400_000), end=True).SerializeToString())
                assert await call.read()
                call.cancel()
                continue
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            size = told.ByteSize()
            assert (
                await call.details()
                == f"Received message without a body larger than max ({size} vs. {limit})"
            )
    assert caplog.text.count("Received message without a body") == 2
    assert await serving.metric('llm_d_epp_extproc_streams_total{code="ResourceExhausted"}') == 2
    assert await serving.metric('epp_faults_total{part="stream"}') == 0


async def test_compressed_messages_are_not_unpacked(serving: Serving) -> None:
    told = with_modes(request_headers({"x": "a" * 10_000}, end=True), DUPLEX).SerializeToString()
    async with grpc.aio.insecure_channel(serving.address, compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{EXT_PROC}/Process")(told)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_alone_on_its_connection_is_served_by_a_full_picker(tmp_path: Path) -> None:
    serving = await Serving.start(tmp_path)
    bodies = serving.app._grpc._grpcio_share
    while bodies.take_part(LONGEST):
        pass
    while bodies.take_part(STREAM_BYTES):
        pass
    peer = await RawPeer.connect(serving.address)
    peer.open(1, b"/grpc.health.v1.Health/Check")
    peer.pour(1, message(b""))
    await peer.round_trip()
    assert peer.told[1].status == (Status.OK, "")
    peer.open(3, WATCH)
    peer.pour(3, message(b""))
    await peer.round_trip()
    peer.open(5, PROCESS)
    await peer.round_trip()
    assert peer.told[5].status == (Status.RESOURCE_EXHAUSTED, "there is no room for what comes")
    await peer.close()
    await serving.stop()
