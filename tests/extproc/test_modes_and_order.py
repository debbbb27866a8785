"""Which modes a stream speaks, what it makes of messages out of order, and that it may end anywhere."""

from __future__ import annotations

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.types import Abort, Cause
from epp.pb.ext_proc_pb2 import ProcessingRequest
from tests.kit.conversation import (
    Conversation,
    request_body,
    request_headers,
    request_trailers,
    with_modes,
)


def test_undeclared_modes_are_assumed_duplex() -> None:
    talk = Conversation()
    talk.send(request_headers(), expect=[])
    talk.send(request_body(b"{}", end=True))
    talk.pick(expect=["request_headers", "request_body"])


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
    outputs = talk.send(messages[-1], expect=[Cause.PROTOCOL_ERROR, lambda o: isinstance(o, Abort)])
    assert isinstance(outputs[1], Abort)
    assert outputs[1].detail
    talk.pick(expect=[])
    talk.send(request_headers(), expect=[])
    talk.close(cut=True, expect=[])


def test_a_mode_that_is_not_spoken_is_named() -> None:
    talk = Conversation()
    outputs = talk.send(with_modes(request_headers(), BodyMode.GRPC))
    abort = outputs[-1]
    assert isinstance(abort, Abort)
    assert (abort.status, "GRPC" in abort.detail) == ("UNIMPLEMENTED", True)
