"""The endpoint picker protocol, point by point; each test names the section of proposal 004 that it checks.

What is told of endpoints and errors beside the pick is in tests/server/test_gateway.py, the subset hint's
forms are in tests/schedule/test_subset.py.
"""

from __future__ import annotations

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.types import Destination
from epp.request.conformance import served_headers
from tests.kit.conversation import (
    DUPLEX,
    Conversation,
    asking,
    header_changes,
    metadata_of,
    reply_of,
    request_body,
    request_headers,
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


@pytest.mark.parametrize(("mode", "part"), [(BUFFERED, "request_body"), (DUPLEX, "request_headers")])
@pytest.mark.parametrize(
    "destination", ["10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.1:8000,[fd00::1]:8000,10.0.0.3:8001"]
)
def test_destination_endpoint_as_header_and_metadata(mode: BodyMode, part: str, destination: str) -> None:
    """004, destination endpoint: the same value twice, fallbacks in order, IPv6 in brackets."""
    talk = asking(mode)
    talk.pick(Destination(destination, "d-1"))
    reply = reply_of(talk.outputs, part)
    assert header_changes(reply)[DESTINATION] == destination.encode()
    assert metadata_of(reply)["envoy.lb"] == {DESTINATION: destination}
    assert getattr(reply, part).response.clear_route_cache


def test_scores_go_as_metadata_when_there_are_any() -> None:
    """llm-d's extension of 004: scores of the endpoints beside the destination."""
    talk = asking()
    talk.pick(Destination("10.0.0.1:8000", "d-1", scores={"10.0.0.1:8000": 6.5, "[fd00::1]:8000": -1.0}))
    metadata = metadata_of(reply_of(talk.outputs, "request_headers"))
    assert metadata["envoy.lb"][SCORES] == {"10.0.0.1:8000": 6.5, "[fd00::1]:8000": -1.0}


def test_the_body_does_not_take_back_the_hint_of_the_headers() -> None:
    """004, subset hint: a hint that came stays; llm-d forgets it when the body's metadata has none."""
    talk = Conversation()
    talk.send(with_modes(with_metadata(request_headers(), *HINT), DUPLEX))
    talk.send(with_metadata(request_body(b"{}", end=True), HINT[0], {"other": 1.0}))
    assert talk.asked().metadata[HINT[0]] == {**HINT[1], "other": 1.0}


def answered(*, tell_served: bool, metadata: tuple[str, dict[str, object]] | None) -> Conversation:
    talk = asking(DUPLEX, DUPLEX)
    talk.pick(Destination("10.0.0.1:8000", "d", served_headers=served_headers if tell_served else None))
    headers = response_headers()
    talk.send(headers if metadata is None else with_metadata(headers, *metadata))
    talk.send(response_trailers())
    return talk


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
    assert header_changes(reply_of(talk.outputs, "response_headers")) == {TOLD: told}


def test_without_the_switch_answers_stay_as_they_are() -> None:
    """004, conformance: clients of a deployment are not told its addresses."""
    talk = answered(tell_served=False, metadata=("envoy.lb", {SERVED: "10.0.0.2:8000"}))
    assert header_changes(reply_of(talk.outputs, "response_headers")) == {}
