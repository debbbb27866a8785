"""What is measured: experiments in the simulator, and what requests cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.acceptance.kit import run

if TYPE_CHECKING:
    from pathlib import Path


def test_an_experiment_prints_its_table_and_goes_on_where_it_was(tmp_path: Path) -> None:
    words = ("lab", "experiments", "wan", "--kept", str(tmp_path / "runs.jsonl"), "--seeds")
    first = run(*words, "1", "--entries", "gorgo,least-load")
    assert "| three regions | least-load |" in first
    kept = (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(kept) == 2
    assert "commit" in run(*words, "2", "--entries", "gorgo,least-load", "--jobs", "2")
    assert (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()[:2] == kept


def test_a_bench_shows_goals_and_ratios_to_a_saved_baseline(tmp_path: Path) -> None:
    words = ("bench", "core", "--rounds", "1", "--sizes", "200", "--endpoints", "3")
    base = str(tmp_path / "base.json")
    run(*words, "--save", base)
    shown = run(*words, "--baseline", base)
    assert "of baseline" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("core/200/3/warm ")]
    assert float(line.split()[-1]) > 0
