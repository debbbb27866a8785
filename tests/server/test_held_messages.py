"""Messages that come by bits, or wait behind another, are held out of the bodies' budget, on a real socket."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.types import TokenCount
from epp.apis.usage import WATCH_BYTES
from epp.extproc.messages import header_values, plain_bytes
from epp.extproc.modes import BodyMode
from epp.request.ext_proc import EXT_PROC
from epp.request.tokenizers import Tokenizers
from epp.rpc.http2.connection import STREAM_BYTES
from epp.rpc.http2.frames import window_update
from epp.rpc.http2.status import Status
from epp.tokens.optional_parts import OptionalParts
from tests.kit.conversation import (
    DUPLEX,
    request_body,
    request_headers,
    response_body,
    response_headers,
    with_modes,
)
from tests.kit.http2 import message, settings
from tests.kit.rawpeer import RawPeer, Serving
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


#: Of all bodies; messages may hold as much again as the longest one beside it.
BUDGET, LONGEST = 700_000, 600_000
HEALTH = b"/grpc.health.v1.Health/Check"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
HELD = "epp_held_body_bytes"
#: A request's headers while they wait for a body.
HEAD = plain_bytes(header_values(request_headers().request_headers.headers))
#: What the few streams of a test take by themselves.
STREAMS = 5 * (HEAD + STREAM_BYTES)
REFUSED = 'epp_refusals_total{status="503",rule="held-bodies"}'


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    made = await Serving.start(
        tmp_path,
        listen={"max_receive_bytes": LONGEST},
        request={"max_body_bytes": 500_000, "max_held_body_bytes": BUDGET},
        observe={"mode": "none", "unobserved": "carry"},
    )
    yield made
    await made.stop()


@pytest.fixture
async def peer(serving: Serving) -> RawPeer:
    return await serving.connect()


def half(size: int = 400_000) -> bytes:
    """A message of which one byte is missing."""
    return message(request_body(bytes(size - 20)).SerializeToString())[:-1]


async def fill(peer: RawPeer, numbers: range) -> None:
    """Requests whose first body message does not come whole."""
    for number in numbers:
        peer.open(number)
        peer.say(number, with_modes(request_headers(), DUPLEX))
        peer.pour(number, half())
    await peer.round_trip()


async def test_half_a_message_finds_no_room_and_its_client_is_told_in_the_words_of_its_api(
    serving: Serving, peer: RawPeer
) -> None:
    await fill(peer, range(1, 7, 2))
    assert 1_199_000 < await serving.metric(HELD) < 1_200_100 + STREAMS
    assert not peer.told[0].data
    await fill(peer, range(7, 9, 2))
    (refusal,) = peer.told[7].replies
    assert refusal.immediate_response.status.code == 503
    assert json.loads(refusal.immediate_response.body)["error"]["type"]
    assert b"wait for their rest" in refusal.immediate_response.body
    assert peer.told[7].status == (Status.OK, "")
    assert await serving.metric(REFUSED) == 1
    assert 1_199_000 < await serving.metric(HELD) < 1_200_100 + STREAMS, "and what it held is given back"
    peer.pour(1, half()[-1:] + message(request_body(end=True).SerializeToString()))
    await peer.round_trip()
    assert [reply.WhichOneof("response") for reply in peer.told[1].replies][:1] == ["immediate_response"], (
        "the others go on: this one is no JSON"
    )


class Counted:
    """Counts tokens when it is let."""

    rendering = None

    def __init__(self) -> None:
        self.let, self.begun = threading.Event(), 0

    def count(self, canonical: bytes, *_: Any) -> TokenCount:
        self.begun += 1
        self.let.wait(240)
        return TokenCount(len(canonical), ())


async def test_a_response_that_finds_no_room_passes_unread(tmp_path: Path) -> None:
    serving = await Serving.start(tmp_path)
    peer, bodies = await serving.connect(), serving.app._grpc._bodies
    models = request_headers({":method": "GET", ":path": "/v1/models"}, end=True)
    for number in (1, 3):
        peer.open(number)
        await peer.round_trip()
        while number == 3 and serving.app._grpc._grpcio_share.reserve(WATCH_BYTES):
            pass
        before = bodies.held_bytes
        peer.say(number, with_modes(models, DUPLEX, DUPLEX), response_headers(), response_body(b"answer"))
        await peer.round_trip()
        assert peer.told[number].replies[-1].WhichOneof("response") == "response_body"
        assert bodies.held_bytes - before == (WATCH_BYTES if number == 1 else 0)
        filled = bodies.held_bytes
    peer.reset(1)
    await peer.round_trip()
    assert bodies.held_bytes == filled - WATCH_BYTES
    await serving.stop()


async def test_a_prompt_that_finds_no_room_beside_its_body_is_estimated(
    serving: Serving, peer: RawPeer
) -> None:
    model: Any = Counted()
    counting = Tokenizers(
        {"m": model},
        30_000.0,
        optional=OptionalParts(),
        block_bytes=256,
        threads=1,
        on_estimate=lambda _: None,
    )
    serving.app.director.tokenizers = counting
    prompt = {"model": "m", "messages": [{"role": "user", "content": "x" * 20_000}]}
    chat = message(request_body(json.dumps(prompt).encode(), end=True).SerializeToString())
    bodies = serving.app._grpc._bodies
    for number in (1, 3):
        peer.open(number)
        peer.say(number, with_modes(request_headers(), DUPLEX))
        await peer.round_trip()
        while number == 3 and serving.app._grpc._grpcio_share.reserve(10_000):
            pass
        before = bodies.held_bytes
        peer.pour(number, chat)
        await peer.round_trip()
        if number == 1:
            assert bodies.held_bytes > before + 40_000, "body and prompt wait for its tokens"
            assert 1 not in peer.told, "nothing is answered yet"
    assert peer.told[3].replies[0].WhichOneof("response") == "request_headers"
    model.let.set()
    await until(lambda: 1 in peer.told and peer.told[1].replies)
    assert bodies.held_bytes < before
    counting.close()


@pytest.mark.parametrize("end", ["reset", "hang up", "whole"])
async def test_it_is_given_back_however_its_call_ends(serving: Serving, peer: RawPeer, end: str) -> None:
    peer.open(1)
    body = request_body(CHAT + b" " * 300_000, end=True)
    peer.say(1, with_modes(request_headers(), DUPLEX))
    told = message(body.SerializeToString())
    peer.pour(1, told[:-1])
    await peer.round_trip()
    assert await serving.metric(HELD) == HEAD + len(told) - 1
    if end == "reset":
        peer.reset(1)
    elif end == "hang up":
        await peer.close()
    elif end == "whole":
        peer.pour(1, told[-1:])
    bodies = serving.app._grpc._bodies
    await until(lambda: not bodies.held_bytes)
    assert bool(serving.app.scheduler.in_flight) is (end == "whole")


async def test_where_there_is_no_client_to_tell_the_call_ends_with_an_error(
    serving: Serving, peer: RawPeer
) -> None:
    """Of a first message that is not whole nobody knows the API, and an answer that has begun is none of ours."""
    peer.open(1)
    models = request_headers({":method": "GET", ":path": "/v1/models"}, end=True)
    peer.say(1, with_modes(models, DUPLEX, BodyMode.BUFFERED), response_headers())
    await peer.round_trip()
    assert serving.app.scheduler.in_flight == 1
    await fill(peer, range(3, 9, 2))
    peer.pour(1, half())
    for number, path in ((11, f"/{EXT_PROC}/Process".encode()), (13, HEALTH)):
        peer.open(number, path)
        peer.pour(number, half())
    await peer.round_trip()
    for number in (1, 11, 13):
        told = peer.told[number].status
        assert told is not None
        assert told[0] is Status.RESOURCE_EXHAUSTED
    assert serving.app.scheduler.in_flight == 0, "and its lease ends"
    assert await serving.metric(REFUSED) == 0


async def test_whole_messages_that_wait_behind_an_answer_that_is_not_read_count(serving: Serving) -> None:
    peer = await serving.connect(initial_window_size=0)
    for number in range(1, 9, 2):
        peer.open(number)
        peer.say(number, with_modes(request_headers(), BodyMode.BUFFERED))
        peer.pour(number, half() + b"\0")
    await peer.round_trip()
    assert 1_199_000 < await serving.metric(HELD) < 1_200_100 + STREAMS
    assert await serving.metric(REFUSED) == 1
    peer.write(settings(initial_window_size=100_000))
    await peer.round_trip()
    codes = [peer.told[number].replies[-1].immediate_response.status.code for number in range(1, 9, 2)]
    assert sorted(codes) == [400, 400, 400, 503], "the others are read on, and are no JSON"
    assert await serving.metric(HELD) == 2 * STREAM_BYTES
    await peer.close()
    await until(lambda: not serving.app._grpc._bodies.held_bytes)


async def test_long_answers_that_nobody_reads_count_until_they_are_read(serving: Serving) -> None:
    peer = await serving.connect(initial_window_size=0)
    models = request_headers({":method": "GET", ":path": "/v1/models"}, end=True)
    piece = message(response_body(bytes(400_000)).SerializeToString())
    for number in range(1, 11, 2):
        peer.open(number)
        peer.say(number, with_modes(models, DUPLEX, DUPLEX), response_headers())
        peer.write(window_update(number, 5000))
        await peer.round_trip()
        peer.pour(number, piece)
    await peer.round_trip()
    assert 1_180_000 < await serving.metric(HELD) < 1_200_100 + STREAMS
    assert [number for number in range(1, 11, 2) if peer.told[number].reset is not None] == [7, 9]
    assert serving.app.scheduler.in_flight == 3
    peer.reset(1)
    peer.write(settings(initial_window_size=1_000_000))
    await peer.round_trip()
    assert len(peer.told[3].data) > 400_000
    assert await serving.metric(HELD) == 2 * STREAM_BYTES
    await peer.close()
    await until(lambda: not serving.app._grpc._bodies.held_bytes)
