"""Peers that break the rules on a real socket: nothing of them stays behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from epp.http2.status import Status
from tests.kit.conversation import DUPLEX, request_headers, response_body, response_headers, with_modes
from tests.kit.http2 import message
from tests.kit.rawpeer import RawPeer, Serving, until

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
    assert not serving.app._grpc._watchers
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
    assert before == len(numbers) * (len(piece) - 1)
    peer.stop_reading()
    peer.write(b"".join(peer.client.data(number, piece[-1:]) for number in numbers))
    (connection,) = serving.app._grpc._listener._connections  # type: ignore[attr-defined]
    transport = connection._transport
    await until(lambda: connection._corked_bytes is not None)
    assert transport.get_write_buffer_size() < 3_000_000
    assert await serving.metric("epp_held_body_bytes") > 0.6 * before
    peer.read_on()
    await until(lambda: all(len(peer.told[number].data) > size for number in numbers))
    assert await serving.metric("epp_held_body_bytes") == 0
    await peer.close()
