"""A tuner's life in virtual time, and each experiment on it once, made small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from epp.config.plan import Plan, Split, Switchback
from epp_lab import tuner_life
from epp_lab.experiments import tuner_drift, tuner_guard, tuner_paper, tuner_runs
from epp_lab.tuner import machine
from epp_lab.tuner.hillclimb import EsPaper
from epp_lab.tuner.settings import Stages, TunerSettings
from epp_lab.tuner.state import NothingBetter, Proposed
from epp_lab.tuner_life import BEGIN_WALL_S, CELLS, HOME, Life, Stretch, defaults_of, rules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.tuner.samples import Sample
    from epp_lab.tuner.state import TunerState

POLICY = "gorgo-ms"
OTHER = {"prefill_weight": 1.0}
QUICK = TunerSettings(stages=Stages(baseline_requests=60, baseline_s=30.0, freeze_after=2))


@pytest.mark.parametrize("kind", [Split, Switchback])
def test_samples_carry_the_arm_that_the_picker_chose(kind: type[Split | Switchback]) -> None:
    begin_wall_s = BEGIN_WALL_S + 40_000.0
    trial = kind(
        id="c1",
        weights=OTHER,
        valid_from_wall_s=begin_wall_s + 20.0,
        valid_until_wall_s=begin_wall_s + 1000.0,
        block_s=20.0,
    )
    samples: list[Sample] = []
    looks: list[float] = []
    stretch = Stretch(
        HOME.load(1, 180.0), HOME.fleet, POLICY, {}, seed=1,
        answered=samples.append, look=looks.append, begin_wall_s=begin_wall_s,
    )  # fmt: skip
    stretch.publish(Plan(weights=defaults_of(POLICY), policy=POLICY, trial=trial))
    stretch.run_until(lambda: False)
    served = {(sample.stamp.arm, sample.weights_version) for sample in samples if sample.stamp}
    assert sorted(arm for arm, _ in served) == ["candidate", "incumbent"]
    assert len({version for _, version in served}) == 2
    for sample in samples:
        assert sample.stamp is None or trial.block_at(sample.dispatched_wall_s) == sample.stamp.block
    assert looks[0] == pytest.approx(begin_wall_s)


def life(candidates: list[dict[str, float]]) -> Life:
    rules = rules_of(POLICY, QUICK)

    def rehearse(
        state: TunerState, now_wall_s: float, requests: Sequence[TraceRequest]
    ) -> Proposed | NothingBetter:
        assert requests
        assert state.thresholds is not None
        if candidates:
            return Proposed(now_wall_s, candidates.pop(0), "said so")
        return NothingBetter(now_wall_s, "nothing found")

    return Life(
        policy=POLICY,
        fleet=lambda _: HOME.fleet,
        load=lambda number: HOME.load(number % 1000, 60.0),
        state=machine.start(POLICY, defaults_of(POLICY), rules, BEGIN_WALL_S),
        rules=rules,
        rehearse=rehearse,
        stop=lambda state: state.phase == "frozen",
    )


def test_the_published_search_starts_and_hops_as_published_and_stays_in_its_box() -> None:
    es = EsPaper(seed=1)
    assert es.weights == {"rtt_weight": 0.5, "queue_weight": 0.1}
    assert [n for n in range(1, 401) if es.tell(1000.0 + n)][:4] == [128, 160, 192, 224]
    assert es.best_score == -(1001.0 + round(0.95 * 127)) / 1000.0
    better = EsPaper(seed=2)
    for number in range(3000):
        better.tell(3000.0 - number * 0.9)  # ever better: everything is accepted
        assert 0.05 <= better.weights["rtt_weight"] <= 2.0
    assert better.sigma > 1e3  # no ceiling: the fault that put candidates on the faces of the box
    while not es.stopped:
        es.tell(5000.0 + es.samples)
    assert es.weights == es.best


def test_the_published_search_is_a_function_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner_paper, "DURATION_S", 120.0)
    monkeypatch.setattr(tuner_paper, "WINDOW_S", 60.0)
    cell, entries = "as published", list(tuner_paper.EXPERIMENT.entries)
    first, again, other = (tuner_paper.run(cell, entries[1], seed) for seed in (1, 1, 2))
    assert first == again
    assert first["steps"] > 2
    assert first["rtt_weight"] != other["rtt_weight"]
    assert tuner_paper.run(cell, entries[0], 1)["queue_weight"] == defaults_of("gorgo")["queue_weight"]


def test_a_candidate_that_herds_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner_life, "rules_of", lambda policy: rules_of(policy, QUICK))
    found = tuner_guard.run("chat / three regions", "herds to the nearest", 0)
    assert (found["promoted"], found["ended"]) == (False, True)


def test_a_tuning_run_is_judged_on_windows_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner_life, "LOADS_HELD_OUT", 1)
    monkeypatch.setattr(tuner_life, "HELD_OUT_REQUESTS", 30)
    for name, value in {"MOST_REQUESTS": 5000, "BUDGET": 1, "RECORDED": 90, "WINDOW_REQUESTS": 30}.items():
        monkeypatch.setattr(tuner_runs, name, value)
    cell = "chat / one region | gorgo"
    start, tuned = (tuner_runs.run(cell, entry, 0) for entry in (tuner_runs.START, tuner_runs.TUNED))
    assert (tuned["promoted"], tuned["ttft_p95_ms"]) == (False, start["ttft_p95_ms"])
    assert len(CELLS) * len(tuner_runs.POLICIES) * tuner_runs.EXPERIMENT.seeds >= 200


@pytest.mark.parametrize("what", ["load triples", "engine class changes"])
def test_a_drift_is_lived_through_with_and_without_a_tuner(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_drift, "CHANGED_H", 1)
    for module in (tuner_drift, tuner_life):
        monkeypatch.setattr(module, "STRETCH_S", 300.0)
    without, tuned = (tuner_drift.run(what, entry, 0) for entry in tuner_drift.EXPERIMENT.entries)
    assert without["p95_ms"] == tuned["p95_ms"] > 0.0
    assert math.isnan(tuned["thawed_h"]), "nothing is noticed so soon"
