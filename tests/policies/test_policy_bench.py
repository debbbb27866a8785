"""The comparison of policies: who counts as the opponent, what a mean over cells is, and what is not run twice."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

import pytest

from bench import policies
from bench.policy_entries import (
    CANDIDATE,
    ENTRIES,
    LIVE,
    PAPER,
    SHORT,
    WIDE,
    WIDE_CELLS,
    YARDSTICK,
    Weights,
    cells_of,
    chosen,
    tuning_tasks,
)
from bench.policy_report import text_of, write_report
from bench.policy_runs import Shelf, TimeLimit, digest_of, policy_modules
from bench.policy_summary import BEST_LIVE, BEST_PAPER, BEST_SCRAPED, CellRuns, summarise
from epp.policies.registry import POLICIES, create
from epp.replay.measure import Figures, Quantiles
from epp.replay.policy_cells import POLICY_CELLS, SCORING_SEEDS
from epp.replay.simulate import Outcome, Task
from epp.replay.tune import Tuned
from epp.sim.oracle import ORACLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.policy_entries import Entry
    from epp.replay.tune import TuningTask

BY_LABEL = {entry.label: entry for entry in ENTRIES}
NONE = Quantiles(0.0, 0.0, 0.0, 0.0)
SHORT_CELL = "agent sessions / mixed / steady"


class NoRuns:
    """In the place of a shelf: searches find one weight, and nothing may be run."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def tune(self, tasks: Sequence[TuningTask]) -> list[Tuned]:
        return [Tuned(task.policy.name, {"a_weight": 2.0}, 1.0, 0.5, 2) for task in tasks]


def outcome(ttft_ms: float, e2e_ms: float) -> Outcome:
    figures = Figures(
        requests=100,
        errors=0,
        ttft_ms=Quantiles(ttft_ms, ttft_ms, ttft_ms, ttft_ms),
        e2e_ms=Quantiles(e2e_ms, e2e_ms, e2e_ms, e2e_ms),
        itl_ms=NONE,
        slip_ms=NONE,
        believed_hit_share=0.5,
        true_hit_share=0.5,
        share=(1.0,),
        busy_share=(0.5,),
        unanswered_share=0.0,
        input_tokens_per_s=1000.0,
        saturated=False,
        ttft_curve_ms=(),
        e2e_curve_ms=(),
        share_over_time=((1,),),
        bin_s=1.0,
    )
    return Outcome(figures, {})


def cell_runs(number: int, figures: dict[str, Sequence[tuple[float, float]]]) -> CellRuns:
    outcomes = {label: [outcome(*pair) for pair in pairs] for label, pairs in figures.items()}
    seeds = list(range(len(next(iter(figures.values())))))
    return CellRuns(POLICY_CELLS[number], seeds, outcomes, {label: {} for label in figures})


def test_each_cell_has_its_own_best_opponent_by_both_percentiles() -> None:
    runs = [
        cell_runs(0, {CANDIDATE: [(90, 900)], "lmetric": [(100, 1000)], "dynamo": [(80, 2000)]}),
        cell_runs(1, {CANDIDATE: [(100, 1000)], "lmetric": [(400, 1000)], "dynamo": [(200, 1000)]}),
    ]
    summary = summarise(runs, BY_LABEL)
    assert [row.against[BEST_LIVE].rival for row in summary.rows] == ["lmetric", "dynamo"]
    ttft, e2e = (summary.means[BEST_LIVE].ratios[metric][0] for metric in ("ttft_ms", "e2e_ms"))
    assert ttft == pytest.approx(math.sqrt(0.9 * 0.5))
    assert e2e == pytest.approx(math.sqrt(0.9 * 1.0))
    assert BEST_PAPER not in summary.means
    worst = summary.worst[BEST_LIVE]["ttft_ms"]
    assert worst[0] == POLICY_CELLS[0].name
    assert worst[1] == pytest.approx(0.9)


def test_intervals_need_seeds_and_hold_a_constant_ratio() -> None:
    one = cell_runs(0, {CANDIDATE: [(90, 900)], "lmetric": [(100, 1000)]})
    assert math.isnan(summarise([one], BY_LABEL).rows[0].against[BEST_LIVE].ratios["ttft_ms"][1])
    load = [100.0 * 1.3**seed for seed in range(10)]
    many = cell_runs(0, {CANDIDATE: [(0.9 * x, x) for x in load], "lmetric": [(x, x) for x in load]})
    point, low, high = summarise([many], BY_LABEL).rows[0].against[BEST_LIVE].ratios["ttft_ms"]
    assert (point, low, high) == pytest.approx((0.9, 0.9, 0.9)), "the load's luck cancels"
    mean = summarise([many], BY_LABEL).means[BEST_LIVE].ratios["ttft_ms"]
    assert mean == pytest.approx((0.9, 0.9, 0.9))


def test_few_seeds_take_the_spread_of_all_cells() -> None:
    rival = [(100.0, 1000.0)] * 3
    steady = cell_runs(0, {CANDIDATE: [(90, 900)] * 3, "lmetric": rival})
    noisy = cell_runs(1, {CANDIDATE: [(90, 900), (80, 900), (101.25, 900)], "lmetric": rival})
    rows = summarise([steady, noisy], BY_LABEL).rows
    intervals = [row.against[BEST_LIVE].ratios["ttft_ms"] for row in rows]
    for point, low, high in intervals:
        assert low < point < high
        assert point == pytest.approx(0.9)
        assert low * high == pytest.approx(point**2)
    assert intervals[0] == pytest.approx(intervals[1]), "a cell without luck of its own is no surer"
    # ln 90/80 twice, four degrees of freedom, three seeds
    half = 2.78 * math.sqrt(2 * math.log(90 / 80) ** 2 / 4 / 3)
    assert intervals[0][2] / intervals[0][0] == pytest.approx(math.exp(half))
    assert rows[0].against[BEST_LIVE].ratios["e2e_ms"] == pytest.approx((0.9, 0.9, 0.9))


def test_yardsticks_and_the_papers_baselines_are_no_live_baselines() -> None:
    figures: dict[str, Sequence[tuple[float, float]]] = {
        CANDIDATE: [(90, 900)],
        "greedy-oracle-total": [(1, 1)],
        "least-request 30 s": [(2, 2)],
        "least-request-stale": [(3, 3)],
        "lmetric": [(3, 3)],
    }
    summary = summarise([cell_runs(0, figures)], BY_LABEL)
    assert summary.rows[0].against[BEST_LIVE].rival == "lmetric"
    assert summary.rows[0].against[BEST_PAPER].rival == "least-request 30 s"
    assert summary.rows[0].against[BEST_SCRAPED].rival == "least-request-stale"
    oracle = summary.oracle[BEST_LIVE]
    assert oracle.rival == BEST_LIVE
    assert oracle.ratios["ttft_ms"][0] == pytest.approx(1 / 3)
    assert "| -66.7 / -66.7 % |" in text_of(summary, [cell_runs(0, figures)])


def test_the_papers_baselines_read_engine_metrics_as_seldom_as_its_router() -> None:
    cell = cells_of(SHORT_CELL, core=True, seconds=20.0)[0]
    assert BY_LABEL["least-load 30 s"].fleet(cell).scrape_interval_s == pytest.approx(30.0)
    assert BY_LABEL["least-load"].fleet(cell) == cell.fleet


def test_every_policy_and_yardstick_is_compared() -> None:
    names = {entry.policy.name for entry in ENTRIES}
    # Of the paper's first version there is a comparison of its own; LAAR chooses between models; Lodestar
    # learns while it serves, and its heuristic is another's under a second name.
    apart = {"gorgo-v1", "laar", "laar-paper", "lodestar", "prefix-cache-and-load"}
    assert POLICIES.keys() - names <= apart
    assert {entry.label for entry in ENTRIES if entry.group == YARDSTICK} == ORACLES.keys()
    assert len({entry.label for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        if entry.group in {LIVE, PAPER}:
            policy = create(entry.policy.name, entry.policy.params)
            assert entry.policy.weights.keys() <= policy.weight_specs.keys()


def test_short_windows_keep_what_happens_in_its_place() -> None:
    whole = next(cell for cell in POLICY_CELLS if cell.name == "mooncake / six / one slow")
    short = cells_of("mooncake / six / one slow", core=False, seconds=300.0)[0]
    assert [event.at_s for event in short.fleet.events] == pytest.approx(
        [event.at_s * short.cell.source.until_s / whole.cell.source.until_s for event in whole.fleet.events]
    )
    assert short.cell.source.until_s * short.cell.pace == pytest.approx(300.0)


def test_the_wide_run_has_each_of_its_cells_once_and_none_of_the_short_run() -> None:
    wide = [cell.name for cell in cells_of("wide", core=False, seconds=300.0)]
    assert sorted(wide) == sorted(WIDE_CELLS)
    assert not set(wide) & {cell.name for cell in cells_of("", core=True, seconds=300.0)}
    assert {*WIDE, *SHORT} <= BY_LABEL.keys()


def test_weights_are_tuned_once_for_a_load_on_a_fleet_that_nothing_happens_to() -> None:
    cells = cells_of("mooncake / three regions", core=False, seconds=60.0)
    tuned: list[Entry] = [entry for entry in ENTRIES if entry.tuned]
    tasks = tuning_tasks(ENTRIES, cells, 5)
    assert {load for _, load, _ in tasks} == {"mooncake / three regions"}
    assert len(tasks) == len(tuned)
    assert all(not task.fleet.events and task.budget == 5 for _, _, task in tasks)
    weights = Weights({"gorgo tuned": {"mooncake / three regions": {"rtt_weight": 3.0}}})
    for cell in cells:
        found = chosen(BY_LABEL["gorgo tuned"], cell, weights)
        assert found is not None
        assert found.weights == {"rtt_weight": 3.0}
    assert chosen(BY_LABEL["dynamo tuned"], cells[0], weights) is None
    elsewhere = cells_of("mooncake / six", core=False, seconds=60.0)[0]
    found = chosen(BY_LABEL["gorgo tuned"], elsewhere, weights)
    assert found is not None, "those of three regions stand in on fleets that nobody tuned on"
    assert found.weights == {"rtt_weight": 3.0}


def test_what_was_run_is_kept_and_what_was_half_written_is_run_again(tmp_path: Path) -> None:
    cell = cells_of(SHORT_CELL, core=True, seconds=20.0)[0]
    tasks = [
        Task(cell.cell, cell.fleet, BY_LABEL[name].policy, SCORING_SEEDS[0])
        for name in (CANDIDATE, "lmetric")
    ]
    steps: list[int] = []

    def shelf(digest: str = "one") -> Shelf:
        return Shelf(
            tmp_path,
            workers=1,
            digest=lambda _: digest,
            on_done=lambda _title, _done, total: steps.append(total),
        )

    first = shelf().run(tasks)
    assert steps[-1] == 2
    steps.clear()
    again = shelf()
    assert again.has(tasks)
    assert [run.figures for run in again.run(tasks)] == [run.figures for run in first]
    assert not steps
    assert not shelf("two").has(tasks), "another source, other runs"
    assert shelf("").has(tasks), "runs of any source are taken where that was asked for"
    kept = tmp_path / "runs.jsonl"
    kept.write_bytes(kept.read_bytes()[:-20])
    assert shelf().has(tasks[:1])
    assert not shelf().has(tasks)
    shelf().run(tasks)
    assert shelf().has(tasks), "what comes after half a line is a line of its own"


@pytest.mark.parametrize(
    ("limit_s", "rounds_s", "done"),
    [
        (0.0, [900.0] * 5, 5),  # no limit
        (960.0, [180.0] * 6, 5),
        (960.0, [1000.0, 10.0], 1),  # the first is always done
        (960.0, [10.0, 10.0, 700.0, 10.0], 3),  # what took longest may come again
        (960.0, [0.0, 0.0, 960.0], 3),  # rounds that are kept take no time
    ],
)
def test_no_round_begins_that_would_not_end_in_time(
    limit_s: float, rounds_s: Sequence[float], done: int
) -> None:
    now_s = [100.0]
    limit = TimeLimit(limit_s, lambda: now_s[0])
    ended = 0
    for took_s in rounds_s:
        if ended and not limit.fits_another():
            break
        now_s[0] += took_s
        limit.ended()
        ended += 1
    assert ended == done
    assert limit.spent_s == pytest.approx(sum(rounds_s[:done]))


def test_the_report_says_what_the_table_says(tmp_path: Path) -> None:
    cell = cells_of(SHORT_CELL, core=True, seconds=20.0)[0]
    shelf = Shelf(tmp_path / "runs", workers=1, digest=lambda _: "", on_done=lambda *_: None)
    names = [CANDIDATE, "lmetric"]
    outcomes = shelf.run(
        [Task(cell.cell, cell.fleet, BY_LABEL[name].policy, SCORING_SEEDS[0]) for name in names]
    )
    runs = [CellRuns(cell, [SCORING_SEEDS[0]], {n: [o] for n, o in zip(names, outcomes, strict=True)}, {})]
    summary = summarise(runs, BY_LABEL)
    text = text_of(summary, runs)
    assert SHORT_CELL in text
    assert "`lmetric`" in text
    write_report(tmp_path, summary, runs)
    page = (tmp_path / "report.html").read_text()
    links = [part.split('"')[0] for part in page.split('href="')[1:]]
    assert links
    assert all((tmp_path / link).is_file() for link in links)
    assert (tmp_path / "results.json").stat().st_size > 1000


def test_a_run_is_known_by_the_modules_of_its_policy() -> None:
    assert policy_modules("gorgo-ms") == ("policies/base.py", "policies/gorgo_ms.py", "policies/parts.py")
    assert "policies/gorgo_ms.py" in policy_modules("laar"), "what it is made of counts, too"
    assert "policies/gorgo_ms.py" not in policy_modules("lmetric")
    assert policy_modules("greedy-oracle-total") == (), "the simulator has those"


@pytest.mark.parametrize("name", sorted([*POLICIES, *ORACLES]))
def test_the_source_of_runs_is_known(name: str) -> None:
    assert digest_of(name) == digest_of(name)
    modules = policy_modules(name)
    assert bool(modules) == (name in POLICIES)
    assert "policies/registry.py" not in modules, "a new policy does not change the others"


def test_policies_of_other_modules_have_other_sources() -> None:
    assert len({digest_of(name) for name in ("gorgo-ms", "lmetric", "dynamo", "greedy-oracle-ttft")}) == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--entries", "lmetric,dynamo"), "'gorgo-ms' must be among them"),
        (("--entries", "gorgo-ms tuned"), "'gorgo-ms' must be among them"),
        (("--entries", "lmetric", "--tune"), "none of them has weights to search for"),
        (
            ("--cells", "agnet"),
            "no cell's name holds 'agnet'; one is 'art-chat ts 1 / three regions / steady'",
        ),
    ],
)
def test_what_nothing_can_be_compared_with_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], told: str
) -> None:
    folder = tmp_path / "runs"
    monkeypatch.setattr(policies, "WEIGHTS", tmp_path / "weights.json")
    monkeypatch.setattr(
        sys, "argv", ["policies", "--cells", SHORT_CELL, "--seconds", "1", "--folder", str(folder), *words]
    )
    with pytest.raises(SystemExit, match=told):
        policies.main()
    assert not folder.exists()


def test_weights_alone_are_searched_for_without_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.json"
    monkeypatch.setattr(policies, "WEIGHTS", weights)
    monkeypatch.setattr(policies, "Shelf", NoRuns)
    monkeypatch.setattr(
        sys,
        "argv",
        ["policies", "--cells", SHORT_CELL, "--seconds", "1", "--entries", "dynamo tuned", "--tune"],
    )
    assert policies.main() == 0
    assert json.loads(weights.read_bytes()) == {"dynamo tuned": {"agent sessions / mixed": {"a_weight": 2.0}}}
    assert "nothing is compared" in capsys.readouterr().out
