"""Recorded conversations: each is one that a picker answers with a pick, and any picker can be asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.errors import EppError
from epp.extproc.stream import Stream
from epp.extproc.types import Abort, Pick, PickNeeded, ResponseData
from epp.lab.bench import learned, prompts, recorded, soak
from epp.lab.bench.bare import NOBODY, TRANSPORTS, answer
from epp.lab.bench.children import bare, picker, pool_of
from epp.lab.bench.client import Proxy
from epp.lab.bench.core import measure, measure_observing
from epp.lab.bench.figures import Figures
from epp.lab.bench.goals import GOALS
from epp.lab.bench.index import measured
from epp.lab.bench.recorded import Mode
from epp.lab.bench.rig import Rig, request
from epp.lab.bench.server import ServerBench
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse

if TYPE_CHECKING:
    from epp.extproc.stream import Output
    from epp.extproc.types import Event
    from epp.lab.bench.bare import Transport

BODY = prompts.conversation(2_000, 1)[1]


def hold(mode: Mode, chunks: int = 3) -> tuple[list[PickNeeded], list[ProcessingResponse], bytes]:
    stream, answer = Stream(), b""
    asked: list[PickNeeded] = []
    replies: list[ProcessingResponse] = []
    for step in recorded.conversation(mode, BODY, chunks):
        before = len(replies)
        for message in step.messages:
            waiting: list[Output | Event] = list(stream.receive(ProcessingRequest.FromString(message)))
            while waiting:
                output = waiting.pop(0)
                assert not isinstance(output, Abort), output
                if isinstance(output, PickNeeded):
                    asked.append(output)
                    waiting += stream.picked(Pick("10.0.0.1:8000", "d-1"))
                elif isinstance(output, ProcessingResponse):
                    replies.append(output)
                elif isinstance(output, ResponseData):
                    answer += output.data
        if step.replies is not None:
            assert len(replies) - before == step.replies
    return asked, replies, answer


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_is_a_conversation_that_asks_for_one_pick(mode: Mode) -> None:
    asked, replies, answer = hold(mode)
    assert len(asked) == 1
    assert sum("epp" in reply.dynamic_metadata.fields for reply in replies) == 1
    wanted = None if mode in (Mode.HEADERS, Mode.STREAMED) else BODY
    assert asked[0].request.body == wanted
    if mode in (Mode.RESPONSE, Mode.DUPLEX):
        assert answer.count(b"data: ") == 3 + 1
        assert b"cached_tokens" in answer


def test_a_turn_before_is_the_beginning_of_its_conversation() -> None:
    rig = Rig(2)
    before, whole = (rig.measure(rig.parse(request(body))).blocks for body in prompts.conversation(4_000, 7))
    other = rig.measure(rig.parse(request(prompts.conversation(4_000, 8)[1]))).blocks
    assert list(whole[: len(before) - 1]) == list(before[:-1])
    assert 0.85 < len(before) / len(whole) < 0.95
    shared = sum(a == b for a, b in zip(whole, other, strict=False))
    assert 5 <= shared <= 9  # the system prompt and no more
    assert prompts.conversation(200, 3) == prompts.conversation(200, 3)
    assert json.loads(prompts.conversation(200, 3)[1])["stream"] is True


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_another_picker_is_measured_by_address_and_process(transport: Transport) -> None:
    with bare(transport) as other:
        async with ServerBench([Mode.CONSTANT], address=other.grpc, pid=other.pid, requests=4) as bench:
            figures = Figures()
            await bench.measure(figures, 0)
    assert figures.median("server/picker: constant/72 KB") > 0.0
    assert "server/picker: constant/200 tokens p99" in figures.found


async def test_no_mode_sends_what_the_picker_knows_from_another_or_an_earlier_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes] = []
    conversation = recorded.conversation

    def noted(mode: Mode, body: bytes, chunks: int) -> list[recorded.Step]:
        sent.append(body)
        return conversation(mode, body, chunks)

    monkeypatch.setattr(recorded, "conversation", noted)
    modes = [Mode.CONSTANT, Mode.RESPONSE, Mode.DUPLEX]
    with picker(pool_of(1)) as ours:
        async with ServerBench(modes, address=ours.grpc, pid=ours.pid, requests=2) as bench:
            for number in range(2):
                await bench.measure(Figures(), number)
    assert len(sent) > 2 * 2 * 2 * len(modes)
    assert len(set(sent)) == len(sent)


async def test_a_picker_that_does_not_take_reports_is_no_measurement() -> None:
    with bare() as server:
        async with Proxy(server.grpc, access_log=True) as proxy:
            proxy._told.append(("d-1", NOBODY))  # as after a conversation with a picker of ours
            with pytest.raises(EppError, match="has closed what first tokens or the access log are told on"):
                await proxy.settle()


def test_a_soak_goes_on_with_each_conversation_once() -> None:
    bodies = [json.loads(soak.body_of(number))["messages"] for number in range(12)]
    for before, whole in zip(bodies[::2], bodies[1::2], strict=True):
        assert before[:-1] == whole[: len(before) - 1]
        assert whole[len(before) - 1]["content"].startswith(before[-1]["content"])
    assert len({json.dumps(whole[:2]) for whole in bodies[1::2]}) == 6


@pytest.mark.parametrize("destination", [NOBODY, "127.0.0.1:8123"])
def test_the_floor_picks_the_same_for_everybody_once_the_request_is_whole(destination: str) -> None:
    messages = [message for step in recorded.conversation(Mode.CONSTANT, BODY) for message in step.messages]
    asked = [ProcessingRequest.FromString(message) for message in messages[:2]]
    assert [one.WhichOneof("request") for one in asked] == ["request_headers", "request_body"]
    headers, body = (answer(one, destination) for one in asked)
    assert not headers.request_headers.response.header_mutation.set_headers
    (option,) = body.request_body.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value.decode()) == (
        "x-gateway-destination-endpoint",
        destination,
    )


async def test_streams_are_held_open_until_they_are_let_go() -> None:
    with bare() as server:
        async with Proxy(server.grpc) as proxy:
            load = await proxy.burst([recorded.conversation(Mode.HEADERS, b"")] * 3, 2, reported=False)
    assert len(load.decided_ms) == 3
    assert proxy.undecided == 0


def test_a_round_of_the_core_gives_every_figure() -> None:
    figures = Figures()
    measure(figures, 0, ["200"], [3])
    measure_observing(figures, 0, ["200"], [3])
    assert set(figures.found) == {
        "core/200/3/cold", "core/200/3/warm", "core/200/3/warm: parse", "core/200/3/warm: decide",
        "core/200/3/answer", "core/200/3/reports",
    }  # fmt: skip
    parts = figures.median("core/200/3/warm: parse") + figures.median("core/200/3/warm: decide")
    assert figures.median("core/200/3/warm") == pytest.approx(parts)


def test_an_index_of_conversations_needs_far_less_than_a_hash_a_token() -> None:
    found = measured(150_000)
    assert 8 / 64 < found["bytes per token"] < 1.0
    assert found["walk"] > 0.0


def test_a_round_of_learned_decisions_gives_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "_REQUESTS", 4)
    figures = Figures()
    learned.measure(figures, 0)
    kinds = ("", ": no model", ": all strangers", ": gorgo instead")
    assert set(figures.found) == {f"learned/{size}{kind}" for size in learned.ENDPOINTS for kind in kinds}
    assert {"learned/16", "learned/256"} <= GOALS.keys()
