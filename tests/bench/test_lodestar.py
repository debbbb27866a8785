"""Lodestar's bench: honest arithmetic, kept runs, every cell and entry sound."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from shutil import copytree, ignore_patterns
from typing import TYPE_CHECKING

import msgspec
import pytest

from bench import policy_runs
from bench.lodestar_cells import CELLS, ENTRIES, FULL, HEURISTIC, LODESTAR, SHORT, SMOKE, TRIED
from bench.lodestar_report import page, tables, text_of
from bench.lodestar_runs import BIN_S, SIZES, Job, Shelf, Summary, run, source
from bench.lodestar_summary import after_gate, settled_s, summarise
from epp.learner.settings import LearnerSettings
from epp.policies.registry import create
from epp.replay.fleets import FLEETS

if TYPE_CHECKING:
    from pathlib import Path

    from bench.lodestar_cells import Cell

STEADY = next(cell for cell in CELLS if not cell.shifts)
SHIFT = next(cell for cell in CELLS if cell.shifts)


def summary(cell: str, entry: str, seed: int, level_ms: float, **fields: object) -> Summary:
    usual: dict[str, object] = {
        "requests": 100,
        "failed": 0,
        "mean_ms": level_ms,
        "p99_ms": 5.0 * level_ms,
        "whole_mean_ms": 2.0 * level_ms,
        "whole_p99_ms": 9.0 * level_ms,
        "bins_ms": [3.0 * level_ms] * 3 + [level_ms] * 37,
        "error_ms": [],
        "by_class": {"a30": (0.75, level_ms), "v100": (0.25, 2.0 * level_ms)},
    }
    return Summary(cell=cell, entry=entry, seed=seed, **(usual | fields))  # type: ignore[arg-type]  # of the test


def ours(cell: str, seed: int, level_ms: float, **fields: object) -> Summary:
    usual: dict[str, object] = {
        "first_model_s": 60.0,
        "rounds": ["60 s: passed: well", "90 s: refused: not"],
        "passed": 1,
        "picks": {"no-model": 40, "model": 50, "explored": 4, "out-of-distribution": 6},
        "shift_fallback_share": 0.03,
    }
    return summary(cell, LODESTAR, seed, level_ms, **(usual | fields))


class TestCells:
    @pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
    def test_every_cell_has_its_load_and_time_to_learn(self, cell: Cell) -> None:
        requests = cell.requests(SMOKE, 1)
        wanted = SMOKE.shifted if cell.shifts else SMOKE.requests
        if cell.long:
            wanted = round(SMOKE.long_s * cell.rate_rps)
        assert len(requests) == pytest.approx(wanted, rel=0.1)
        assert requests[-1].at_ms / 1e3 == pytest.approx(cell.lasts_s(SMOKE), rel=0.1)
        assert cell.learned_s(SHORT) < 0.8 * cell.lasts_s(SHORT)
        assert len(cell.requests(SMOKE, 1, tuning=True)) < len(requests)
        assert cell.pool in FLEETS

    def test_names_are_each_ones_own_and_all_entries_can_be_made(self) -> None:
        assert len({cell.name for cell in CELLS}) == len(CELLS)
        assert len({entry.label for entry in ENTRIES}) == len(ENTRIES)
        for entry in ENTRIES:
            create(entry.policy, entry.params)
            entry.settings(SHORT, STEADY)
        assert {"linear model", "frozen midway", "offline only", "no K-filter"} <= {e.label for e in ENTRIES}

    def test_a_trial_is_held_where_there_is_time_for_it_and_nowhere_else(self) -> None:
        (tried,) = (entry for entry in ENTRIES if entry.learns == "tried")
        assert {cell.name for cell in CELLS if tried.runs_on(cell)} == {c.name for c in CELLS if c.long}
        for cell in CELLS:
            here = {entry.label for entry in ENTRIES if entry.runs_on(cell)}
            assert {LODESTAR, HEURISTIC} <= here
            assert ("no K-filter" in here) <= (cell.name.startswith("sharing") and not cell.shifts)

    def test_the_full_size_is_the_papers(self) -> None:
        assert FULL.settings.data == LearnerSettings().data
        assert FULL.settings.gate == LearnerSettings().gate
        assert FULL.settings.trial == LearnerSettings().trial
        assert FULL.shifted == 20_000


class TestSummary:
    def test_ratios_are_means_of_logarithms_over_seeds_and_cells(self) -> None:
        cell = STEADY.name
        runs = [ours(cell, 1, 100.0), ours(cell, 2, 100.0)]
        runs += [summary(cell, HEURISTIC, 1, 100.0), summary(cell, HEURISTIC, 2, 400.0)]
        result = summarise([STEADY], SHORT, (1, 2), {}, runs)
        row = next(row for row in result.rows if row.entry == HEURISTIC)
        assert row.mean_ratio == result.mean_ratio == result.p99_ratio
        point, low, high = row.mean_ratio
        assert point == pytest.approx(2.0)
        assert (low * high) ** 0.5 == pytest.approx(2.0)
        assert (low < 1.0, high > 4.0) == (True, True)  # two seeds that far apart show nothing
        learned = result.learned[0]
        assert learned.worst_after_gate == pytest.approx(1.0)
        assert learned.fallback_share == pytest.approx(0.1)  # of the 60 decisions since the first model
        assert learned.by_class["a30"] == pytest.approx((0.75, 100.0, 0.75, 250.0))

    def test_shifted_cells_are_not_in_the_headline(self) -> None:
        runs = [ours(SHIFT.name, 1, 100.0), summary(SHIFT.name, HEURISTIC, 1, 900.0)]
        result = summarise([SHIFT], SHORT, (1,), {}, runs)
        assert math.isnan(result.mean_ratio[0])
        assert result.learned[0].shift_fallback_share == pytest.approx(0.03)

    def test_what_was_not_run_is_left_out(self) -> None:
        runs = [ours(STEADY.name, 1, 100.0), ours(STEADY.name, 2, 100.0)]
        runs.append(summary(STEADY.name, HEURISTIC, 2, 150.0))
        result = summarise([STEADY], SHORT, (1, 2), {}, runs)
        assert {row.entry: row.seeds for row in result.rows} == {LODESTAR: 2, HEURISTIC: 1}
        assert "1.50, 1.50 (1)" in text_of(result)

    def test_time_to_settle(self) -> None:
        bins: list[float | None] = [900.0, 800.0, 500.0, 105.0, 100.0, 102.0, 98.0, 100.0, 100.0, 100.0]
        assert settled_s(bins, 0.0, 300.0) == 4 * BIN_S
        assert math.isnan(settled_s(bins, 200.0, 300.0))  # too short a time to tell

    def test_after_the_gate_counts_from_the_window_after_the_promotion(self) -> None:
        mine = ours("c", 1, 100.0, bins_ms=[900.0, 900.0, 900.0, 110.0, 110.0])
        theirs = summary("c", HEURISTIC, 1, 100.0, bins_ms=[100.0] * 5)
        assert after_gate(mine, theirs) == pytest.approx(1.1)
        assert math.isnan(after_gate(ours("c", 1, 1.0, first_model_s=None), theirs))


class TestTrials:
    CELL = next(cell for cell in CELLS if cell.long)

    def told(self, *phases: tuple[float, str, str], after_ms: float = 100.0) -> list[str]:
        tried = ours(self.CELL.name, 1, 100.0, trial=list(phases), bins_ms=[150.0] * 20 + [after_ms] * 20)
        tried = msgspec.structs.replace(tried, entry=TRIED)
        plain = ours(self.CELL.name, 1, 100.0, bins_ms=[130.0] * 40)
        theirs = summary(self.CELL.name, HEURISTIC, 1, 100.0, bins_ms=[100.0] * 40)
        result = summarise([self.CELL], SHORT, (1,), {}, [tried, plain, theirs])
        (rows,) = (rows for rows in tables(result) if rows[0][0].startswith("on trial"))
        assert math.isnan(result.mean_ratio[0])  # a long cell is in no headline
        return rows[1]

    def test_one_given_up_leaves_the_heuristic(self) -> None:
        found = self.told((0.0, "search", "x"), (60.0, "screen", "c1"), (600.0, "baseline", "harm: slow"))
        assert found[2:7] == ["1.30", "60, 600", "1.50", "1.00", "1.25"]
        assert found[7] == "the heuristic stays (600 s baseline: harm: slow)"

    def test_one_promoted_decides_afterwards(self) -> None:
        phases = ((60.0, "screen", "c1"), (600.0, "probation", "candidate 1 promoted: better"))
        assert self.told(*phases, after_ms=80.0)[5:] == [
            "0.80",
            "1.15",
            "promoted (600 s probation: candidate 1 promoted: better)",
        ]
        taken_back = (900.0, "baseline", "candidate 1 demoted: slow")
        assert "heuristic stays" in self.told(*phases, taken_back)[7]
        kept = (900.0, "baseline", "candidate 1 stays: nothing to regret")
        assert "promoted" in self.told(*phases, kept)[7]

    def test_one_that_is_not_over_says_so(self) -> None:
        found = self.told((60.0, "screen", "c1"), (300.0, "switchback", "no harm"))
        assert found[3:] == ["60, -", "1.23", "-", "1.25", "not over"]


def test_the_page_and_the_text_tell_the_same() -> None:
    cells = [STEADY, SHIFT]
    runs = [ours(c.name, 1, 100.0) for c in cells] + [summary(c.name, HEURISTIC, 1, 130.0) for c in cells]
    runs.append(msgspec.structs.replace(ours(SHIFT.name, 1, 120.0), entry="frozen midway"))
    result = summarise(cells, SHORT, (1,), {}, runs)
    text, html = text_of(result), page(result)
    for rows in tables(result):
        for row in rows[1:]:
            assert row[0] in text
            assert row[0] in html
    assert "1.30 times the mean TTFT" in text
    assert "frozen midway" in text
    assert "<svg" in html


def test_runs_are_kept_by_source_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "source")
    job = Job(STEADY.name, LODESTAR, 1, "smoke")
    assert shelf.of(job) is None
    shelf.work([job], workers=1, until_s=time.monotonic() - 1.0, say=lambda _: None)
    assert shelf.of(job) is None  # no time was left
    line = {"key": f"source|smoke|{job.cell}|{job.entry}|1|8,1", "summary": ours(job.cell, 1, 100.0)}
    (tmp_path / "runs.jsonl").write_bytes(msgspec.json.encode(line) + b"\n" + b'{"key": "half')
    assert Shelf(tmp_path, "source").of(job) is not None
    assert Shelf(tmp_path, "").of(job) is not None
    assert Shelf(tmp_path, "other source").of(job) is None
    other = Job(STEADY.name, HEURISTIC, 1, "smoke")
    Shelf(tmp_path, "source").work([other], workers=1, until_s=math.inf, say=lambda _: None)
    assert Shelf(tmp_path, "source").of(other) is not None


def test_runs_of_other_cells_are_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "tree"
    for name in ("bench", "epp"):
        copytree(policy_runs.PACKAGE.parent / name, root / name, ignore=ignore_patterns("__pycache__"))
    monkeypatch.setattr(policy_runs, "PACKAGE", root / "epp")
    digests = [source()]
    for name in ("bench/lodestar_cells.py", "bench/lodestar_runs.py", "epp/config/schema.py"):
        (root / name).write_text((root / name).read_text() + "\n")
        digests.append(source())
    assert len(set(digests)) == 4


@pytest.mark.parametrize("label", [LODESTAR, f"{HEURISTIC}, engine counts"])
def test_a_run_says_what_it_came_to(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = msgspec.structs.replace(SMOKE.settings.data, first=100, every=100)
    settings = msgspec.structs.replace(SMOKE.settings, data=data)
    monkeypatch.setitem(SIZES, "smoke", replace(SMOKE, requests=800, settings=settings))
    found = run(Job("tool calls / homo", label, 301, "smoke"))
    assert found.requests == pytest.approx(800, rel=0.1)
    assert found.failed == 0
    assert 0.0 < found.mean_ms < found.p99_ms
    assert sum(share for share, _ in found.by_class.values()) == pytest.approx(1.0)
    if label == LODESTAR:
        assert sum(found.picks.values()) == found.requests
        assert found.rounds
    else:
        assert found.picks == {}
