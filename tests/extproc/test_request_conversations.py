"""Requests: every mode, with and without body and trailers, answered in every way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.stream import Stream
from epp.extproc.types import Abort, Cause, Destination, HttpRequest, LocalReply
from tests.kit.conversation import (
    DUPLEX,
    POST,
    REFUSAL,
    Conversation,
    header_changes,
    metadata_of,
    part_of,
    reply_of,
    request_body,
    request_headers,
    request_trailers,
    streamed,
    with_metadata,
    with_modes,
)

if TYPE_CHECKING:
    from epp.pb.ext_proc_pb2 import ProcessingResponse

BUFFERED = BodyMode.BUFFERED
DESTINATION = "x-gateway-destination-endpoint"


def opened(mode: BodyMode, *, end: bool = False, expect: list[str] | None = None) -> Conversation:
    talk = Conversation()
    talk.send(with_modes(request_headers(end=end), mode), expect)
    return talk


def carries_pick(reply: ProcessingResponse) -> bool:
    common = getattr(reply, part_of(reply)).response
    metadata = metadata_of(reply)
    return (
        header_changes(reply).get(DESTINATION) == b"10.0.0.1:8000"
        and common.clear_route_cache
        and metadata["envoy.lb"][DESTINATION] == "10.0.0.1:8000"
        and metadata["epp"]["decision_id"] == "d-1"
    )


def is_bare(reply: ProcessingResponse) -> bool:
    common = getattr(reply, part_of(reply)).response
    return not (
        reply.HasField("dynamic_metadata") or common.HasField("header_mutation") or common.clear_route_cache
    )


def test_buffered_is_two_messages_each_way() -> None:
    talk = opened(BUFFERED, expect=["request_headers"])
    assert is_bare(reply_of(talk.outputs, "request_headers"))
    talk.send(request_body(b'{"a":1}', end=True))
    assert talk.asked() == HttpRequest("POST", POST[":path"], POST, b'{"a":1}')
    outputs = talk.pick(expect=["request_body"])
    reply = reply_of(outputs, "request_body")
    assert carries_pick(reply)
    assert not reply.request_body.response.HasField("body_mutation")
    assert "content-length" not in header_changes(reply)


def test_duplex_answers_headers_before_the_body_and_neither_before_the_pick() -> None:
    talk = opened(DUPLEX, expect=[])
    talk.send(request_body(b'{"a"'), expect=[])
    talk.send(request_body(b":1}", end=True))
    assert talk.asked() == HttpRequest("POST", POST[":path"], POST, b'{"a":1}', full_duplex=True)
    outputs = talk.pick(expect=["request_headers", "request_body"])
    assert carries_pick(reply_of(outputs, "request_headers"))
    assert streamed(outputs, "request_body") == (b'{"a":1}', [True])


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_headers_alone_are_a_whole_request(mode: BodyMode) -> None:
    talk = opened(mode, end=True)
    assert talk.asked().body is None
    assert carries_pick(reply_of(talk.pick(expect=["request_headers"]), "request_headers"))


def test_duplex_trailers_end_the_request_and_are_answered_last() -> None:
    talk = opened(DUPLEX)
    talk.send(request_body(b"x" * 100_000), expect=[])
    talk.send(request_trailers())
    assert talk.asked().body == b"x" * 100_000
    outputs = talk.pick(expect=["request_headers", "request_body", "request_body", "request_trailers"])
    assert streamed(outputs, "request_body") == (b"x" * 100_000, [False, False])


@pytest.mark.parametrize("told_the_end", [False, True])
def test_buffered_trailers_come_after_the_body_was_answered(told_the_end: bool) -> None:
    talk = opened(BUFFERED)
    talk.send(request_body(b"{}", end=told_the_end))
    assert talk.asked().body == b"{}", "Envoy sends trailers only after the answer to the body"
    talk.pick(expect=["request_body"])
    talk.send(request_trailers(), expect=["request_trailers"])
    talk.send(request_trailers(), expect=[Cause.PROTOCOL_ERROR, lambda o: isinstance(o, Abort)])


def test_buffered_trailers_without_a_body_carry_the_pick_as_metadata() -> None:
    talk = opened(BUFFERED)
    talk.send(request_trailers())
    assert talk.asked().body == b""
    reply = reply_of(talk.pick(expect=["request_trailers"]), "request_trailers")
    assert metadata_of(reply)["envoy.lb"][DESTINATION] == "10.0.0.1:8000"


@pytest.mark.parametrize("size", [61_999, 62_000, 62_001, 124_000, 20 << 20])
def test_bodies_go_back_in_pieces(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    talk = opened(DUPLEX)
    talk.send(request_body(body[:size], end=True))
    joined, ends = streamed(talk.pick(), "request_body")
    assert joined == body[:size]
    assert len(ends) == -(-size // 62_000)
    assert ends[-1], "the last piece ends the stream"


@pytest.mark.parametrize("before", [True, False], ids=["before-the-pick", "after-the-pick"])
def test_a_last_piece_delivered_twice_is_ignored(before: bool) -> None:
    talk = opened(DUPLEX)
    talk.send(request_body(b"{}", end=True))
    if before:
        talk.send(request_body(b"{}", end=True), expect=[])
    talk.pick(expect=["request_headers", "request_body"])
    if not before:
        talk.send(request_body(b"{}", end=True), expect=[])
    assert streamed(talk.outputs, "request_body") == (b"{}", [True])
    talk.close(expect=[Cause.STREAM_END])


REPLACED = Destination("10.0.0.1:8000", "d-1", {"x-a": "1"}, body=b"other")


def test_a_replaced_body_brings_its_length() -> None:
    talk = opened(BUFFERED)
    talk.send(request_body(b"{}", end=True))
    reply = reply_of(talk.pick(REPLACED), "request_body")
    assert reply.request_body.response.body_mutation.body == b"other"
    assert header_changes(reply) == {"x-a": b"1", "content-length": b"5", DESTINATION: b"10.0.0.1:8000"}


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
@pytest.mark.parametrize("end", [True, False], ids=["header-only", "with-body"])
def test_a_refusal_is_the_last_word(mode: BodyMode, end: bool) -> None:
    talk = opened(mode, end=end)
    if not end:
        talk.send(request_body(b"{}", end=True))
    outputs = talk.refuse(expect=["immediate_response", Cause.REFUSED])
    reply = reply_of(outputs, "immediate_response").immediate_response
    assert (reply.status.code, reply.body) == (503, REFUSAL.body)
    assert header_changes(reply_of(outputs, "immediate_response")) == {"content-type": b"application/json"}
    talk.send(request_body(b"{}", end=True), expect=[])
    talk.send(request_headers(), expect=[])
    talk.pick(expect=[])
    talk.close(expect=[])


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_a_body_over_the_limit_is_refused_in_the_shells_words(mode: BodyMode) -> None:
    def words(request: HttpRequest, status: int) -> LocalReply:
        assert request.body is None
        return LocalReply(status, f"{request.path} takes 10".encode())

    talk = Conversation(Stream(10, refuse=words))
    talk.send(with_modes(request_headers(), mode))
    if mode is DUPLEX:
        talk.send(request_body(b"12345"), expect=[])
    outputs = talk.send(request_body(b"12345678901"), expect=["immediate_response", Cause.REFUSED])
    reply = reply_of(outputs, "immediate_response").immediate_response
    assert (reply.status.code, reply.body) == (413, b"/v1/chat/completions takes 10")
    talk.send(request_body(b"more", end=True), expect=[])
    talk.close(cut=True, expect=[])


@pytest.mark.parametrize("where", ["headers", "body"])
def test_the_subset_hint_comes_with_whichever_message_has_it(where: str) -> None:
    headers, body = with_modes(request_headers(), DUPLEX), request_body(b"{}", end=True)
    subset = {
        "x-gateway-destination-endpoint-subset": ["10.0.0.1:8000", "10.0.0.2:8000"],
        "n": 1,
        "none": None,
    }
    with_metadata(headers if where == "headers" else body, "envoy.lb.subset_hint", subset)
    with_metadata(headers, "other", {"deep": {"flag": True}})
    talk = Conversation()
    talk.send(headers)
    talk.send(body)
    assert talk.asked().metadata == {"envoy.lb.subset_hint": subset}, "nobody reads the other"


def test_headers_are_lower_cased_lists_of_their_values_and_never_fail() -> None:
    message = with_modes(request_headers({":method": "GET", ":path": "/x?y=1", "a": "1"}, end=True), DUPLEX)
    message.request_headers.headers.headers.add(key="A", value="plain")
    message.request_headers.headers.headers.add(key="bad", raw_value=b"\xff\xfe")
    talk = Conversation()
    talk.send(message)
    request = talk.asked()
    assert (request.method, request.path, request.headers["a"]) == ("GET", "/x?y=1", "1,plain")
    request.headers["bad"].encode()
