"""The commands on records, as people run them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.cli import main
from epp.errors import EppError
from epp.ops.records import Follower, Query
from epp.records.files import record_files
from epp.rpc.accepting import listening_sockets
from tests.kit.records import (
    command,
    decided,
    outcome_of,
    record_all,
    recorder_to,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty gorgo requests and ten random ones; the last of each never ended."""
    for policy, number in (("gorgo", 30), ("random", 10)):
        requests = decided(number, policy, prefix=policy)
        with recorder_to(tmp_path / "records") as (recorder, _):
            for index, (decision, _) in enumerate(requests):
                recorder.record(decision)
                cause = "completed" if index % 3 else "client-gone"
                if index < number - 1:
                    recorder.record(outcome_of(decision, cause=cause), decision.at_wall_s + 0.5)
    return tmp_path / "records"


def ids(text: str) -> set[str]:
    return {json.loads(line)["id"] for line in text.splitlines()}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 40),
        (["--policy", "random"], 10),
        (["--cause", "client-gone"], 13),
        (["--cause", "none"], 2),
        (["--policy", "random", "--cause", "completed"], 6),
        (["--model", "other"], 0),
        (["--since", "2023-11-14T22:13:40Z"], 10),
        (["--until", "2023-11-14T22:13:24+00:00"], 10),
        (["--since", "1h"], 0),
        (["--until", "1d"], 40),
    ],
)
def test_filter(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], count: int) -> None:
    assert command("records", "filter", folder, *words) == 0
    assert len(ids(capsys.readouterr().out)) == count


def test_show(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert command("records", "show", folder, "--limit", 5, "--policy", "gorgo") == 0
    out = capsys.readouterr().out
    assert "5 of 30 requests" in out
    assert [f"gorgo-{number}" in out for number in (24, 25, 29)] == [False, True, True], "the newest"
    assert "12.5" in out
    assert "client-gone 200" in out


def test_a_time_that_is_none_is_told(folder: Path) -> None:
    with pytest.raises(EppError, match="'yesterday' is neither"):
        command("records", "show", folder, "--since", "yesterday")


def test_verify_tells_what_differs_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("records", "verify", folder) == 0
    assert "40 decisions run again: all identical" in capsys.readouterr().out
    path = record_files(folder)[0]
    lines = path.read_text().splitlines()
    forged = json.loads(lines[1])
    forged["signals"]["rtt_ms"][forged["chosen"]] = 1e6
    path.write_text("\n".join([lines[0], json.dumps(forged), *lines[2:], ""]))
    assert command("records", "verify", folder) == 1
    out = capsys.readouterr().out
    assert f"{forged['id']}: chose" in out
    assert "40 decisions run again: 1 differ" in out
    assert command("records", "verify", folder, "--policy", "random") == 0


def test_explain_with_what_came_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert command("explain", "gorgo-3", "--records", folder) == 0
    out = capsys.readouterr().out
    assert "gorgo-3" in out
    assert (
        "client-gone with status 200: TTFT 12.5 ms, E2E 80.2 ms, 16 output tokens, 2,560 prompt tokens,"
        " of which 1,024 were cached and 0 expected to be" in out
    )
    command("explain", "--records", folder)
    out = capsys.readouterr().out
    assert "gorgo-29" in out
    assert "TTFT" not in out, "it has not ended"
    command("explain", "random-2", "--records", folder, "--json")
    record = json.loads(capsys.readouterr().out)
    assert (record["id"], record["outcome"]["id"]) == ("random-2", "random-2")
    with pytest.raises(EppError, match="no decision 'zzz'"):
        command("explain", "zzz", "--records", folder)


def test_explain_takes_the_start_of_a_single_id(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("explain", "gorgo-2", "--records", folder, "--json")
    assert json.loads(capsys.readouterr().out)["id"] == "gorgo-2", "though others begin like it"
    with pytest.raises(
        EppError, match=r"30 decisions in .* begin with 'gorgo': gorgo-0, gorgo-1, gorgo-2, \.\.\.$"
    ):
        command("explain", "gorgo", "--records", folder)
    assert command("explain", "random-9", "--records", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "random-9"


@pytest.mark.parametrize("words", [["explain"], ["feedback", "gorgo-3", "--correct"]])
def test_a_picker_that_does_not_answer_is_told_with_where_to_look(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with listening_sockets("127.0.0.1:0")[0] as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert main([*words, "--url", f"http://{address}"]) == 2
    assert "Connection refused (--url is the picker's listen.http; does it run?)" in capsys.readouterr().err
    assert main([*words, "--url", address]) == 2
    assert f"{address} is not an http address, e.g. http://{address}" in capsys.readouterr().err


def test_follow_shows_each_event_once_over_rotations_and_by_its_conditions(tmp_path: Path) -> None:
    requests = decided(40)
    record_all(tmp_path, requests[:10])
    everything = Follower(tmp_path, Query(), from_start=False)
    ends = Follower(tmp_path, Query(cause="completed"), from_start=True)
    assert list(everything.lines()) == []
    lines: list[str] = []
    for start in range(10, 40, 10):
        record_all(tmp_path, requests[start : start + 10], max_bytes=200_000, file_bytes=20_000)
        lines += everything.lines()
    assert len(lines) == 60
    for decision, _ in requests[10:]:
        mine = [line for line in lines if f" {decision.id} " in line]
        assert f"-> {decision.endpoint} by gorgo" in mine[0]
        assert "completed 200" in mine[1]
    assert sum("completed" in line for line in ends.lines()) == 40
