"""Which modes a stream speaks, what it makes of messages out of order, and that it may end anywhere."""

from __future__ import annotations

import pytest

from epp.extproc.modes import BodyMode, Modes
from epp.extproc.stream import Stream
from epp.extproc.types import Abort, Cause, ExchangeEnded
from epp.pb.ext_proc_pb2 import ProcessingRequest
from tests.kit.conversation import (
    DUPLEX,
    POST,
    Conversation,
    ended,
    request_body,
    request_headers,
    request_trailers,
    with_modes,
)

BUFFERED = BodyMode.BUFFERED


def test_undeclared_modes_are_assumed_duplex() -> None:
    talk = Conversation()
    talk.send(request_headers(), expect=[])
    talk.send(request_body(b"{}", end=True))
    talk.pick(expect=["request_headers", "request_body"])


def assumed(mode: BodyMode) -> Conversation:
    return Conversation(Stream(assumed=Modes(mode, DUPLEX, declared=False)))


def test_undeclared_modes_are_assumed_as_configured() -> None:
    talk = assumed(BUFFERED)
    talk.send(request_headers(), expect=["request_headers"])
    talk.send(request_body(b"{}", end=True))
    talk.pick(expect=["request_body"])


def test_what_is_declared_overrides_what_is_assumed() -> None:
    talk = assumed(BUFFERED)
    talk.send(with_modes(request_headers(), DUPLEX), expect=[])


def test_pieces_contradict_an_assumed_buffer() -> None:
    talk = assumed(BUFFERED)
    talk.send(request_headers({**POST, "content-length": "100"}))
    talk.send(
        request_body(b"x" * 60),
        expect=[
            ended(Cause.PROTOCOL_ERROR),
            lambda o: isinstance(o, Abort) and "FULL_DUPLEX_STREAMED" in o.detail,
        ],
    )


@pytest.mark.parametrize("length", ["60", "", "9" * 5000, "x"])
def test_a_whole_buffer_before_trailers_contradicts_nothing(length: str) -> None:
    talk = assumed(BUFFERED)
    talk.send(request_headers({**POST, "content-length": length}))
    talk.send(request_body(b"x" * 60))
    assert talk.asked().body == b"x" * 60
    assert not talk.send(request_body()) or "assumed mode BUFFERED" in talk.outputs[-1].detail  # type: ignore[union-attr]


OUT_OF_ORDER: list[tuple[str, list[ProcessingRequest]]] = [
    ("body first", [request_body(b"{}", end=True)]),
    ("trailers first", [request_trailers()]),
    ("headers twice", [request_headers(), request_headers()]),
    ("headers after the body", [request_headers(), request_body(b"{}", end=True), request_headers()]),
    ("trailers after the end", [request_headers(), request_body(b"{}", end=True), request_trailers()]),
    ("trailers after header-only", [request_headers(end=True), request_trailers()]),
    ("nothing in it", [ProcessingRequest()]),
]


@pytest.mark.parametrize("messages", [m for _, m in OUT_OF_ORDER], ids=[name for name, _ in OUT_OF_ORDER])
def test_messages_out_of_order_abort_the_stream(messages: list[ProcessingRequest]) -> None:
    talk = Conversation()
    for message in messages[:-1]:
        talk.send(message)
    outputs = talk.send(messages[-1], expect=[ended(Cause.PROTOCOL_ERROR), lambda o: isinstance(o, Abort)])
    assert isinstance(outputs[0], ExchangeEnded)
    assert outputs[0].detail
    talk.pick(expect=[])
    talk.send(request_headers(), expect=[])
    talk.close(cut=True, expect=[])


@pytest.mark.parametrize("mode", [BodyMode.GRPC])
def test_a_mode_that_is_not_spoken_is_named(mode: BodyMode) -> None:
    talk = Conversation()
    outputs = talk.send(with_modes(request_headers(), mode))
    abort = outputs[-1]
    assert isinstance(abort, Abort)
    assert (abort.status, mode.name in abort.detail) == ("UNIMPLEMENTED", True)
