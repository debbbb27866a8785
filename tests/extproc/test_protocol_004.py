"""The endpoint picker protocol, point by point; each test names the section of proposal 004 that it checks.

What is told of endpoints and errors beside the pick is in tests/server/test_gateway.py, the subset hint's
forms are in tests/schedule/test_subset.py.
"""

from __future__ import annotations

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.stream import Stream
from epp.extproc.types import Cause, Pick, Refusal, ResponseStarted
from epp.pb.ext_proc_pb2 import ProcessingResponse
from tests.kit.conversation import (
    DUPLEX,
    Conversation,
    ended,
    header_changes,
    metadata_of,
    part_of,
    request_body,
    request_headers,
    request_trailers,
    response_headers,
    response_trailers,
    with_metadata,
    with_modes,
)

BUFFERED = BodyMode.BUFFERED
DESTINATION = "x-gateway-destination-endpoint"
SCORES = "x-gateway-destination-endpoint-scores"
SERVED = "x-gateway-destination-endpoint-served"
TOLD = "x-conformance-test-served-endpoint"
HINT = ("envoy.lb.subset_hint", {"x-gateway-destination-endpoint-subset": ["10.0.0.1:8000"]})


def asked(mode: BodyMode, stream: Stream | None = None, response: BodyMode = BodyMode.NONE) -> Conversation:
    talk = Conversation(stream or Stream())
    talk.send(with_modes(request_headers(), mode, response))
    talk.send(request_body(b"{}", end=True))
    return talk


def carrier(talk: Conversation, part: str) -> ProcessingResponse:
    """The reply that carries the answer."""
    return next(o for o in talk.outputs if isinstance(o, ProcessingResponse) and part_of(o) == part)


@pytest.mark.parametrize(("mode", "part"), [(BUFFERED, "request_body"), (DUPLEX, "request_headers")])
@pytest.mark.parametrize(
    "destination", ["10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.1:8000,[fd00::1]:8000,10.0.0.3:8001"]
)
def test_destination_endpoint_as_header_and_metadata(mode: BodyMode, part: str, destination: str) -> None:
    """004, destination endpoint: the same value twice, fallbacks in order, IPv6 in brackets."""
    talk = asked(mode)
    talk.pick(Pick(destination, "d-1"))
    reply = carrier(talk, part)
    assert header_changes(reply)[DESTINATION] == destination.encode()
    assert metadata_of(reply)["envoy.lb"] == {DESTINATION: destination}
    assert getattr(reply, part).response.clear_route_cache


def test_scores_go_as_metadata_when_there_are_any() -> None:
    """llm-d's extension of 004: scores of the endpoints beside the destination."""
    talk = asked(DUPLEX)
    talk.pick(Pick("10.0.0.1:8000", "d-1", scores={"10.0.0.1:8000": 6.5, "[fd00::1]:8000": -1.0}))
    metadata = metadata_of(carrier(talk, "request_headers"))
    assert metadata["envoy.lb"][SCORES] == {"10.0.0.1:8000": 6.5, "[fd00::1]:8000": -1.0}


def test_the_subset_hint_comes_with_the_headers() -> None:
    """004, subset hint: with the headers' message."""
    talk = Conversation()
    talk.send(with_modes(with_metadata(request_headers(end=True), *HINT), DUPLEX))
    assert talk.asked().request.metadata[HINT[0]] == HINT[1]


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_the_subset_hint_comes_with_the_body(mode: BodyMode) -> None:
    """004, subset hint: with the body's message, as llm-d reads it."""
    talk = Conversation()
    talk.send(with_modes(request_headers(), mode))
    talk.send(with_metadata(request_body(b"{}", end=True), *HINT))
    assert talk.asked().request.metadata[HINT[0]] == HINT[1]


def test_the_body_does_not_take_back_the_hint_of_the_headers() -> None:
    """004, subset hint: a hint that came stays; llm-d forgets it when the body's metadata has none."""
    talk = Conversation()
    talk.send(with_modes(with_metadata(request_headers(), *HINT), DUPLEX))
    talk.send(with_metadata(request_body(b"{}", end=True), HINT[0], {"other": 1.0}))
    assert talk.asked().request.metadata[HINT[0]] == {**HINT[1], "other": 1.0}


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_a_request_without_a_body_is_picked_for_at_its_headers(mode: BodyMode) -> None:
    """004, requests without a body: by policy and subset like any other, not at random."""
    talk = Conversation()
    talk.send(with_modes(with_metadata(request_headers(end=True), *HINT), mode))
    assert talk.asked().request.body is None
    talk.pick(expect=["request_headers"])


def test_trailers_end_a_request_in_full_duplex() -> None:
    """004, trailers: llm-d never answers a request whose trailers end it; here they are its end."""
    talk = Conversation()
    talk.send(with_modes(request_headers(), DUPLEX))
    talk.send(request_body(b"{}"), expect=[])
    talk.send(request_trailers())
    talk.asked()
    talk.pick(expect=["request_headers", "request_body", "request_trailers"])


@pytest.mark.parametrize("before", [True, False], ids=["before-the-pick", "after-it"])
def test_an_end_of_stream_that_comes_twice_asks_once(before: bool) -> None:
    """Envoy >= 1.35 may deliver the last piece of a large body twice in full duplex."""
    talk = asked(DUPLEX)
    if before:
        talk.send(request_body(b"{}", end=True), expect=[])
        talk.pick(expect=["request_headers", "request_body"])
    else:
        talk.pick(expect=["request_headers", "request_body"])
        talk.send(request_body(b"", end=True), expect=[])


def test_errors_are_immediate_responses_with_their_headers() -> None:
    """004, errors: an HTTP answer, never an error of the stream."""
    talk = asked(DUPLEX)
    refusal = Refusal(
        503, b"inference error: ServiceUnavailable - x", "text/plain",
        {"x-llm-d-request-dropped-reason": "rejected-no-endpoints"}, "pool-empty",
    )  # fmt: skip
    talk.refuse(refusal, expect=["immediate_response", ended(Cause.REFUSED)])
    reply = carrier(talk, "immediate_response")
    assert reply.immediate_response.status.code == 503
    assert header_changes(reply) == {
        "content-type": b"text/plain",
        "x-llm-d-request-dropped-reason": b"rejected-no-endpoints",
    }


def answered(*, tell_served: bool, metadata: tuple[str, dict[str, object]] | None) -> Conversation:
    talk = asked(DUPLEX, Stream(tell_served=tell_served), DUPLEX)
    talk.pick()
    headers = response_headers()
    talk.send(headers if metadata is None else with_metadata(headers, *metadata))
    talk.send(response_trailers())
    return talk


@pytest.mark.parametrize("switch", [True, False])
def test_who_served_is_told_by_the_proxy(switch: bool) -> None:
    """004, served endpoint: metadata of the response headers, whatever the conformance switch says."""
    talk = answered(tell_served=switch, metadata=("envoy.lb", {SERVED: "10.0.0.2:8000"}))
    started = next(o for o in talk.outputs if isinstance(o, ResponseStarted))
    assert started.served == "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        (("envoy.lb", {SERVED: "10.0.0.2:8000"}), b"10.0.0.2:8000"),
        (("envoy.lb", {}), b"fail: missing destination endpoint served metadata"),
        (("envoy.lb", {SERVED: 7.0}), b"fail: missing destination endpoint served metadata"),
        (("other", {}), b"fail: missing envoy lb metadata"),
        (None, b"fail: missing envoy lb metadata"),
    ],
)
def test_the_suite_is_told_who_served(metadata: tuple[str, dict[str, object]] | None, told: bytes) -> None:
    """004, conformance: the response header, and the suite's words when nobody is told."""
    talk = answered(tell_served=True, metadata=metadata)
    assert header_changes(carrier(talk, "response_headers")) == {TOLD: told}


def test_without_the_switch_answers_stay_as_they_are() -> None:
    """004, conformance: clients of a deployment are not told its addresses."""
    talk = answered(tell_served=False, metadata=("envoy.lb", {SERVED: "10.0.0.2:8000"}))
    assert header_changes(carrier(talk, "response_headers")) == {}
