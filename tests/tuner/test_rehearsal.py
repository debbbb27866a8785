"""Rehearsals: a deployment's records simulated, searched and judged, in the process and as a child. And the search by itself."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp_lab.compare.compare import Comparison
from epp_lab.compare.stats import percentile
from epp_lab.sim.scenario import WindowOptions, parse_fleet
from epp_lab.tuner import machine
from epp_lab.tuner.calibrate import CalibrationError, calibrate, newest_records
from epp_lab.tuner.offline import ChildRehearsal, task_of
from epp_lab.tuner.rehearse import WARMUP_SHARE, Stage, windows, worth_a_trial
from epp_lab.tuner.search import Measured, Search
from epp_lab.tuner.settings import Goal
from epp_lab.tuner.setup import read_setup
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.simrecords import record_simulation

if TYPE_CHECKING:
    from pathlib import Path


#: All to the nearest, and no price for waiting: far from what is good here.
POOR = {"rtt_weight": 2.0, "queue_weight": 0.05}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five minutes of a deployment with poor weights."""
    folder = tmp_path_factory.mktemp("deployment") / "records"
    requests = generate(replace(DEMO, duration_s=200.0, rate_rps=3.0), 5)
    record_simulation(folder, requests, parse_fleet("l40s-x2@20,l40s-x2@102,h100@211"), "gorgo", POOR)
    return folder


def test_the_deployment_is_read_back_from_its_records(records: Path) -> None:
    decisions, outcomes = newest_records(records, "")
    found = calibrate(decisions, outcomes)
    assert found.policy == "gorgo"
    assert found.weights["rtt_weight"] == 2.0
    assert len(found.trace) == len(decisions)
    first, second, third = found.fleet.replicas
    assert first.network.rtt_ms == pytest.approx(20.0, rel=0.25)
    assert second.network.rtt_ms == pytest.approx(102.0, rel=0.25)
    assert third.network.rtt_ms == pytest.approx(211.0, rel=0.25)
    assert third.engine_class.name == "h100"
    assert third.engine_class.prefill_ms_per_token < first.engine_class.prefill_ms_per_token
    assert found.ttft_p95_ms > 20.0


def test_sessions_that_wait_for_answers_are_simulated_as_they_were(tmp_path: Path) -> None:
    # A fleet near its limit: sent at their recorded times, these would pile up (E2E p95 three times as long).
    requests = generate(replace(DEMO, duration_s=40.0), 1)
    record_simulation(tmp_path, requests, parse_fleet("l40s-x2@20,l40s-x2@102,l40s-x2@211"), "gorgo-ms", {})
    decisions, outcomes = newest_records(tmp_path, "")
    found = calibrate(decisions, outcomes)
    assert sum(r.after is not None for r in found.trace) == sum(r.after is not None for r in requests)
    stage = Stage(found, WindowOptions(), seed=0, window_requests=len(requests))
    seen = [r for window in stage.windows for r in stage.run(window, found.weights)]
    assert percentile([r.e2e_ms for r in seen], 95) == pytest.approx(found.e2e_p95_ms, rel=0.5)
    assert percentile([r.ttft_ms or 0.0 for r in seen], 95) == pytest.approx(found.ttft_p95_ms, rel=0.5)

    notes = calibrate(decisions, [*outcomes[1:], {**outcomes[0], "e2e_ms": None}]).notes
    assert any(note.startswith(f"1 of {len(decisions)} requests have no recorded end") for note in notes)


def test_windows_begin_earlier_by_their_warm_up_and_count_all_that_is_theirs(records: Path) -> None:
    trace = calibrate(*newest_records(records, "")).trace
    first, second = windows(trace, len(trace))
    counted = [len(window) - int(WARMUP_SHARE * len(window)) for window in (first, second)]
    assert counted[1] == pytest.approx(len(trace) / 2, abs=2)
    assert [r.prompt_tokens for r in second] == [r.prompt_tokens for r in trace[-len(second) :]]
    assert all(r.after is None or r.after < at for at, r in enumerate(second))


def test_too_few_records_say_how_many_are_wanted(records: Path) -> None:
    decisions, outcomes = newest_records(records, "", 40)
    with pytest.raises(CalibrationError, match=r"not enough evidence \(40 of 400 requests\)"):
        calibrate(decisions, outcomes)


def compared(metric: Literal["ttft_ms", "e2e_ms"], low: float, ratio: float, high: float) -> Comparison:
    return Comparison(f"{metric} p95", 900, 90, 0, ratio, low, high)


@pytest.mark.parametrize(
    ("ttft", "e2e", "failed", "measure", "looks", "word"),
    [
        ((0.85, 0.90, 0.95), (0.94, 0.98, 1.01), (0, 0), "ttft", 1, ""),
        ((0.85, 0.90, 0.95), (0.94, 0.98, 1.01), (0, 1), "ttft", 1, "more requests fail"),
        ((0.88, 0.94, 1.01), (0.85, 0.90, 0.95), (0, 0), "ttft", 1, "no gain in TTFT"),
        ((0.95, 0.97, 0.99), (0.94, 0.98, 1.01), (0, 0), "ttft", 1, "less than a trial could show"),
        ((0.85, 0.90, 0.95), (0.90, 0.99, 1.08), (0, 0), "ttft", 1, "E2E may become worse"),
        ((0.95, 0.99, 1.05), (0.85, 0.90, 0.95), (0, 0), "felt", 1, ""),
        ((0.85, 0.90, 0.95), (0.94, 0.98, 1.01), (0, 0), "felt", 1, "no gain in E2E"),
        # The gain must be the surer the more often one was sought.
        ((0.92, 0.954, 0.995), (0.96, 0.99, 1.02), (0, 0), "ttft", 1, ""),
        ((0.92, 0.954, 0.995), (0.96, 0.99, 1.02), (0, 0), "ttft", 3, "look 3 in a row"),
        ((0.86, 0.90, 0.94), (0.96, 0.99, 1.02), (0, 0), "ttft", 5, ""),
    ],
)
def test_what_a_trial_would_not_end_well_for_is_not_proposed(
    ttft: tuple[float, float, float],
    e2e: tuple[float, float, float],
    failed: tuple[int, int],
    measure: Literal["ttft", "felt"],
    *,
    looks: int,
    word: str,
) -> None:
    worth, reason = worth_a_trial(
        compared("ttft_ms", *ttft), compared("e2e_ms", *e2e), failed, Goal(measure=measure), looks
    )
    assert worth == (not word)
    assert word in reason
    assert "searched on" in reason


def test_a_running_tuner_rehearses_in_a_child_and_does_not_repeat_what_failed_live(
    records: Path, tmp_path: Path
) -> None:
    config = tmp_path / "epp.yaml"
    config.write_text(
        f"policy: {{name: gorgo, weights: {{rtt_weight: 2.0}}}}\nrecords: {{folder: {records}}}\nweights_file: w.yaml\n"
    )
    setup = read_setup(_flags(config))
    state = machine.start("gorgo", setup.rules.starting, setup.rules, 0.0)
    state.refused = [{"rtt_weight": 1.0, "queue_weight": 1.0, "prefill_weight": 1.0}]
    assert task_of(setup, state, budget=4).refused == state.refused
    state.fruitless = 1
    again = task_of(setup, state, budget=4)
    assert (again.budget, again.looks) == (2, 2)
    state.fruitless = 0
    told: list[str] = []
    rehearsal = ChildRehearsal(setup, budget=4, report=told.append)
    assert rehearsal.poll() is None
    rehearsal.start(state, "a test")
    waited_until = time.monotonic() + 240.0
    while (found := rehearsal.poll()) is None:
        assert time.monotonic() < waited_until
        time.sleep(0.1)
    assert found.reason.startswith("rehearsal: ")
    assert found.measured is not None
    assert len(found.measured.costs) == 4
    assert rehearsal.poll() is None
    rehearsal.start(state, "another")
    rehearsal.stop()
    assert rehearsal.poll() is None


def _flags(config: Path) -> argparse.Namespace:
    return argparse.Namespace(config=config, weights=None, records=None, overrides=None, settings=None)


BOUNDS = {"a": (0.05, 2.0), "b": (0.0, 5.0), "fixed": (1.0, 1.0)}
START = {"a": 0.5, "b": 0.1, "fixed": 1.0, "unknown": 7.0}
LOW = {"a": 0.2, "b": 1.0}


def cost(weights: dict[str, float]) -> float:
    """Lowest at `LOW`: 30 % up at the start."""
    return sum(0.05 * math.log(max(weights[name], 1e-4) / low) ** 2 for name, low in LOW.items())


def searched(seed: int, budget: int, noise: float = 0.03) -> Search:
    rng = np.random.default_rng(seed)
    search = Search(START, BOUNDS, seed=seed)
    while not search.stop(budget=budget):
        search.tell(cost(search.ask()) + noise * float(rng.normal()))
    return search


def test_it_finds_the_lowest_among_noise() -> None:
    assert cost(START) > 0.1
    regrets = [cost(searched(seed, 120).recommend()) for seed in range(5)]
    assert float(np.median(regrets)) < 0.02


def reread(search: Search) -> Search:
    found = msgspec.json.decode(msgspec.json.encode(search.measured), type=Measured)
    return Search(found.start, found.bounds, seed=found.seed, costs=found.costs)


@settings(max_examples=8)
@given(st.integers(0, 2**40), st.integers(1, 40))
def test_persisted_and_read_back_it_goes_on_the_same(seed: int, cut: int) -> None:
    search = searched(seed, cut)
    again = reread(search)
    assert again.ask() == search.ask() == search.ask()
    assert again.recommend() == search.recommend()
    for name, (low, high) in BOUNDS.items():
        assert low <= search.ask()[name] <= high
