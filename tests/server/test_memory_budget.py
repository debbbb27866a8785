"""Limits of messages on either transport, and who is served where the memory budget is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from epp.extproc.messages import MAX_BODILESS_BYTES
from epp.request.ext_proc import EXT_PROC
from epp.rpc.http2.connection import STREAM_BYTES
from epp.rpc.http2.status import Status
from epp.server.process import allowed_held_bytes
from tests.kit.conversation import DUPLEX, request_body, request_headers, with_metadata, with_modes
from tests.kit.http2 import message
from tests.kit.rawpeer import PROCESS, Serving
from tests.kit.transports import BOTH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from epp.pb.ext_proc_pb2 import ProcessingRequest


def opening() -> ProcessingRequest:
    """The headers of a request whose body is to come."""
    return with_modes(request_headers(), DUPLEX)


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
    while bodies.reserve(1 << 20):
        pass
    while bodies.reserve(STREAM_BYTES):
        pass
    peer = await serving.connect()
    peer.open(1, b"/grpc.health.v1.Health/Check")
    peer.pour(1, message(b""))
    await peer.round_trip()
    assert peer.told[1].status == (Status.OK, "")
    peer.open(3, b"/grpc.health.v1.Health/Watch")
    peer.pour(3, message(b""))
    await peer.round_trip()
    peer.open(5, PROCESS)
    await peer.round_trip()
    assert peer.told[5].status == (Status.RESOURCE_EXHAUSTED, "there is no room for what comes")
    await serving.stop()


def test_a_quarter_of_a_containers_memory_may_be_held(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("512000000\n")
    assert allowed_held_bytes(1 << 30, tmp_path) == 128000000
    assert allowed_held_bytes(1000, tmp_path) == 1000
