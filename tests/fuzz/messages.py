"""Whole exchanges in every mode, played by Envoy's rules and by none: ``python -m tests.fuzz.messages``.

Played by the rules (`tests.kit.peer`): every reply must be one that Envoy takes, bodies must arrive whole in
both directions, nobody may be left waiting, and no lease may stay. Played by none - any message after any
other - a stream must end in one way or another, and say so once. Case number n of seed s is always the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.extproc.modes import BodyMode
from epp.extproc.stream import Output, Stream
from epp.extproc.types import Abort, Cause, DecideAt, Destination, Finish, HttpRequest, LocalReply, Observe
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from tests.fuzz import cases
from tests.kit import conversation as say
from tests.kit.peer import Peer, Shape, Side

if TYPE_CHECKING:
    import random
    from collections import Counter

MODES = [mode for mode in BodyMode if mode is not BodyMode.GRPC]
SIZES = (0, 1, 1, 5, 1000, 40_000, 70_000)


def shape(rng: random.Random) -> Shape:
    """A message of random pieces."""
    if rng.random() < 0.2:
        return Shape((), trailers=rng.random() < 0.3)
    if rng.random() < 0.15:  # byte by byte
        return Shape(tuple(bytes([byte]) for byte in rng.randbytes(rng.randint(1, 30))), rng.random() < 0.3)
    pieces = tuple(rng.randbytes(rng.choice(SIZES)) for _ in range(rng.randint(1, 5)))
    return Shape(pieces, rng.random() < 0.3)


def answer_of(rng: random.Random, asked: HttpRequest) -> Destination | LocalReply:
    """A pick or a refusal."""
    if rng.random() < 0.1:
        return LocalReply(503, b"no")
    replace = asked.whole and asked.body and rng.random() < 0.3
    observe = rng.choice(list(Observe))
    return Destination("a:1", "d", body=b"another body" * 10 if replace else None, observe_response=observe)


def scene(rng: random.Random) -> tuple[Peer, Stream, str]:
    """Both ends of a stream, and a line that tells of them."""
    modes, ahead = (rng.choice(MODES), rng.choice(MODES)), rng.random() < 0.5
    at, observing = rng.choice(list(DecideAt)), rng.random() < 0.1
    peer = Peer(shape(rng), shape(rng), modes, ahead=ahead, overrides=rng.random() < 0.5, observing=observing)
    story = f"{modes[0].name}/{modes[1].name} ahead={ahead} {at} observing={observing}"
    return peer, Stream(pick_at=lambda _: at), story


class Play:
    """One exchange by the rules.

    Args:
        rng: draws shapes, answers and when they come.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.peer, self.stream, self.story = scene(rng)
        self.outputs: list[Output] = []
        self.asked: HttpRequest | None = None
        self.answer: Destination | LocalReply | None = None
        self.leases = 0

    def hear(self, heard: list[Output]) -> None:
        """Give the replies to Envoy, keep account of the rest."""
        assert not any(isinstance(output, Abort) for output in heard), heard
        self.peer.take([output for output in heard if isinstance(output, ProcessingResponse)])
        for output in heard:
            if isinstance(output, HttpRequest):
                self.asked, self.leases = output, self.leases + 1
            elif isinstance(output, Cause):
                self.leases = 0
            elif isinstance(output, Finish):
                self.peer.finish()
        self.outputs.extend(heard)

    def step(self, side: Side) -> bool:
        """Send a side's next message, if one is due."""
        message = self.peer.due(side)
        if message is not None:
            self.hear(self.stream.receive(message))
        return message is not None

    def answered(self) -> None:
        """Answer the pick, if one is asked for."""
        if self.asked is None:
            return
        self.answer, self.asked = answer_of(self.rng, self.asked), None
        if isinstance(self.answer, LocalReply):
            self.hear(self.stream.refused(self.answer))
        else:
            self.hear(self.stream.decided(self.answer))

    def through(self) -> None:
        """The whole exchange."""
        while self.step(self.peer.request) or self.asked is not None:
            if self.asked is not None and self.rng.random() < 0.7:
                self.answered()
        if not self.peer.refused:
            while self.step(self.peer.response):
                pass
        check(self.peer, self.answer, self.story)
        self.hear([*self.stream.closed(self.rng.random() < 0.5)])
        ends = [output for output in self.outputs if isinstance(output, Cause)]
        assert len(ends) == 1, f"ended {len(ends)} times"
        assert self.leases == 0, "a lease was left"


def play(rng: random.Random) -> str:
    """One exchange by the rules; what became of it.

    Raises:
        AssertionError: a rule was broken.
    """
    one = Play(rng)
    try:
        one.through()
    except AssertionError as error:
        sides = (one.peer.request, one.peer.response)
        told = [([len(piece) for piece in side.shape.pieces], side.shape.trailers) for side in sides]
        raise AssertionError(f"{one.story} {told} {str(one.answer)[:200]}: {str(error)[:600]}") from error
    if one.peer.refused or one.peer.finished:
        return "refused" if one.peer.refused else "left"
    return "observed" if one.peer.observing else "played"


def check(peer: Peer, answer: Destination | LocalReply | None, story: str) -> None:
    """What must be true once both have said all that they have to say."""
    if peer.refused:
        return
    for side in (peer.request, peer.response):
        assert not side.waiting, f"{story}: {side.name} waits for {list(side.waiting)[:2]}"
    wanted = peer.request.shape.body
    if isinstance(answer, Destination) and answer.body is not None and not peer.observing:
        wanted = answer.body
    assert bytes(peer.request.passed) == wanted, "the request is not what it was"
    if not peer.finished:
        assert bytes(peer.response.passed) == peer.response.shape.body, "the response is not what it was"


def disorder(rng: random.Random) -> str:
    """Any messages in any order; how the exchange ended."""
    stream = Stream(1000, pick_at=lambda _: rng.choice(list(DecideAt)))
    outputs: list[Output] = []
    for number in range(rng.randint(1, 12)):
        end, data = rng.random() < 0.4, rng.randbytes(rng.choice((0, 1, 300, 2000)))
        message: ProcessingRequest = rng.choice(
            [
                say.request_headers(end=end),
                say.request_body(data, end=end),
                say.request_trailers(),
                say.response_headers(end=end),
                say.response_body(data, end=end),
                say.response_trailers(),
                ProcessingRequest(),
            ]
        )
        if number == 0 and rng.random() < 0.9:
            message = say.request_headers(end=end)
        if rng.random() < 0.9:
            say.with_modes(message, rng.choice(list(BodyMode)), rng.choice(list(BodyMode)))
        outputs += stream.receive(message)
        if rng.random() < 0.4:
            outputs += stream.decided(say.PICK)
    outputs += stream.closed(rng.random() < 0.5)
    ends = [output for output in outputs if isinstance(output, Cause)]
    assert len(ends) == 1, f"ended {len(ends)} times"
    say.check_legal(outputs)
    return ends[0].value


def run(seed: int, count: int) -> Counter[str]:
    """So many cases of both kinds; what became of them.

    Raises:
        RuntimeError: naming the case that broke a rule.
    """
    return cases.run(seed, count, disorder, play)


if __name__ == "__main__":
    cases.main(__doc__, run)
