"""The harness of experiments: kept runs, pairing, intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from epp.cli import main as cli
from epp_lab.experiment import CellRun, Experiment, execute, find, main, mean_text, names, read_kept, table

if TYPE_CHECKING:
    from pathlib import Path


def figures(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Differ widely by seed, and by entry in a fixed ratio."""
    base = 100.0 * (seed + 1) * (2.0 if cell == "far" else 1.0)
    return {"ms": base * (0.5 if entry == "new" else 1.0), "lost": 0.0}


def failing(cell: str, entry: str, seed: int) -> dict[str, float]:
    raise AssertionError(f"{cell} {entry} {seed} runs again")


EXPERIMENT = Experiment(
    "Is new faster?", ("near", "far", "huge"), ("old", "new"), figures,
    on_request=("huge",),
)  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_come_in_order_whatever_the_number_of_processes(tmp_path: Path, jobs: int) -> None:
    runs = execute(EXPERIMENT, seeds=(0, 1), jobs=jobs, kept=tmp_path / "runs")
    assert [run.key for run in runs] == [
        (cell, entry, seed) for cell in ("near", "far") for seed in (0, 1) for entry in ("old", "new")
    ]


def test_kept_runs_are_not_run_again_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    kept = tmp_path / "runs"
    before = execute(EXPERIMENT, seeds=(0, 1), jobs=1, kept=kept)
    assert execute(replace(EXPERIMENT, run=failing), seeds=(0, 1), jobs=1, kept=kept) == before
    kept.write_bytes(kept.read_bytes()[:-20])
    assert execute(EXPERIMENT, seeds=(0, 1), jobs=1, kept=kept) == before


def test_ratios_are_paired_over_seeds(tmp_path: Path) -> None:
    text = table(EXPERIMENT, execute(EXPERIMENT, seeds=range(6), jobs=1, kept=tmp_path / "runs"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows[0] == ["cell", "entry", "ms", "ms / `old`", "lost", "lost / `old`"]
    by_name = {(row[0], row[1]): row[2:] for row in rows[2:]}
    assert by_name["near", "new"][1] == by_name["**all cells**", "new"][1] == "0.500 [0.500, 0.500]"
    assert by_name["far", "old"][0].startswith("700 [")
    assert by_name["far", "new"][3] == "-"


def test_events_are_shares_and_ranges_are_the_seeds(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, events=("lost",), ranges=("ms",))
    text = table(experiment, execute(experiment, seeds=range(50), jobs=1, kept=tmp_path / "runs"))
    assert "| cell | entry | ms | lost |" in text
    assert "| near | old | 2550 (100 to 5000) | 0 [0, 0.07135] |" in text


def test_fewer_than_five_seeds_show_the_least_and_the_most(tmp_path: Path) -> None:
    def run(_: str, entry: str, seed: int) -> dict[str, float]:
        return {"ms": (2.0, 8.0)[seed] if entry == "new" else 1.0 + seed, "lost": math.nan}

    experiment = replace(EXPERIMENT, run=run, entries=("old", "new"))
    text = table(experiment, execute(experiment, seeds=range(2), jobs=1, kept=tmp_path / "runs"))
    assert "| near | new | 5 (2 to 8) | 2.828 (2.000 to 4.000) | - | - |" in text


def test_the_command_prints_question_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seeds", "2", "--cells", "huge", "--kept", str(tmp_path / "runs")]
    assert main("try", EXPERIMENT, words) == 0
    out = capsys.readouterr().out
    assert "Is new faster?" in out
    assert "| huge | new |" in out
    assert "seeds 0 to 1;" in out
    assert " min of CPU" in out
    with pytest.raises(SystemExit):
        main("try", EXPERIMENT, ["--cells", "hug"])
    assert "'hug' is none of near, far, huge" in capsys.readouterr().err


def test_seeds_may_begin_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seeds", "2", "--first-seed", "7", "--cells", "huge", "--kept", str(tmp_path / "runs")]
    assert main("try", EXPERIMENT, words) == 0
    assert "seeds 7 to 8;" in capsys.readouterr().out
    assert {run.seed for run in read_kept(tmp_path / "runs")} == {7, 8}


def test_cells_and_entries_go_by_number_or_by_quoted_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = replace(EXPERIMENT, cells=("near", "one, far", "2"), entries=("old", "new"))
    kept = tmp_path / "runs"
    words = ["--seeds", "1", "--kept", str(kept), "--cells", '"one, far",2,1', "--entries", "2"]
    assert main("try", experiment, words) == 0
    # "2" is the name of a cell, and the number of an entry.
    assert [run.key for run in read_kept(kept)] == [
        ("one, far", "new", 0), ("2", "new", 0), ("near", "new", 0)
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        main("try", experiment, ["--help"])
    assert "1 near; 2 one, far; 3 2" in " ".join(capsys.readouterr().out.split())
    for wrong in ("4", "0", "", "one"):
        with pytest.raises(SystemExit):
            main("try", experiment, ["--cells", wrong])
        assert f"{wrong!r} is none of near, one, far, 2" in capsys.readouterr().err


def test_the_list_says_how_long_each_experiment_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(["lab", "experiments", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-2]
    assert [line.split()[0] for line in lines] == names()
    for line in lines:
        assert float(line.split()[1]) > 0, line
        assert line.endswith(find(line.split()[0]).question)


def test_the_list_tells_what_kept_runs_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [CellRun("near", "old", seed, "abc", {}, cpu_s=45.0) for seed in range(2)]
    kept = tmp_path / "build" / "lab" / "wan.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"".join(msgspec.json.encode(run) + b"\n" for run in runs))
    assert cli(["lab", "experiments", "--list"]) == 0
    assert "1.5 min  measured here, for the 2 runs kept" in capsys.readouterr().out


def test_seeds_that_are_mostly_the_same_are_shown_with_their_range() -> None:
    assert mean_text(np.array([0.0] * 8 + [0.01, -0.002]), ".4f") == "0.0008 (-0.0020 to 0.0100)"
