"""Responses: not shown, streamed, full duplex; observed or not; ended in every way."""

from __future__ import annotations

from itertools import product

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.types import (
    Abort,
    Cause,
    Destination,
    Finish,
    HttpRequest,
    Observe,
    ResponseData,
    ResponseStarted,
)
from epp.pb.ext_proc_pb2 import CommonResponse, ProcessingRequest, ProcessingResponse
from tests.kit.conversation import (
    DUPLEX,
    PICK,
    Conversation,
    asking,
    header_changes,
    metadata_of,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    with_metadata,
    with_modes,
)

STREAMED, NONE = BodyMode.STREAMED, BodyMode.NONE
COMPLETED = Cause.COMPLETED
STARTED = ResponseStarted(200, {":status": "200"})
UNOBSERVED = Destination("10.0.0.1:8000", "d-1", observe_response=Observe.END_STREAM_AFTER_PICK)
CARRIED = Destination("10.0.0.1:8000", "d-1", observe_response=Observe.CARRY)


def answered(response: BodyMode, request: BodyMode = DUPLEX, pick: Destination = PICK) -> Conversation:
    talk = asking(request, response)
    talk.pick(pick)
    return talk


@pytest.mark.parametrize("mode", [STREAMED, DUPLEX, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_every_piece_is_answered_at_once_and_told(mode: BodyMode) -> None:
    talk = answered(mode)
    talk.send(response_headers(), expect=["response_headers", STARTED])
    talk.send(response_body(b"one"), expect=["response_body", ResponseData(b"one")])
    talk.send(response_body(b"two"), expect=["response_body", ResponseData(b"two")])
    talk.send(response_body(end=True), expect=["response_body", ResponseData(b""), COMPLETED])
    back, ends = streamed(talk.outputs, "response_body")
    assert back == (b"onetwo" if mode is DUPLEX else b""), "only full duplex carries the bytes back"
    assert ends == ([False, False, True] if mode is DUPLEX else [False] * 3)
    talk.close(expect=[])


@pytest.mark.parametrize("mode", [NONE, STREAMED, DUPLEX])
def test_trailers_complete_a_response(mode: BodyMode) -> None:
    talk = answered(mode)
    talk.send(response_headers())
    if mode is not NONE:
        talk.send(response_body(b"x"))
    talk.send(response_trailers(), expect=["response_trailers", COMPLETED])
    talk.send(response_trailers(), expect=[lambda o: isinstance(o, Abort) and o.status == "INVALID_ARGUMENT"])


def test_a_last_piece_delivered_twice_is_ignored() -> None:
    talk = answered(DUPLEX)
    talk.send(response_headers())
    talk.send(response_body(b"x", end=True))
    talk.send(response_body(b"x", end=True), expect=[])


def test_a_response_of_headers_alone_is_complete() -> None:
    talk = answered(NONE)
    talk.send(
        response_headers("204", end=True),
        expect=["response_headers", ResponseStarted(204, {":status": "204"}), COMPLETED],
    )


def test_the_endpoint_that_served_is_told() -> None:
    talk = answered(NONE)
    message = with_metadata(
        response_headers(), "envoy.lb", {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}
    )
    started = talk.send(message)[1]
    assert isinstance(started, ResponseStarted)
    assert started.served == "10.0.0.2:8000"


@pytest.mark.parametrize("request_mode", [BodyMode.BUFFERED, DUPLEX])
def test_the_end_of_the_stream_is_the_end_of_a_response_that_is_not_shown(request_mode: BodyMode) -> None:
    talk = answered(NONE, request_mode)
    talk.close(expect=[Cause.STREAM_END])


def test_envoy_may_answer_before_we_do() -> None:
    talk = asking(DUPLEX, DUPLEX)
    talk.send(response_headers("408"))
    talk.send(
        response_body(b"timeout", end=True), expect=["response_body", ResponseData(b"timeout"), COMPLETED]
    )
    talk.pick(expect=[])
    talk.refuse(expect=[])
    talk.close(expect=[])


@pytest.mark.parametrize("rest", [request_body(b"{}", end=True), request_trailers()])
def test_no_pick_is_asked_for_once_the_client_has_its_answer(rest: ProcessingRequest) -> None:
    talk = Conversation()
    talk.send(with_modes(request_headers(), DUPLEX, DUPLEX))
    talk.send(response_headers("408", end=True))
    talk.send(rest, expect=[])
    talk.close(expect=[])


@pytest.mark.parametrize("response_mode", [STREAMED, DUPLEX])
@pytest.mark.parametrize("request_mode", [BodyMode.BUFFERED, DUPLEX])
@pytest.mark.parametrize("kind", ["header-only", "body", "trailers", "bare trailers"])
def test_what_is_left_ends_with_one_reply_that_carries_all(
    request_mode: BodyMode, response_mode: BodyMode, kind: str
) -> None:
    talk = Conversation()
    talk.send(with_modes(request_headers(end=kind == "header-only"), request_mode, response_mode))
    if kind in ("body", "trailers"):
        talk.send(request_body(b"{}", end=kind == "body"))
    if kind.endswith("trailers") and not (kind == "trailers" and request_mode is BodyMode.BUFFERED):
        talk.send(request_trailers())
    outputs = talk.pick(UNOBSERVED)
    assert len(outputs) == 3, "one reply, the end, the marker"
    assert outputs[-2:] == [Cause.UNOBSERVED, Finish()]
    reply = outputs[0]
    assert isinstance(reply, ProcessingResponse)
    assert metadata_of(reply)["envoy.lb"] == {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
    replaced = reply.request_headers.response
    if request_mode is DUPLEX and kind in ("body", "trailers"):
        assert replaced.status == CommonResponse.CONTINUE_AND_REPLACE
        assert replaced.body_mutation.body == b"{}"
        assert header_changes(reply)["x-gateway-destination-endpoint"] == b"10.0.0.1:8000"
    else:
        assert not replaced.HasField("body_mutation")
    talk.send(request_body(b"{}", end=True), expect=[])
    talk.send(response_headers(), expect=[])
    talk.close(expect=[])


@pytest.mark.parametrize("mode", [STREAMED, DUPLEX])
def test_what_is_carried_passes_through_unread(mode: BodyMode) -> None:
    talk = answered(mode, DUPLEX, CARRIED)
    talk.send(response_headers(), expect=["response_headers", STARTED])
    talk.send(response_body(b"x"), expect=["response_body"])
    talk.send(response_body(b"y", end=True), expect=["response_body", COMPLETED])
    assert streamed(talk.outputs, "response_body")[0] == (b"xy" if mode is DUPLEX else b"")


def test_an_answer_that_overtook_the_pick_is_not_left() -> None:
    talk = asking(DUPLEX, DUPLEX)
    talk.send(response_headers("413"))
    talk.pick(UNOBSERVED, expect=["request_headers", "request_body"])
    talk.send(response_body(b"too long", end=True), expect=["response_body", COMPLETED])


def test_a_stream_that_costs_nothing_stays_open_as_the_sign_of_the_end() -> None:
    talk = answered(NONE, BodyMode.BUFFERED, UNOBSERVED)
    talk.close(cut=True, expect=[Cause.CLIENT_GONE])


RESPONSE_PARTS = [response_headers(), response_body(b"a"), response_body(b"b"), response_trailers()]


@pytest.mark.parametrize(
    ("cut", "upto", "mode"), [*product([True, False], range(5), [NONE, STREAMED, DUPLEX])]
)
def test_a_stream_may_end_anywhere(cut: bool, upto: int, mode: BodyMode) -> None:
    talk = answered(mode)
    for message in RESPONSE_PARTS[:upto]:
        copy = ProcessingRequest()
        copy.CopyFrom(message)
        talk.send(copy)
    cause = Cause.CLIENT_GONE if cut else Cause.STREAM_END
    if upto and mode is not NONE:
        cause = Cause.CUT_OFF  # its end would have been shown
    talk.close(cut=cut, expect=[] if upto == 4 else [cause])
    assert sum(isinstance(output, Cause) for output in talk.outputs) == 1
    assert isinstance(talk.asked(), HttpRequest)
