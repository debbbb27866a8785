"""Picks that do not wait for the body: what the headers' reply says, and what comes of the body all the same."""

from __future__ import annotations

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.request_side import HELD_BYTES
from epp.extproc.stream import Stream
from epp.extproc.types import Cause, DecideAt, Destination, Finish, Observe
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingResponse
from epp.pb.processing_mode_pb2 import ProcessingMode
from tests.kit.conversation import (
    DUPLEX,
    Conversation,
    header_changes,
    request_body,
    request_headers,
    streamed,
    with_modes,
)

NONE, STREAMED = BodyMode.NONE, BodyMode.STREAMED
LOCKSTEP = [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, STREAMED]


def opened(mode: BodyMode, at: DecideAt, response: BodyMode = NONE, *, ahead: bool = False) -> Conversation:
    talk = Conversation(Stream(pick_at=lambda _: at))
    first = with_modes(request_headers(), mode, response)
    first.protocol_config.send_body_without_waiting_for_header_response = ahead
    talk.send(first)
    return talk


def headers_reply(outputs: list[object]) -> ProcessingResponse:
    reply = outputs[0]
    assert isinstance(reply, ProcessingResponse)
    assert reply.HasField("request_headers")
    return reply


@pytest.mark.parametrize("at", [DecideAt.HEADERS, DecideAt.EITHER, DecideAt.UPGRADE])
@pytest.mark.parametrize("mode", LOCKSTEP)
def test_the_body_is_left_with_envoy(mode: BodyMode, at: DecideAt) -> None:
    talk = opened(mode, at)
    request = talk.asked()
    assert (request.body, request.whole) == (None, False)
    reply = headers_reply([*talk.pick()])
    assert reply.request_headers.response.status == CommonResponse.CONTINUE_AND_REPLACE
    assert not reply.request_headers.response.HasField("body_mutation"), "which would replace it"
    assert reply.mode_override.request_body_mode == ProcessingMode.NONE
    assert reply.mode_override.response_header_mode == ProcessingMode.SKIP
    assert header_changes(reply)["x-gateway-destination-endpoint"] == b"10.0.0.1:8000"
    assert talk.stream.released
    talk.send(request_body(b"all the same", end=True), expect=["request_body"])


def test_full_duplex_passes_an_upload_piece_by_piece() -> None:
    talk = opened(DUPLEX, DecideAt.HEADERS, DUPLEX)
    talk.send(request_body(b"before the pick"), expect=[])
    outputs = talk.pick(
        Destination("a:1", "d", body=b"other", observe_response=Observe.END_STREAM_AFTER_PICK)
    )
    assert streamed(outputs, "request_body") == (b"before the pick", [False])
    assert streamed(talk.send(request_body(b"x" * 70_000)), "request_body") == (b"x" * 70_000, [False, False])
    assert streamed(talk.send(request_body(b"end", end=True)), "request_body") == (b"end", [True])
    talk.send(request_body(b"end", end=True), expect=[])  # delivered twice
    talk.close(expect=[Cause.STREAM_END])


def test_an_upgrade_in_full_duplex_can_be_left_with_the_headers() -> None:
    talk = opened(DUPLEX, DecideAt.UPGRADE, DUPLEX)
    outputs = talk.pick(Destination("a:1", "d", observe_response=Observe.END_STREAM_AFTER_PICK))
    assert outputs[1:] == [Cause.UNOBSERVED, Finish()]


def test_full_duplex_waits_for_what_nobody_needs() -> None:
    talk = opened(DUPLEX, DecideAt.EITHER, DUPLEX)
    talk.send(request_body(b"{}", end=True))
    assert talk.asked().body == b"{}"


@pytest.mark.parametrize("size", [1, 1000, HELD_BYTES, HELD_BYTES + 1])
def test_bodies_ahead_are_held_up_to_what_every_gateway_reads(size: int) -> None:
    talk = opened(STREAMED, DecideAt.BODY, ahead=True)
    talk.send(request_body(b"x" * size), expect=[] if size <= HELD_BYTES else None)
    if size <= HELD_BYTES:
        talk.send(request_body(b"", end=True))
        assert talk.asked().body == b"x" * size
        talk.pick(expect=["request_headers", "request_body", "request_body"])
    else:
        assert not talk.asked().whole
        talk.pick(expect=["request_headers", "request_body"])
        talk.send(request_body(b"rest", end=True), expect=["request_body"])


@pytest.mark.parametrize("end", [True, False])
def test_a_partial_buffer_may_be_cut(end: bool) -> None:
    talk = opened(BodyMode.BUFFERED_PARTIAL, DecideAt.BODY)
    talk.send(request_body(b"{}", end=end))
    request = talk.asked()
    assert (request.body, request.whole) == (b"{}", end)
    talk.pick(expect=["request_body"])


@pytest.mark.parametrize("refuse", [True, False])
def test_observing_asks_and_says_nothing(refuse: bool) -> None:
    message = with_modes(request_headers(), STREAMED, STREAMED)
    message.observability_mode = True
    talk = Conversation()
    talk.send(message, expect=[])
    talk.send(request_body(b"x" * 100_000), expect=[])
    talk.send(request_body(b"", end=True))
    assert talk.asked().body == b"x" * 100_000
    if refuse:
        talk.refuse(expect=[Cause.REFUSED])
    else:
        talk.pick(Destination("a:1", "d", observe_response=Observe.END_STREAM_AFTER_PICK), expect=[])
        talk.close(expect=[Cause.STREAM_END])
