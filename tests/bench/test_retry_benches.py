"""The benches of retries: every policy is in their tables, and gains stand beside what they hide."""

from __future__ import annotations

from bench.correctness_cost import POLICIES, rows
from bench.retry_figures import lines_of
from epp.replay.kv_retry.cell import CellFigures
from epp.replay.kv_retry.document import document
from epp.replay.kv_retry.prior import LANGUAGES, LENGTHS


def test_what_a_decision_costs_is_told_of_every_policy_beside_gorgo() -> None:
    found = rows(endpoints=6, tokens=2048, language="ja", rounds=2, count=4)
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in found]
    assert [row[2] for row in cells] == list(POLICIES)
    assert all(row[:2] == ["6", "2K ja"] and float(row[3]) > 0 for row in cells)
    assert cells[0][4:] == ["1.00", "+0.000"]


def test_who_gives_up_early_is_ahead_in_one_column_and_behind_in_the_other() -> None:
    count = len(LANGUAGES) * len(LENGTHS)
    asks_on = CellFigures(30e3, 0.9, 0.5, 2.0, 5, 0.0)
    gives_up = CellFigures(20e3, 0.3, 0.3, 7.0, 10, 0.8)
    run = [[asks_on] * count, [gives_up] * count]
    lines = lines_of(document("kv-retry", [101, 102], ["laar", "session-affinity"], [run, run], "laar"))
    row = next(line for line in lines if line.startswith("| 64K | `session-affinity`"))
    gain, per_right = row.split("|")[9:11]
    assert gain.strip().startswith("-50 %")
    assert per_right.strip().startswith("+50 %")
    assert any("64K -50 % (-50 %) / +50 %" in line for line in lines)
