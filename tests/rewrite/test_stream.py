"""Answers rewritten on their way through an ext_proc stream, in every mode that shows them."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.apis.rewrite import restorer
from epp.extproc.modes import BodyMode
from epp.extproc.types import Destination, Finish, HttpRequest, Observe, ResponseData
from epp.pb.ext_proc_pb2 import ProcessingResponse
from epp.request.director import rewrite_bodies
from tests.kit.conversation import (
    DUPLEX,
    Conversation,
    asking,
    header_changes,
    metadata_of,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    with_modes,
)
from tests.kit.records import decided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.extproc.stream import Output
    from epp.pb.ext_proc_pb2 import ProcessingRequest

BODY = b'{"id": 1, "model": "served", "choices": []}'
RESTORED = BODY.replace(b"served", b"public")
RESTORING = Destination("10.0.0.1:8000", "d-1", rewrite_response=partial(restorer, "public"))
SHOWN = pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.BUFFERED, DUPLEX])


def headers(**values: str) -> ProcessingRequest:
    message = response_headers()
    for name, value in values.items():
        message.response_headers.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
    return message


def talk(mode: BodyMode, pick: Destination = RESTORING, kind: str = "application/json") -> Conversation:
    conversation = asking(DUPLEX, mode)
    conversation.pick(pick)
    conversation.send(headers(content_type=kind, content_length=str(len(BODY))))
    return conversation


def replies(outputs: Sequence[Output], field: str) -> list[ProcessingResponse]:
    return [o for o in outputs if isinstance(o, ProcessingResponse) and o.HasField(field)]


def through(mode: BodyMode, outputs: Sequence[Output], pieces: Sequence[bytes]) -> bytes:
    """What the client gets: in full duplex what comes back, else the pieces with the changes made to them."""
    if mode is DUPLEX:
        return streamed(outputs, "response_body")[0]
    got = b""
    for reply, piece in zip(replies(outputs, "response_body"), pieces, strict=True):
        mutation = reply.response_body.response.body_mutation
        changed = {"body": mutation.body, "clear_body": b"", None: piece}
        got += changed[mutation.WhichOneof("mutation")]
    return got


def lengths_removed(conversation: Conversation) -> list[str]:
    found = replies(conversation.outputs, "response_headers")
    return [
        name for reply in found for name in reply.response_headers.response.header_mutation.remove_headers
    ]


@SHOWN
@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=6), trailers=st.booleans())
def test_the_public_name_comes_back_however_the_body_is_cut(
    mode: BodyMode, cuts: list[int], trailers: bool
) -> None:
    edges = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[a:b] for a, b in pairwise(edges)]
    conversation, outputs = talk(mode), []
    for index, piece in enumerate(pieces):
        outputs += conversation.send(response_body(piece, end=index == len(pieces) - 1 and not trailers))
    if trailers:
        conversation.send(response_trailers())
    assert through(mode, outputs, pieces) == RESTORED
    assert lengths_removed(conversation) == ["content-length"]
    assert [o.data for o in outputs if isinstance(o, ResponseData)] == pieces, "read as the engine wrote it"


@SHOWN
@pytest.mark.parametrize(
    "pick", [Destination("10.0.0.1:8000", "d-1"), RESTORING], ids=["as it is", "not readable"]
)
def test_other_answers_keep_their_bytes_and_length(mode: BodyMode, pick: Destination) -> None:
    conversation = talk(mode, pick, "application/json" if pick is not RESTORING else "image/png")
    outputs = conversation.send(response_body(BODY, end=True))
    assert through(mode, outputs, [BODY]) == BODY
    assert lengths_removed(conversation) == []


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, DUPLEX])
def test_an_answer_that_must_be_changed_is_not_left(mode: BodyMode) -> None:
    pick = Destination(
        "10.0.0.1:8000",
        "d-1",
        observe_response=Observe.END_STREAM_AFTER_PICK,
        rewrite_response=partial(restorer, "public"),
    )
    conversation = talk(mode, pick)
    outputs = conversation.send(response_body(BODY, end=True))
    assert through(mode, outputs, [BODY]) == RESTORED
    assert not [o for o in conversation.outputs if isinstance(o, Finish | ResponseData)]


ASKED = {"model": "public", "messages": [{"role": "user", "content": "x" * 200}], "stream": True}


def answered(mode: BodyMode, served: str, **options: Any) -> tuple[Destination, Conversation]:

    raw = json.dumps(ASKED).encode()
    sent = {"content-type": "application/json", "accept-encoding": "gzip", "content-length": str(len(raw))}
    request = HttpRequest("POST", "/v1/chat/completions", sent, raw)
    one = decided(1)[0][0]
    decision = replace(
        one,
        snapshot=replace(one.snapshot, models=(served,) * len(one.snapshot)),
        request=replace(one.request, model="public", api="openai-chat", stream=True),
    )
    pick = Destination("10.0.0.1:8000", "d-1")
    rewrite_bodies(pick, request, decision, **options)
    conversation = Conversation()
    conversation.send(with_modes(request_headers(), mode, BodyMode.NONE))
    conversation.send(request_body(raw, end=True))
    conversation.pick(pick)
    return pick, conversation


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, DUPLEX])
def test_the_engine_gets_its_name_the_filters_both_and_the_length_is_right(mode: BodyMode) -> None:
    pick, conversation = answered(mode, "org/served-7b")
    assert pick.body is not None
    assert json.loads(pick.body) == ASKED | {"model": "org/served-7b"}
    [reply] = replies(conversation.outputs, "dynamic_metadata")
    assert metadata_of(reply)["epp"] == {
        "decision_id": "d-1", "model_public": "public", "model_served": "org/served-7b"
    }  # fmt: skip
    changes = header_changes(reply)
    assert changes["content-length"] == str(len(pick.body)).encode()
    assert changes["accept-encoding"] == b"identity"
