"""Tuning: one budget and objective for all, inside the bounds, never worse than the start, repeatable."""

from __future__ import annotations

import math

import pytest

from epp.lab.compare import tune as tuning
from epp.lab.compare.measure import Figures, Quantiles
from epp.lab.compare.plan import TUNING_SEED, Cell, Source
from epp.lab.compare.simulate import Outcome, PolicyChoice, Task
from epp.lab.compare.tune import TuningTask, objective, tunable, tune
from epp.lab.sim.scenario import parse_fleet
from epp.policies.registry import POLICIES, create

NAN = float("nan")


def made(ttft: float = 500.0, e2e: float = 2000.0, errors: int = 0) -> Figures:
    def q(value: float) -> Quantiles:
        return Quantiles(value, value, value, value)

    return Figures(
        requests=100, errors=errors, ttft_ms=q(ttft), e2e_ms=q(e2e), itl_ms=q(9.0), slip_ms=q(0.0),
        believed_hit_share=NAN, true_hit_share=NAN, share=(1.0,), busy_share=(), unanswered_share=0.0,
        input_tokens_per_s=1.0, saturated=False, ttft_curve_ms=(), e2e_curve_ms=(), share_over_time=(), bin_s=1.0,
    )  # fmt: skip


def task(name: str = "gorgo", budget: int = 12) -> TuningTask:
    cell = Cell("c", Source(workload="demo"), tuning=Source(workload="demo", until_s=8.0))
    return TuningTask(cell, parse_fleet("l40s-x2@20,l40s-x2@100"), PolicyChoice(name), budget)


def test_the_objective_prices_both_latencies_and_failures() -> None:
    assert objective(made(e2e=1000.0)) < objective(made())
    assert objective(made(ttft=250.0, e2e=8000.0)) > objective(made())  # half the TTFT at four times the E2E
    assert objective(made(errors=1)) == pytest.approx(objective(made()) + 0.1)
    assert objective(made(ttft=NAN, e2e=NAN)) == math.inf


def test_what_has_weights_is_tunable() -> None:
    assert tunable("gorgo")
    assert not tunable("random")
    assert not tunable("greedy-oracle-ttft")
    assert not tunable("lodestar")  # it learns by itself


def test_a_search_on_a_known_surface_finds_its_valley(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Task] = []

    def surface(asked: Task) -> Outcome:
        seen.append(asked)
        weights = asked.policy.weights
        far = abs(math.log(weights["queue_weight"] / 0.05)) + 0.1 * abs(weights["prefill_weight"] - 1.0)
        return Outcome(made(e2e=1000.0 * math.exp(far)), {})

    monkeypatch.setattr(tuning, "run_task", surface)
    found = tune(task(budget=60))
    assert found.best < found.start - 0.5
    assert found.weights["queue_weight"] == pytest.approx(0.05, rel=0.6)
    assert len(seen) == found.tried * tuning.TUNING_SEEDS
    assert {t.seed for t in seen} == {TUNING_SEED, TUNING_SEED + 1}
    assert {t.cell.source for t in seen} == {Source(workload="demo", until_s=8.0)}
    assert tune(task(budget=60)) == found


@pytest.mark.parametrize("name", [name for name in POLICIES if tunable(name)])
def test_weights_stay_inside_the_bounds_of_every_policy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = create(name).weight_specs
    seen = []

    def surface(asked: Task) -> Outcome:
        seen.append(dict(asked.policy.weights))
        return Outcome(made(e2e=1000.0 + 50.0 * len(seen) % 7), {})

    monkeypatch.setattr(tuning, "run_task", surface)
    found = tune(task(name, budget=20))
    for weights in [*seen, found.weights]:
        assert weights.keys() == specs.keys()
        assert all(specs[key].low <= value <= specs[key].high for key, value in weights.items())
    assert seen[0] == {key: spec.default for key, spec in specs.items()}
