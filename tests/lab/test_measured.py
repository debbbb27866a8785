"""The table of what the docs' simulated figures are made by, and the command that makes them all."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from epp_lab import experiment, measured
from epp_lab.experiment import CellRun, Experiment, verdicts
from epp_lab.measured import HOURS, ROWS, Row, main

_DOCS = Path(__file__).parents[2] / "docs"
_WAN = "experiments wan --cells 1 --entries 1,2 --seeds 1"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_each_page_names_the_command_that_makes_its_figures(row: Row) -> None:
    assert f"epp lab {row.words}" in (_DOCS / row.page).read_text(encoding="utf-8")


def test_all_of_it_fits_into_the_hours_and_no_experiment_is_left_out() -> None:
    assert sum(row.minutes for row in ROWS) <= 60.0 * HOURS
    named = {shlex.split(row.words)[1] for row in ROWS if row.words.startswith("experiments")}
    assert named == set(experiment.names())


def test_it_goes_on_where_it_was_says_what_it_skips_and_where_a_verdict_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> str:
        assert main(["--jobs", "1", "--hours", "0.1"]) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EPP_TRACES", raising=False)
    monkeypatch.setattr(measured, "current_commit", lambda: "abc")
    rows = Row("a.md", _WAN, 1), Row("b.md", "experiments pairs", 1, traces=True), Row("c.md", _WAN, 60)
    monkeypatch.setattr(measured, "ROWS", rows)
    first = run()
    assert "b.md: epp lab experiments pairs: skipped: needs --traces DIR" in first
    assert f"c.md: epp lab {_WAN}: skipped: takes 60 min, and 6 are left" in first
    folder = Path("build", "measured", "abc")
    assert "| cell | entry |" in (folder / "00.txt").read_text()
    monkeypatch.setattr(experiment, "execute", None)  # nothing is run again
    assert run() == first
    earlier = Path("build", "measured", "def", "00.json")
    earlier.parent.mkdir()
    text = (folder / "00.json").read_text()
    earlier.write_text(text.replace(': "lower"', ': "level"').replace(': "higher"', ': "level"'))
    assert ": was level, is " in run()


def test_other_seeds_are_kept_apart_and_set_beside_the_usual_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measured, "current_commit", lambda: "abc")
    monkeypatch.setattr(measured, "ROWS", (Row("a.md", _WAN, 1), Row("b.md", "compare --seeds 1", 1)))
    usual = Path("build", "measured", "abc", "00.json")
    usual.parent.mkdir(parents=True)
    earlier = {"command": f"epp lab {_WAN}", "verdicts": {"three regions | gorgo | TTFT p50 ms": "gone"}}
    usual.write_text(json.dumps(earlier))
    assert main(["--jobs", "1", "--again", "--first-seed 7"]) == 0
    assert '"seed":7' in Path("build", "measured", "abc-first-seed-7", "00.jsonl").read_text()
    told = capsys.readouterr().out
    assert "TTFT p50 ms: was gone, is " in told
    assert "b.md: epp lab compare --seeds 1: skipped: " in told


def test_figures_of_a_tree_with_changes_are_of_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "current_commit", lambda: "abc-dirty")
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.parametrize(
    ("own", "word"),
    [([90.0, 91.0], "lower"), ([90.0, 111.0], "level"), ([120.0, 111.0], "higher"), ([0.0, 0.0], "level")],
)
def test_a_verdict_is_where_the_ratio_lies(own: list[float], word: str) -> None:
    tried = Experiment("?", ["a"], ["base", "own"], run=lambda *_: {}, events=("failed",))
    figures = {"base": [100.0, 100.0], "own": own}
    runs = [
        CellRun("a", entry, seed, "abc", {"ms": ms, "failed": 1.0})
        for entry, found in figures.items()
        for seed, ms in enumerate(found)
    ]
    assert verdicts(tried, runs) == {("a", "own", "ms"): word}
