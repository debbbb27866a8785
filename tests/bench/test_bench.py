"""The benches: what they send is a conversation, what they print is what was measured."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epp.cli import main
from epp.errors import EppError
from epp.extproc.stream import Stream
from epp.extproc.types import Abort, Destination, HttpRequest, ResponseData
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp_lab.bench import cluster, command, core, index, recorded, server
from epp_lab.bench.figures import GOALS, Figures, load
from epp_lab.bench.processes import bare, held
from epp_lab.bench.recorded import Mode

if TYPE_CHECKING:
    from epp.extproc.stream import Output
    from epp.extproc.types import Event

BODY = recorded.bodies(2_000, 1)[1]
NAME = "core/18k/3/warm"
TOKENIZER = Path(__file__).parent.parent / "tokens" / "data" / "bytes"


def figures(*values: float, name: str = NAME) -> Figures:
    found = Figures()
    for value in values:
        found.add(name, "ms", value)
    return found


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_is_a_conversation_that_asks_for_one_pick(mode: Mode) -> None:
    stream, data = Stream(), b""
    asked: list[HttpRequest] = []
    for step in recorded.conversation(mode, BODY, 3):
        replies = 0
        for message in step.messages:
            waiting: list[Output | Event] = list(stream.receive(ProcessingRequest.FromString(message)))
            while waiting:
                output = waiting.pop(0)
                assert not isinstance(output, Abort), output
                if isinstance(output, HttpRequest):
                    asked.append(output)
                    waiting += stream.decided(Destination("10.0.0.1:8000", "d-1"))
                elif isinstance(output, ProcessingResponse):
                    replies += 1
                elif isinstance(output, ResponseData):
                    data += output.data
        assert step.replies in (None, replies)
    assert [one.body for one in asked] == [None if mode in (Mode.HEADERS, Mode.STREAMED) else BODY]
    assert data.count(b"data: ") == (4 if mode is Mode.DUPLEX else 0)


@pytest.mark.parametrize("transport", server.BARE.values())
async def test_another_picker_is_measured_by_address_and_process(transport: str, tmp_path: Path) -> None:
    async with bare(transport) as other:
        assert held(other.pid).rss_bytes > 1_000_000
        arguments = Namespace(modes=[Mode.CONSTANT], address=other.grpc, pid=other.pid, requests=4)
        found = Figures()
        await server.measure(found, arguments, 1)
    found.save(tmp_path / "figures.json")
    assert min(load(tmp_path / "figures.json").found["server/picker: constant/72 KB"].values) > 0.0


async def test_a_round_without_sockets_gives_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SIZES", {"200": (200, 4), "1k": (1_000, 4), "18k": (300, 4)})
    monkeypatch.setattr(core, "COUNTED", 2)
    arguments = Namespace(sizes=["200"], endpoints=[3], policy="laar", tokenizer=TOKENIZER)
    found = Figures()
    for measure in (core.measure, core.measure_policies, core.measure_tokens):
        await measure(found, arguments, 1)
    assert min(found.found["core/200/3/warm"].values) > 0.0
    assert {
        "policies/llm-d above gorgo/100",
        "policies/lodestar/16",
        "policies/lodestar/256",
        "tokens/72 KB",
        "tokens/72 KB stall",
    } <= found.found.keys() & GOALS.keys()


def test_an_index_of_conversations_needs_far_less_than_a_hash_a_token() -> None:
    found = index.figures(150_000)
    assert 8 / 64 < found["bytes per token"] < 1.0


def test_messages_are_measured_by_what_is_in_them() -> None:
    found = cluster.costs()
    assert all(value > 0.0 for value in found["promise"])
    assert found["fact"][2] > 8 * cluster.NEW, "a hash for each new block"
    assert found["message"][2] < 200.0


def test_a_goal_stands_beside_the_median() -> None:
    goal = GOALS[NAME]
    met = figures(goal * 0.5, goal * 0.9, goal * 9).table()
    assert "met" in met
    assert "MISSED" not in met
    assert "MISSED" in figures(goal * 1.1).table()


def test_ratios_of_rounds_that_took_turns_are_taken_round_by_round(tmp_path: Path) -> None:
    figures(2.0, 6.0).save(tmp_path / "base.json")
    table = figures(1.0, 3.0).table(load(tmp_path / "base.json"))
    assert table.splitlines()[-1].endswith("0.50 [0.50-0.50]")
    assert figures(-6.0).table(figures(-3.0)).endswith("-")
    (tmp_path / "base.json").write_text("{}}")
    with pytest.raises(EppError, match="cannot read the baseline"):
        load(tmp_path / "base.json")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["server", "--address", "127.0.0.1:9002"], "go together"),
        (["core", "--address", "127.0.0.1:9002", "--pid", "1"], "alone"),
        (["core", "--against", "/x", "--baseline", "base.json"], "exclude each other"),
        (["server", "--address", "127.0.0.1:9002", "--pid", str(2**22 + 1)], "no such process"),
        (["tokens"], "--tokenizer"),
        (["core", "--baseline", "/nowhere"], "cannot read the baseline"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert words in capsys.readouterr().err


def test_all_measures_one_case_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ALL", ("core", "server"))
    monkeypatch.setattr(command, "find_envoy", os.getpid)
    flags = ["--rounds", "1", "--sizes", "200", "--endpoints", "3", "--modes", "constant", "--requests", "2"]
    assert main(["bench", "all", *flags]) == 0
    out = capsys.readouterr().out
    assert "core/200/3/warm" in out
    assert "server/above bare, builtin/72 KB" in out
