"""What all streams hold together of bodies: refused beyond it, and given back exactly once however one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epp.extproc.body_budget import BodyBudget, Share
from epp.extproc.messages import header_values, plain_bytes
from epp.extproc.modes import BodyMode
from epp.extproc.stream import Stream
from epp.extproc.types import Cause, DecideAt, HttpRequest, LocalReply
from epp.pb.ext_proc_pb2 import ProcessingResponse
from tests.kit.conversation import (
    DUPLEX,
    Conversation,
    request_body,
    request_headers,
    request_trailers,
    response_headers,
    with_metadata,
    with_modes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFERED, PARTIAL = BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL


#: What a request's headers take while they wait.
HEAD = plain_bytes(header_values(request_headers().request_headers.headers))


def words(request: HttpRequest, status: int) -> LocalReply:
    assert request.body is None
    return LocalReply(status, f"no room on {request.path}".encode())


def budget(*arguments: Any) -> Share:
    """A budget, by the share of its only connection."""
    return BodyBudget(*arguments).share()


def sending(bodies: Share, mode: BodyMode = DUPLEX, at: DecideAt = DecideAt.BODY) -> Conversation:
    """A request whose body is to come."""
    stream = Stream(50, refuse=words, pick_at=lambda _: at, bodies=bodies)
    talk = Conversation(stream)
    talk.send(with_modes(request_headers(), mode))
    return talk


def test_the_piece_beyond_is_refused_in_the_shells_words_and_makes_room() -> None:
    bodies = budget(30 + 2 * HEAD)
    first, second = sending(bodies), sending(bodies)
    first.send(request_body(bytes(20)), expect=[])
    second.send(request_body(bytes(10)), expect=[])
    refusal, _ = second.send(request_body(b"1"), expect=["immediate_response", Cause.REFUSED])
    assert isinstance(refusal, ProcessingResponse)
    reply = refusal.immediate_response
    assert (reply.status.code, reply.body) == (503, b"no room on /v1/chat/completions")
    assert bodies.held_bytes == HEAD + 20
    second.send(request_body(b"more", end=True), expect=[])
    second.close(cut=True, expect=[])
    assert bodies.held_bytes == HEAD + 20
    first.send(request_body(bytes(10)), expect=[])
    assert bodies.held_bytes == HEAD + 30


def test_headers_and_metadata_that_wait_count_as_they_lie_in_memory() -> None:
    hint = {"endpoints": [f"10.0.0.{number}:8000" for number in range(50)]}
    bodies = budget(2 * HEAD + 5000)
    sending(bodies)
    talk = Conversation(Stream(pick_at=lambda _: DecideAt.BODY, bodies=bodies))
    headers = with_metadata(with_modes(request_headers(), DUPLEX), "envoy.lb.subset_hint", hint)
    talk.send(headers)
    assert HEAD + 3500 < bodies.held_bytes - HEAD < HEAD + 5000
    again = with_metadata(request_body(b""), "envoy.lb.subset_hint", hint)
    talk.send(again)
    assert HEAD + 3500 < bodies.held_bytes - HEAD < HEAD + 5000, "it takes the place of the first"
    more = with_metadata(request_body(b""), "envoy.lb.subset_hint", {"more": "x" * 2000})
    refusal, _ = talk.send(more, expect=["immediate_response", Cause.REFUSED])
    assert isinstance(refusal, ProcessingResponse)
    assert refusal.immediate_response.status.code == 503
    assert bodies.held_bytes == HEAD
    other = Conversation(Stream(pick_at=lambda _: DecideAt.BODY, bodies=bodies))
    long = with_modes(request_headers({":path": "/v1/chat/completions", "x-long": "x" * 6000}), DUPLEX)
    other.send(long, expect=["immediate_response", Cause.REFUSED])
    assert bodies.held_bytes == HEAD


def test_after_the_pick_a_request_keeps_its_method_and_path_alone() -> None:
    bodies, asked = budget(), list[HttpRequest]()

    def note(request: HttpRequest, status: int) -> LocalReply:
        asked.append(request)
        return LocalReply(status, b"no room")

    talk = Conversation(Stream(refuse=note, pick_at=lambda _: DecideAt.BODY, bodies=bodies))
    talk.send(with_metadata(with_modes(request_headers(), DUPLEX), "envoy.lb.subset_hint", {"a": 1.0}))
    talk.send(request_body(b"{}", end=True))
    talk.pick()
    assert bodies.held_bytes == 0
    talk.stream.no_room()
    (kept,) = asked
    assert kept.headers == {":method": "POST", ":path": "/v1/chat/completions"}
    assert kept.metadata == {}


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED, PARTIAL])
def test_what_makes_a_body_whole_is_taken_without_room(mode: BodyMode) -> None:
    bodies = budget(10 + 2 * HEAD)
    sending(bodies).send(request_body(bytes(10)))
    talk = sending(bodies, mode)
    talk.send(request_body(b"123456789012", end=mode is not PARTIAL))
    assert talk.asked().body == b"123456789012"
    assert bodies.held_bytes == 2 * HEAD + 22, "until its pick is answered"
    talk.pick()
    assert bodies.held_bytes == HEAD + 10


def whole(talk: Conversation) -> None:
    talk.send(request_body(b"2", end=True))
    assert talk.asked()


def picked(talk: Conversation) -> None:
    whole(talk)
    talk.pick()


def refused(talk: Conversation) -> None:
    whole(talk)
    talk.refuse()


def ended_by_trailers(talk: Conversation) -> None:
    talk.send(request_trailers())
    talk.pick()


def too_long(talk: Conversation) -> None:
    talk.send(request_body(bytes(60)))


def out_of_order(talk: Conversation) -> None:
    talk.send(request_headers())


def answered_before(talk: Conversation) -> None:
    talk.send(response_headers("413", end=True))


@pytest.mark.parametrize("end", [picked, refused, ended_by_trailers, too_long, out_of_order, answered_before])
def test_it_is_given_back_once(end: Callable[[Conversation], None]) -> None:
    bodies = budget(10_000)
    sending(bodies).send(request_body(b"another's"))
    talk = sending(bodies)
    talk.send(request_body(b"12345"))
    assert bodies.held_bytes == 2 * HEAD + 14
    end(talk)
    assert bodies.held_bytes == HEAD + 9
    talk.close(cut=False)
    talk.close(cut=True)
    assert bodies.held_bytes == HEAD + 9


def test_who_holds_the_most_gives_way_to_who_holds_little() -> None:
    whole = BodyBudget(100)
    ended: list[str] = []

    def reclaim(needed: Callable[[], bool]) -> None:
        while needed():
            ended.append("call")
            greedy.release(10)

    greedy, modest = whole.share(reclaim), whole.share()
    while greedy.reserve(10):
        pass
    assert greedy.held_bytes == 100
    assert modest.reserve(25)
    assert len(ended) == 3
    assert modest.reserve(9)
    assert not modest.reserve(10), "it would hold more than half as much by now"
    assert not greedy.reserve(10)
    assert whole.held_bytes == greedy.held_bytes + modest.held_bytes <= 100
