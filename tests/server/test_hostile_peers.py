"""Peers that break the rules on a real socket: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import grpc
import pytest

from epp.apis.answer import WATCH_BYTES
from epp.clock import ManualClock
from epp.transport.connection import STREAM_BYTES
from epp.transport.status import Status
from tests.kit.conversation import (
    DUPLEX,
    request_body,
    request_headers,
    response_body,
    response_headers,
    with_modes,
)
from tests.kit.http2 import message
from tests.kit.rawpeer import PROCESS, RawPeer, Serving
from tests.kit.transports import BOTH
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WATCH = b"/grpc.health.v1.Health/Watch"


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    made = await Serving.start(tmp_path)
    yield made
    await made.stop()


async def test_a_watch_that_ended_with_its_first_message_is_not_begun_by_its_second(serving: Serving) -> None:
    """Nobody would ever end it: its call is over."""
    peer = await RawPeer.connect(serving.address)
    tasks = len(asyncio.all_tasks())
    peer.open(1, WATCH)
    peer.pour(1, message(b"\xff") + message(b""))
    await peer.round_trip()
    told = peer.told[1].status
    assert told is not None
    assert told[0] is Status.INTERNAL
    assert not serving.app._grpc._health.watches
    assert len(asyncio.all_tasks()) == tasks
    await peer.close()


async def test_answers_that_nobody_reads_wait_in_the_budget_and_not_in_the_sockets_buffer(
    serving: Serving,
) -> None:
    """Windows that say anything may come do not mean that anybody reads."""
    peer = await RawPeer.connect(serving.address, max_frame_size=(1 << 24) - 1)
    models = request_headers({":method": "GET", ":path": "/v1/models"}, end=True)
    size = 20_000_000
    piece = message(response_body(bytes(size)).SerializeToString())
    numbers = range(1, 7, 2)
    for number in numbers:
        peer.open(number)
        peer.say(number, with_modes(models, DUPLEX, DUPLEX), response_headers())
        peer.pour(number, piece[:-1])
    await peer.round_trip()
    before = await serving.metric("epp_held_body_bytes")
    assert 0 < before - len(numbers) * (len(piece) - 1) < 3 * (STREAM_BYTES + WATCH_BYTES)
    peer.stop_reading()
    peer.write(b"".join(peer.client.data(number, piece[-1:]) for number in numbers))
    (connection,) = serving.app._grpc._listener._connections  # type: ignore[attr-defined]
    transport = connection._transport
    await until(lambda: connection._corked_bytes is not None)
    assert transport.get_write_buffer_size() < 3_000_000
    assert await serving.metric("epp_held_body_bytes") > 0.6 * before
    peer.read_on()
    await until(lambda: all(len(peer.told[number].data) > size for number in numbers))
    assert await serving.metric("epp_held_body_bytes") == 2 * STREAM_BYTES + 3 * WATCH_BYTES
    await peer.close()


@pytest.mark.parametrize("transport", BOTH)
async def test_lines_about_aborted_streams_are_marked_for_the_rate_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    serving = await Serving.start(tmp_path, ManualClock(), listen={"transport": transport})
    out_of_turn, garbage = response_body(b"x").SerializeToString(), b"\xff\xff\xff no protobuf"

    async with grpc.aio.insecure_channel(serving.address) as channel:

        async def abort(count: int, told: bytes) -> None:
            for _ in range(count):
                call = channel.stream_stream(PROCESS.decode())()
                await call.write(told)
                assert await call.code() is not grpc.StatusCode.OK

        await abort(2, out_of_turn)
        await abort(3, garbage)
    records = [record for record in caplog.records if "aborted" in record.getMessage()]
    assert all(hasattr(record, "repeated") for record in records)
    assert [record.getMessage() for record in records] == [
        *["a stream was aborted: response_body before request_headers"] * 2,
        *["a stream was aborted: a message is no ProcessingRequest"] * 3,
    ]
    await serving.stop()
    counted = 'llm_d_epp_extproc_streams_total{{code="{}"}}'.format
    assert await serving.metric(counted("InvalidArgument")) == 2
    assert await serving.metric(counted("Internal")) == 3
    assert await serving.metric('epp_faults_total{part="stream"}') == 0, (
        "no fault of ours, and nothing to alert on"
    )


async def test_a_body_of_objects_alone_is_refused_before_it_is_decoded(serving: Serving) -> None:
    """Decoding 30 MB of them held the event loop for seconds, whatever was wrong with them."""
    peer = await RawPeer.connect(serving.address)
    body = b'{"model":"m","messages":[' + b"{}," * 10_000_000 + b"{}]}"
    peer.open(1)
    peer.say(1, with_modes(request_headers(), DUPLEX), request_body(body, end=True))
    await peer.round_trip()
    refusal = peer.told[1].replies[-1].immediate_response
    assert refusal.status.code == 400
    assert json.loads(refusal.body)["error"]["message"] == (
        "Invalid request: more than 600000 texts, lists and objects, 4000000 numbers, "
        "or 1048576 digits of long numbers"
    )
    assert await serving.metric('epp_refusals_total{status="400",rule="client"}') == 1
    await peer.close()


@pytest.mark.parametrize("decided", [True, False], ids=["decided before", "not decided"])
async def test_what_comes_in_one_read_with_its_reset_counts_and_is_no_fault_of_ours(
    serving: Serving, decided: bool
) -> None:
    """The stream is over before the first message is looked at; what the answer told is not lost."""
    outcomes: list[str] = []
    serving.app.core.outcomes.told.append(lambda outcome: outcomes.append(outcome.cause))
    peer = await RawPeer.connect(serving.address)
    peer.open(1)
    chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    peer.say(1, with_modes(request_headers(), DUPLEX), request_body(chat, end=True))
    if decided:
        await peer.round_trip()
        peer.say(1, response_headers(), response_body(b"{}", end=True))
    peer.reset(1)
    await peer.round_trip()
    assert serving.app.picker.in_flight == 0
    assert outcomes == (["completed"] if decided else [])
    assert bool(serving.app.core.recent.get("last")) is decided, "nobody waits for a pick any more"
    assert await serving.metric('epp_faults_total{part="stream"}') == 0
    assert await serving.metric('llm_d_epp_extproc_streams_total{code="Canceled"}') == 1
    await peer.close()


@pytest.mark.parametrize("given_up", [True, False], ids=["given up in the same read", "not given up"])
async def test_a_message_that_cannot_be_read_ends_its_call_and_what_is_behind_it_is_nobodys(
    serving: Serving, given_up: bool
) -> None:
    peer = await RawPeer.connect(serving.address)
    peer.open(1)
    good = message(with_modes(request_headers(), DUPLEX).SerializeToString())
    bad = message(b"compressed", flag=1)
    chat = request_body(b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}', end=True)
    peer.pour(1, good + bad + message(chat.SerializeToString()))
    if given_up:
        peer.reset(1)
    await peer.round_trip()
    told = peer.told[1].status
    assert told is not None
    assert told[0] is Status.INTERNAL
    assert not serving.app.core.recent.get("last"), "it was not decided"
    assert await serving.metric("llm_d_epp_extproc_streams_inflight") == 0
    assert await serving.metric('llm_d_epp_extproc_streams_total{code="Internal"}') == 1
    assert await serving.metric('epp_faults_total{part="stream"}') == 0
    await peer.close()


@pytest.mark.parametrize("end", ["reset", "hung up", "broken"])
async def test_a_pick_that_waits_for_a_window_when_its_stream_goes_holds_no_lease(
    tmp_path: Path, end: str
) -> None:
    """Its stream was to end with it, and the proxy passes nothing on before it has all of it."""
    serving = await Serving.start(tmp_path, observe={"mode": "none"})
    peer = await RawPeer.connect(serving.address, initial_window_size=100)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 2000 + b'"}]}'
    peer.open(1)
    peer.say(1, with_modes(request_headers(), DUPLEX, DUPLEX), request_body(body, end=True))
    await peer.round_trip()
    assert serving.app.picker.in_flight == 1
    if end == "reset":
        peer.reset(1)
        await peer.round_trip()
    elif end == "hung up":
        await peer.close()
    else:
        peer.write(bytes(100))
    await until(lambda: not serving.app.picker.in_flight)
    assert not len(serving.app._observation.leases)
    await peer.close()
    await serving.stop()
