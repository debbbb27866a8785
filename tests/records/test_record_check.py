"""A line that is JSON and no whole record costs itself, and is told once; nothing else is lost and nothing ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.errors import EppError
from epp.learn.reward_model.offline import run_offline
from epp.learn.reward_model.settings import LearnerSettings
from epp.learn.tuner.calibrate import newest_records
from epp.ops import explain
from epp.ops import records_filter as record_filter
from epp.ops import records_show as record_show
from epp.ops.doctor.traffic import measure
from epp.ops.records_follow import Follower, Narrator
from epp.policies.registry import POLICIES
from epp.records import verify as record_verify
from epp.records.check import whole, whole_records
from epp.records.files import read_records, record_files
from epp.records.query import Query
from epp.signals.endpoint import Endpoint
from tests.kit.records import WALL_S, ask_of, command, decided, picker_of, record_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUESTS = 30
CHANGES: dict[str, dict[str, Any]] = {
    "decision": {
        "id": 7,
        "at": 1e300,
        "request": {"model": "m"},
        "endpoints": ["a:1"],
        "signals": {"rtt_ms": [1.0, 2.0, 3.0]},
        "unknown": None,
        "chosen": 3,
        "fallbacks": [-1],
        "terms": {"rtt": [1.0]},
        "probabilities": [1.0],
        "costs": ["low", 1.0, 2.0],
    },
    "outcome": {"id": None, "at": "now", "cause": None, "ttft_ms": "soon", "endpoint": 5},
}


def damaged_lines(folder: Path) -> list[bytes]:
    """Each of a decision's and an outcome's changes, and each of what readers ask for left out."""
    lines = [b"{}", b'{"schema": 2, "kind": "decision"}', b'{"schema": 2, "kind": "outcome"}', b"no JSON"]
    for kind, changes in CHANGES.items():
        good = next(record for record in read_records(folder) if record["kind"] == kind)
        for key, value in changes.items():
            lines.append(json.dumps({**good, key: value}).encode())
            lines.append(json.dumps({name: held for name, held in good.items() if name != key}).encode())
    return lines


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, int]:
    """A folder with good records between damaged ones, and how many these are."""
    folder = tmp_path / "records"
    record_all(folder, decided(REQUESTS))
    path = record_files(folder)[0]
    bad, good = damaged_lines(folder), path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([good[0], *bad, *good[1:]]) + b"\n")
    return folder, len(bad)


@pytest.mark.parametrize(
    "run",
    [
        lambda folder: command(record_show, folder, "--limit", 100, "--endpoint", "10.0.0.0:8000"),
        lambda folder: command(record_filter, folder, "--cause", "completed"),
        lambda folder: command(record_verify, folder, "--policy", "gorgo"),
        lambda folder: command(explain, "--records", folder),
        lambda folder: command(explain, "--records", folder, "id-0"),
    ],
    ids=["show", "filter", "verify", "explain", "explain one"],
)
def test_commands_pass_over_damaged_lines_and_say_so_once(
    damaged: tuple[Path, int], run: Callable[[Path], int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, count = damaged
    assert run(folder) == 0
    told = capsys.readouterr().err
    assert (
        told
        == f"epp: {count} damaged lines were passed over, the first is {record_files(folder)[0]}, line 2\n"
    )


def test_what_is_whole_is_all_there(damaged: tuple[Path, int]) -> None:
    kept = list(whole_records(damaged[0]))
    assert sum(record["kind"] == "decision" for record in kept) == REQUESTS
    assert sum(record["kind"] == "outcome" for record in kept) == REQUESTS
    assert measure(kept).requests == REQUESTS


def test_learning_offline_counts_what_is_whole(
    damaged: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EppError, match=f"{REQUESTS} usable requests of"):
        run_offline(damaged[0], LearnerSettings(), seed=0, out=None, as_json=False)
    assert f"epp: {damaged[1]} damaged lines were passed over" in capsys.readouterr().err


def test_following_passes_over_damaged_lines(damaged: tuple[Path, int]) -> None:
    follower, narrator = Follower(damaged[0], from_start=True), Narrator(Query())
    lines = [narrator.tell(record) for record in follower.new()]
    assert sum(" -> " in line for line in lines) == REQUESTS
    assert sum("completed" in line for line in lines) == REQUESTS
    assert follower.damaged == damaged[1]


def test_a_rehearsal_loses_damaged_lines_and_not_their_files(damaged: tuple[Path, int]) -> None:
    decisions, outcomes = newest_records(damaged[0], "gorgo")
    assert (len(decisions), len(outcomes)) == (REQUESTS, REQUESTS)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_whatever_is_recorded_is_whole(policy: str, tmp_path: Path) -> None:
    record_all(tmp_path, decided(20, policy))
    assert all(whole(record) for record in read_records(tmp_path))


@pytest.mark.parametrize("count", [2, 6])
def test_addresses_of_ipv6_are_shown(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    pool = [Endpoint(f"[fd00::{number + 1}]:8000", region="[r]") for number in range(count)]
    picker = picker_of()
    picker.set_pool(pool, 0.0)
    ask = ask_of(1)
    decision = picker.pick(ask, 1.0, WALL_S)
    record_all(tmp_path, [(replace(decision, excluded={"ejected": ("[fd00::9]:8000",)}), ask)])
    assert command(explain, "--records", tmp_path) == 0
    told = capsys.readouterr().out
    for address in (
        *(endpoint.address for endpoint in pool),
        f"-> {decision.endpoint}",
        "[fd00::9]:8000",
        "[r]",
    ):
        assert address in told
    assert command(record_show, tmp_path) == 0
    assert decision.endpoint in capsys.readouterr().out
