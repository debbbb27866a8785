"""Rehearsals: a deployment's records simulated, searched and judged, in the process and as a child."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

from epp.lab.compare.compare import Comparison
from epp.lab.sim.scenario import parse_fleet
from epp.lab.workloads.art_chat import DEMO, generate
from epp.learn.tuner import machine
from epp.learn.tuner.calibrate import CalibrationError, calibrate, newest_records
from epp.learn.tuner.offline import ChildRehearsal, task_of
from epp.learn.tuner.rehearse import (
    TRIED,
    Rehearsed,
    Stage,
    alike,
    budget_after,
    rehearse,
    windows,
    worth_a_trial,
)
from epp.learn.tuner.search import Search
from epp.learn.tuner.settings import Goal
from epp.learn.tuner.setup import read_setup
from epp.records.files import read_records
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


def test_a_capacity_is_of_use_and_share_of_one_decision(records: Path) -> None:
    decisions, outcomes = newest_records(records, "")
    changed = []
    for number, record in enumerate(decisions):
        rows = len(record["endpoints"])
        usage = 0.1 + 0.8 * (number % 10) / 10.0
        signals = {
            **record["signals"],
            "engine_used_tokens": [usage * 50_000.0] * rows,
            "engine_kv_usage": [usage] * rows,
        }
        unknown = {**record["unknown"], "engine_kv_usage": []}
        unknown["engine_used_tokens"] = list(range(rows)) if number % 10 < 3 else []
        changed.append({**record, "signals": signals, "unknown": unknown})
    found = calibrate(changed, outcomes).fleet.replicas
    assert {replica.engine_class.kv_capacity_tokens for replica in found} == {50_000}


def test_only_the_newest_records_of_the_policy_count(records: Path) -> None:
    decisions, _ = newest_records(records, "gorgo", 50)
    assert len(decisions) == 50
    everything = [r["at"] for r in read_records(records) if r["kind"] == "decision"]
    assert [d["at"] for d in decisions] == sorted(everything)[-50:]
    assert newest_records(records, "gorgo-ms") == ([], [])


def test_too_few_records_say_how_many_are_wanted(records: Path) -> None:
    decisions, outcomes = newest_records(records, "", 40)
    with pytest.raises(CalibrationError, match=r"not enough evidence \(40 of 400 requests\)"):
        calibrate(decisions, outcomes)


def test_windows_keep_every_request_and_begin_at_zero(records: Path) -> None:
    trace = calibrate(*newest_records(records, "")).trace
    cut = windows(trace, 200)
    assert sum(len(window) for window in cut) == len(trace)
    assert all(window[0].at_ms == 0.0 for window in cut)


def test_what_a_stage_ran_it_does_not_run_again(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = calibrate(*newest_records(records, ""))
    bounds = {"rtt_weight": (0.01, 2.0), "queue_weight": (0.05, 5.0)}
    stage = Stage(deployment, seed=3, window_requests=150)

    def found() -> Rehearsed:
        return rehearse(stage, Search(deployment.weights, bounds, seed=2), deployment.weights, budget=4)

    first = found()
    ran = []
    monkeypatch.setattr("epp.learn.tuner.rehearse.run_window", lambda *args, **_: ran.append(args))
    assert first == found()
    assert not ran


def compared(metric: Literal["ttft_ms", "e2e_ms"], low: float, ratio: float, high: float) -> Comparison:
    return Comparison(metric, "p95", 900, 90, 0, ratio, low, high, 0.95)


@pytest.mark.parametrize(
    ("ttft", "e2e", "failed", "measure", "word"),
    [
        ((0.85, 0.90, 0.95), (0.94, 0.98, 1.01), (0, 0), "ttft", ""),
        ((0.85, 0.90, 0.95), (0.94, 0.98, 1.01), (0, 1), "ttft", "more requests fail"),
        ((0.88, 0.94, 1.01), (0.85, 0.90, 0.95), (0, 0), "ttft", "no gain in TTFT"),
        ((0.95, 0.97, 0.99), (0.94, 0.98, 1.01), (0, 0), "ttft", "less than a trial could show"),
        ((0.85, 0.90, 0.95), (1.00, 1.02, 1.04), (0, 0), "ttft", "E2E may become worse"),
        ((0.85, 0.90, 0.95), (0.90, 0.99, 1.08), (0, 0), "ttft", "E2E may become worse"),
        ((0.95, 0.99, 1.05), (0.85, 0.90, 0.95), (0, 0), "felt", ""),
        ((0.85, 0.90, 0.95), (0.94, 0.98, 1.01), (0, 0), "felt", "no gain in E2E"),
        ((0.85, 0.90, math.nan), (0.94, 0.98, math.nan), (0, 0), "ttft", "too few requests"),
    ],
)
def test_what_a_trial_would_not_end_well_for_is_not_proposed(
    ttft: tuple[float, float, float],
    e2e: tuple[float, float, float],
    failed: tuple[int, int],
    measure: Literal["ttft", "felt"],
    word: str,
) -> None:
    worth, reason = worth_a_trial(
        compared("ttft_ms", *ttft), compared("e2e_ms", *e2e), failed, Goal(measure=measure)
    )
    assert worth == (not word)
    assert word in reason
    assert "searched on" in reason or word == "too few requests"


def test_the_gain_must_be_the_surer_the_more_often_one_was_sought() -> None:
    ttft, e2e = compared("ttft_ms", 0.92, 0.954, 0.995), compared("e2e_ms", 0.96, 0.99, 1.02)
    assert [worth_a_trial(ttft, e2e, (0, 0), Goal(), looks)[0] for looks in (1, 3)] == [True, False]
    assert "look 3 in a row" in worth_a_trial(ttft, e2e, (0, 0), Goal(), 3)[1]
    sure = compared("ttft_ms", 0.86, 0.90, 0.94)
    assert worth_a_trial(sure, e2e, (0, 0), Goal(), 5)[0]


def test_weights_near_those_that_failed_live_have_failed_too() -> None:
    failed = {"rtt_weight": 1.0, "queue_weight": 0.5}
    assert alike({"rtt_weight": 1.08, "queue_weight": 0.47}, failed, TRIED)
    assert not alike({"rtt_weight": 1.08, "queue_weight": 0.4}, failed, TRIED)
    assert not alike({"rtt_weight": 1.0, "other_weight": 0.5}, failed, TRIED)


def test_a_search_that_finds_nothing_costs_less_each_time() -> None:
    assert [budget_after(120, n) for n in range(6)] == [120, 60, 30, 15, 15, 15]
    assert budget_after(3, 5) == 1


def test_a_running_tuner_rehearses_in_a_child_and_does_not_repeat_what_failed_live(
    records: Path, tmp_path: Path
) -> None:
    config = tmp_path / "epp.yaml"
    config.write_text(
        f"policy: {{name: gorgo, weights: {{rtt_weight: 2.0}}}}\nrecords: {{folder: {records}}}\nweights_file: w.yaml\n"
    )
    setup = read_setup(_flags(config))
    state = machine.start("gorgo", setup.starting, setup.rules, 0.0)
    state.search = {"refused": [{"rtt_weight": 1.0, "queue_weight": 1.0, "prefill_weight": 1.0}]}
    assert task_of(setup, state, budget=4).refused == state.search["refused"]
    state.fruitless = 1
    again = task_of(setup, state, budget=4)
    assert (again.budget, again.looks) == (2, 2)
    state.fruitless = 0
    told: list[str] = []
    rehearsal = ChildRehearsal(setup, budget=4, tell=told.append)
    assert rehearsal.poll() is None
    rehearsal.start(state, "a test")
    waited_until = time.monotonic() + 90.0
    while (found := rehearsal.poll()) is None:
        assert time.monotonic() < waited_until
        time.sleep(0.1)
    assert found.reason.startswith("rehearsal: ")
    assert found.search["refused"]
    assert rehearsal.poll() is None
    rehearsal.start(state, "another")
    rehearsal.stop()
    assert rehearsal.poll() is None


def _flags(config: Path) -> argparse.Namespace:
    return argparse.Namespace(config=config, weights=None, records=None, overrides=None, settings=None)
