"""What is said of prefill and decode apart: advice, and the summaries of experiments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.errors import EppError
from epp_lab import advise
from epp_lab.advise import Way, verdict
from epp_lab.compare.fleets import fleet_named
from epp_lab.experiment import CellRun
from epp_lab.experiments import pairs, tension
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import WindowOptions
from tests.kit.records import command
from tests.kit.simfleet import request

if TYPE_CHECKING:
    from pathlib import Path

APART, WHOLE = Way(1, 3), Way(0, 4)


@pytest.mark.parametrize(
    ("ratio", "begin"),
    [
        (0.8, "Apart: 1 prefill, 3 decode."),
        (1.3, "Whole: 4 whole. With"),
        (1.0, "Whole: 4 whole. No difference"),
    ],
)
def test_advice_is_to_stay_whole_unless_apart_is_shown_to_be_better(ratio: float, begin: str) -> None:
    logs = np.log(ratio * np.array([0.95, 1.05, 0.98, 1.02, 1.0]))
    assert verdict(APART, WHOLE, logs, "E2E").startswith(begin)


def arguments(**given: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    advise.add_arguments(parser)
    found = parser.parse_args(["--gpus", "2"])
    vars(found).update(given)
    return found


def test_an_engine_whose_kv_cache_is_not_known_is_refused_with_what_to_say() -> None:
    with pytest.raises(EppError, match="--kv-bytes-per-token"):
        advise.engine_of(arguments(engine="l40s-x2"))
    assert advise.engine_of(arguments(engine="l40s-x2", kv_bytes_per_token=7)).kv_bytes_per_token == 7


def test_a_trace_is_cut_into_equal_stretches(tmp_path: Path) -> None:
    row = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(row % (1_000 * at) for at in range(61)), encoding="utf-8")
    loads = advise.loads_of(arguments(trace=str(trace), seeds=6, tick_ms=0.0))
    assert [len(cell.source.requests(seed)) for cell, seed in loads] == [10] * 6


def test_the_command_tells_whole_apart_and_a_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--workload", "demo", "--seconds", 8, "--seeds", 6)
    assert command("lab", "advise", *load, "--gpus", 2, "--workers", 1) == 0
    out = capsys.readouterr().out
    assert "| 2 whole |" in out
    assert "| 1 prefill, 1 decode |" in out
    assert "nonCachedTokens" in out


def cell_run(cell: str, entry: str, seed: int, ttft_ms: float, e2e_ms: float) -> CellRun:
    return CellRun(cell, entry, seed, "", {"TTFT p95 ms": ttft_ms, "E2E p95 ms": e2e_ms})


def test_ours_is_set_beside_the_best_threshold_of_each_figure() -> None:
    cell = "conversation 8b 100g"
    runs = [cell_run(cell, *row) for row in (("gorgo-ms", 0, 90.0, 200.0), ("512", 0, 100.0, 400.0))]
    runs.append(cell_run(cell, "2048", 0, 120.0, 250.0))
    assert f"| {cell} | 0.900 (512) | 0.800 (2048) |" in pairs.goals(runs)


def test_the_tension_is_judged_on_seeds_that_did_not_choose() -> None:
    cell, runs = next(iter(tension.CELLS)), []
    for seed in range(4):
        for entry in tension.WEIGHTS:
            ttft_ms = 50.0 if entry == tension.NEAR else 100.0
            e2e_ms = 400.0 if entry == "decode" else 1_000.0 if seed < 2 else 600.0
            runs.append(cell_run(cell, entry, seed, ttft_ms, e2e_ms))
    assert f"| {cell} | {tension.NEAR} | decode | 1.500 (1.500 to 1.500) | 0.500" in tension.tension(runs)


def test_measures_count_what_was_due_after_the_warm_up() -> None:
    load = [request(1e3 * at, session=str(at)) for at in range(60)]
    result = run_window(load, fleet_named("pd-8b-1p1d-100g"), "gorgo-ms", options=WindowOptions())
    found = pairs.measures(result)
    assert found["failed"] == 0.0
    assert 0.0 < found["TTFT p95 ms"] < found["E2E p95 ms"]
