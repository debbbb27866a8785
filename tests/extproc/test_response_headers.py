"""Headers that a pick sets on its response: in every mode that shows one, whatever else becomes of it."""

from __future__ import annotations

import pytest

from epp.extproc.modes import BodyMode
from epp.extproc.types import Destination, Observe
from epp.request.conformance import served_headers
from tests.kit.conversation import (
    DUPLEX,
    asking,
    reply_of,
    response_body,
    response_headers,
)


class Upper:
    def feed(self, data: bytes) -> bytes:
        return data.upper()


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, DUPLEX, BodyMode.BUFFERED, BodyMode.NONE])
@pytest.mark.parametrize("observe", list(Observe))
@pytest.mark.parametrize("rewritten", [False, True])
def test_they_are_set_in_the_reply_to_the_response_headers(
    mode: BodyMode, observe: Observe, rewritten: bool
) -> None:
    pick = Destination(
        "a:1",
        "d",
        response_headers={"x-epp-served-model": "granite", "x-epp-untried-models": "4"},
        observe_response=observe,
        rewrite_response=(lambda _: Upper()) if rewritten else None,
    )
    talk = asking(DUPLEX, mode)
    talk.pick(pick)
    reply = reply_of(talk.send(response_headers()), "response_headers")
    mutation = reply.response_headers.response.header_mutation
    told = {option.header.key: option.header.raw_value for option in mutation.set_headers}
    assert told == {"x-epp-served-model": b"granite", "x-epp-untried-models": b"4"}
    changes = rewritten and mode is not BodyMode.NONE
    assert list(mutation.remove_headers) == (["content-length"] if changes else [])
    if mode is not BodyMode.NONE:
        talk.send(response_body(b"x", end=True))


@pytest.mark.parametrize("conformance", [False, True])
def test_an_engines_own_reserved_headers_are_removed(conformance: bool) -> None:
    talk = asking(DUPLEX, DUPLEX)
    told = served_headers if conformance else None
    talk.pick(
        Destination("a:1", "d", response_headers={"x-epp-served-model": "granite"}, served_headers=told)
    )
    forged = {
        "x-gateway-destination-endpoint-served": "evil:1",
        "x-epp-served-model": "evil",
        "x-epp-untried-models": "9",
        "x-served-by": "engine",
        "x-epp-decision-id": "evil",
    }
    reply = reply_of(talk.send(response_headers(headers=forged)), "response_headers")
    mutation = reply.response_headers.response.header_mutation
    assert set(mutation.remove_headers) == forged.keys() - {"x-served-by", "x-epp-served-model"}
    set_here = {option.header.key: option.header.raw_value for option in mutation.set_headers}
    suites = {"x-conformance-test-served-endpoint"} if conformance else set()
    assert set_here.keys() == {"x-epp-served-model"} | suites


def test_the_decision_id_that_the_proxy_has_set_stays() -> None:
    talk = asking(DUPLEX, DUPLEX)
    talk.pick(Destination("a:1", "d"))
    reply = reply_of(talk.send(response_headers(headers={"x-epp-decision-id": "d"})), "response_headers")
    assert not reply.response_headers.response.HasField("header_mutation")
