"""What holds for every stream: cutting does not matter, nothing raises, an exchange ends exactly once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.modes import BodyMode, Modes
from epp.extproc.stream import Stream
from epp.extproc.types import ExchangeEnded, Observe, Pick, Refusal
from epp.pb.ext_proc_pb2 import ProcessingRequest
from tests.kit.conversation import (
    DUPLEX,
    PICK,
    Conversation,
    check_legal,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    with_modes,
)


def cut_at(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:stop] for start, stop in pairwise(edges)]


def told(pieces: list[bytes], *, trailers: bool) -> Conversation:
    talk = Conversation()
    talk.send(with_modes(request_headers(), DUPLEX, DUPLEX))
    for index, piece in enumerate(pieces):
        talk.send(request_body(piece, end=not trailers and index == len(pieces) - 1))
    if trailers:
        talk.send(request_trailers())
    talk.pick()
    return talk


@given(
    body=st.binary(max_size=300), places=st.lists(st.integers(0, 1000), max_size=8), trailers=st.booleans()
)
def test_how_a_request_is_cut_does_not_matter(body: bytes, places: list[int], trailers: bool) -> None:
    whole = told([body], trailers=trailers)
    for pieces in (cut_at(body, places), [bytes([byte]) for byte in body] or [b""]):
        cut = told(pieces, trailers=trailers)
        assert cut.asked() == whole.asked()
        assert cut.outputs == whole.outputs


@given(body=st.binary(max_size=300), places=st.lists(st.integers(0, 1000), max_size=8))
def test_how_a_response_is_cut_does_not_matter(body: bytes, places: list[int]) -> None:
    talk = told([b"{}"], trailers=False)
    talk.send(response_headers())
    pieces = cut_at(body, places)
    for index, piece in enumerate(pieces):
        talk.send(response_body(piece, end=index == len(pieces) - 1))
    joined, ends = streamed(talk.outputs, "response_body")
    assert joined == body
    assert ends == [False] * (len(pieces) - 1) + [True]


CHUNKS = st.binary(max_size=5) | st.just(b"x" * 40)
MESSAGES: st.SearchStrategy[ProcessingRequest] = st.one_of(
    st.builds(request_headers, end=st.booleans()),
    st.builds(request_body, CHUNKS, end=st.booleans()),
    st.builds(request_trailers),
    st.builds(response_headers, st.sampled_from(["200", "503", "x"]), end=st.booleans()),
    st.builds(response_body, CHUNKS, end=st.booleans()),
    st.builds(response_trailers),
    st.just(ProcessingRequest()),
)
ANSWERS = st.sampled_from(
    [
        PICK,
        Pick("a:1", "d", {"x": "y"}, b"changed"),
        Pick("a:1", "d", observe_response=Observe.END_STREAM_AFTER_PICK),
        Refusal(503, b""),
    ]
)
STEPS = st.lists(MESSAGES | ANSWERS, max_size=12)
MODES = st.sampled_from(list(BodyMode))


def step(talk: Conversation, what: ProcessingRequest | Pick | Refusal) -> None:
    match what:
        case Pick():
            talk.pick(what)
        case Refusal():
            talk.refuse(what)
        case _:
            copy = ProcessingRequest()
            copy.CopyFrom(what)
            talk.send(copy)


@given(
    steps=STEPS,
    modes=st.none() | st.tuples(MODES, MODES),
    assume=MODES,
    opens=st.booleans(),
    cut=st.booleans(),
)
def test_no_sequence_of_messages_breaks_a_stream(
    steps: list[ProcessingRequest | Pick | Refusal],
    modes: tuple[BodyMode, BodyMode] | None,
    assume: BodyMode,
    opens: bool,
    cut: bool,
) -> None:
    talk = Conversation(Stream(30, Modes(assume, assume, declared=False)))
    if opens:
        first = request_headers()
        talk.send(with_modes(first, *modes) if modes else first)
    for what in steps:
        step(talk, what)
    talk.close(cut=cut)
    talk.close(cut=not cut)
    check_legal(talk.outputs)
    assert sum(isinstance(output, ExchangeEnded) for output in talk.outputs) == 1


@given(
    chunks=st.lists(CHUNKS, max_size=4),
    trailers=st.booleans(),
    answer=ANSWERS,
    response=st.lists(CHUNKS, max_size=3),
    modes=st.tuples(
        st.sampled_from([BodyMode.BUFFERED, DUPLEX]), MODES.filter(lambda mode: mode is not BodyMode.GRPC)
    ),
)
def test_no_legal_exchange_is_aborted(
    chunks: list[bytes],
    trailers: bool,
    answer: Pick | Refusal,
    response: list[bytes],
    modes: tuple[BodyMode, BodyMode],
) -> None:
    talk = Conversation()
    talk.send(with_modes(request_headers(), *modes))
    if modes[0] is BodyMode.BUFFERED:
        talk.send(request_body(b"".join(chunks), end=not trailers))
        step(talk, answer)
        if trailers:
            talk.send(request_trailers())
    else:
        for index, chunk in enumerate(chunks):
            talk.send(request_body(chunk, end=not trailers and index == len(chunks) - 1))
        if trailers or not chunks:
            talk.send(request_trailers())
        step(talk, answer)
    talk.send(response_headers())
    for chunk in response if modes[1] is not BodyMode.NONE else []:
        talk.send(response_body(chunk))
    talk.send(response_trailers())
    ends = [output for output in talk.outputs if isinstance(output, ExchangeEnded)]
    assert [end.cause.value for end in ends] != ["protocol-error"]
    assert len(ends) == 1
