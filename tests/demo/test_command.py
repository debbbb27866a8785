"""What `make demo` says of the tuner that ran beside it."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from epp.cli import main
from epp.demo import command
from epp.demo.command import _live, _refresh, tuner_lines
from epp.demo.stack import Stack
from epp.replay.table import LiveState
from tests.kit.envoy import require_envoy
from tests.kit.tunework import World

if TYPE_CHECKING:
    from pathlib import Path


def test_how_much_evidence_is_missing_is_said(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    world.run(10)
    assert world.tuner is not None
    world.tuner.close()
    said = "\n".join(tuner_lines(tmp_path))
    assert "The tuner ran beside it, in phase baseline: not enough evidence (50 of 200 requests, " in said
    assert f"epp tune status --config {tmp_path}/epp.yaml" in said


def test_what_is_said_after_a_demo_that_was_stopped_has_a_line_of_its_own() -> None:
    console = Console(file=io.StringIO(), width=80)
    with pytest.raises(asyncio.CancelledError), _live(LiveState("gorgo", 10, {"eu": "eu"}), console):
        raise asyncio.CancelledError
    console.print("stopped")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().endswith("\nstopped\n")


FIGURES = b"""HTTP/1.1 200 OK\r
connection: close\r
\r
llm_d_epp_request_processing_duration_seconds_sum 0.0005
llm_d_epp_request_processing_duration_seconds_count 1
"""


async def test_a_picker_that_is_killed_meanwhile_does_not_end_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections break, because aiohttp tries a second one, and the next is asked all the same."""
    monkeypatch.setattr(command, "_REFRESH_S", 0.0)
    answers, asked = [FIGURES, b"", b"", FIGURES], asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()
        if not answers:
            picker.close()
            asked.set()

    picker = await asyncio.start_server(answer, "127.0.0.1", 0)
    stack, state = Stack(tmp_path, "random", command.MODEL), LiveState("random", 10, {})
    stack.picker_url = f"http://127.0.0.1:{picker.sockets[0].getsockname()[1]}"
    with _live(state, Console(file=io.StringIO())) as live:
        watcher = asyncio.ensure_future(_refresh(stack, state, live))
        all_asked = asyncio.ensure_future(asked.wait())
        await asyncio.wait({watcher, all_asked}, return_when=asyncio.FIRST_COMPLETED)
        assert not watcher.done()
        watcher.cancel()
    assert list(state.decision_us) == [500.0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rate", "-1"], "--seconds and --rate must be above 0"),
        (["--seconds", "nan"], "--seconds and --rate must be above 0"),
        (["--seconds", "1e9"], "a demo takes at most 86,400 s and sends at most 100,000 requests"),
        (["--rate", "1e9"], "a demo takes at most 86,400 s and sends at most 100,000 requests"),
        (["--seed", "-1"], "--seed must be 0 or more"),
        (["--policy", "gorgo-mss"], "--policy: unknown policy 'gorgo-mss' (did you mean 'gorgo-ms'?)"),
        (["--against", "random,least"], "--against: unknown policy 'least'"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_runs(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_envoy()
    assert main(["demo", "--out", str(tmp_path / "out"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_a_tuner_nothing_is_said_of_one(tmp_path: Path) -> None:
    assert tuner_lines(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--policy", "laar,lar"], "--policy: unknown policy 'lar' (did you mean 'laar'?)"),
        (["--policy", ","], "--policy names none"),
        (["--questions", "0"], "--questions must be 1 or more"),
        (["--draw", "-1"], "--draw must be 0 or more"),
    ],
)
def test_so_are_those_of_the_demo_of_models(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    require_envoy()
    assert main(["laar", "demo", "--out", str(tmp_path / "out"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_policy_is_not_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its second run would stand in the first one's place, beside the first one's records."""
    require_envoy()
    policies = ["--policy", "random", "--against", "random"]
    assert main(["demo", "--out", str(tmp_path / "out"), "--seconds", "0.3", *policies]) == 0
    (sent,) = (line for line in capsys.readouterr().out.splitlines() if "on record of" in line)
    assert "on record of 0 requests" not in sent
    assert not (tmp_path / "out" / "random").exists()


def test_a_demo_in_which_every_request_failed_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session's name cannot be a header's value."""
    require_envoy()
    row = {"timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1], "session_id": "a\nb"}
    (tmp_path / "trace.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "out[" / "b]"  # as it stands, and not as a style's end
    words = ["demo", "--trace", str(tmp_path / "trace.jsonl"), "--out", str(out), "--policy", "random"]
    assert main([*words, "--against", ""]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("epp: random: no request was answered, the last one because of: ValueError:")
    assert "out[/b]/records" in said.out.replace("\n", "")
