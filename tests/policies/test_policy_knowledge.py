"""What a policy would gain by knowing more: arms that know nothing are the policy, and draws are the simulator's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from bench.policy_entries import cells_of
from bench.policy_knowledge import ARMS, BASE, Blind, Knowing, Run, SupposingSim, run, table
from epp.keyed_uniform import keyed_uniform
from epp.policies.gorgo_ms import GorgoMs
from epp.replay.measure import Figures
from epp.replay.policy_cells import DEVELOPMENT_SEEDS, PolicyCell
from epp.replay.simulate import PolicyChoice, Task, run_task
from epp.sim.oracle import Oracle
from epp.sim.scenario import WindowOptions
from tests.kit.fleets import default_weights, fleet_view, request

SEED = DEVELOPMENT_SEEDS[0]
BLIND = "oracle, blind to losses"


def cell(name: str, seconds: float = 40.0) -> PolicyCell:
    return cells_of(name, core=True, seconds=seconds)[0]


LOSING, EXACT = cell("art-chat ts 1 / three regions / steady"), cell("agent sessions / mixed / steady")


@pytest.mark.parametrize("arm", [BASE, "oracle"])
def test_who_is_told_nothing_decides_as_in_the_comparison(arm: str) -> None:
    name = "gorgo-ms" if arm == BASE else "greedy-oracle-total"
    expected = run_task(Task(EXACT.cell, EXACT.fleet, PolicyChoice(name), SEED)).figures
    assert run(Run(EXACT, arm, SEED)).e2e_curve_ms == expected.e2e_curve_ms


def test_where_no_hits_are_lost_nobody_is_blind() -> None:
    seen, blind = (run(Run(EXACT, arm, SEED)) for arm in ("oracle", BLIND))
    assert blind.e2e_curve_ms == seen.e2e_curve_ms


def test_where_hits_are_lost_who_knows_which_finds_more_in_the_caches() -> None:
    base, knows, blind, oracle = (
        run(Run(LOSING, arm, SEED)).true_hit_share
        for arm in (BASE, "knows which hits are lost", BLIND, "oracle")
    )
    assert knows > base
    assert oracle > blind


def test_the_draws_foreseen_are_those_that_are_made_and_the_blind_one_supposes_both() -> None:
    blind = Blind(LOSING.fleet)
    requests = LOSING.cell.source.requests(SEED)[:60]
    sim = SupposingSim(requests, LOSING.fleet, blind, weights={}, seed=SEED, options=WindowOptions())
    drawn = []
    for index in range(len(requests)):
        for replica in sim.replicas.values():
            share = replica.spec.lost_hit_share
            drawn.append(sim.job(replica, index).miss)
            assert drawn[-1] == (keyed_uniform(SEED, f"{index} {replica.spec.address}", "lost hit") < share)
            for lost in (False, True):
                blind.supposed_lost = lost
                assert sim.job(replica, index).miss is lost
            blind.supposed_lost = None
    assert 0.15 < np.mean(drawn) < 0.45


class _Truth:
    """A request that will find 300 tokens wherever it goes."""

    index = 0

    def forecast(self, address: str) -> _Truth:
        assert address
        return self

    cached_tokens = 300


@pytest.mark.parametrize(
    ("what", "cached_tokens", "answer_tokens"),
    [(set(), 800.0, 50.0), ({"caches"}, 300.0, 50.0), ({"caches", "answer"}, 300.0, 700.0)],
)
def test_signals_are_replaced_by_what_is_true(
    what: set[str], cached_tokens: float, answer_tokens: float
) -> None:
    view = fleet_view(2, cached_tokens=[800.0, 800.0], uncached_tokens=[200.0, 200.0])
    spec = replace(LOSING.fleet, replicas=LOSING.fleet.replicas[:2])
    told = Knowing(spec, frozenset(what)).shown(_Truth())  # type: ignore[arg-type]  # as much of it as is asked
    asked = request(prompt_tokens=1000, expected_output_tokens=50.0, max_output_tokens=700)
    weights = default_weights(GorgoMs())
    found = told.rank(asked, view, weights, SEED)
    true = fleet_view(2, cached_tokens=[cached_tokens] * 2, uncached_tokens=[1000 - cached_tokens] * 2)
    expected = GorgoMs().rank(
        structs.replace(asked, expected_output_tokens=answer_tokens), true, weights, SEED
    )
    assert found.costs.tolist() == expected.costs.tolist()


def test_arms_that_are_told_the_truth_are_oracles() -> None:
    assert isinstance(Knowing(LOSING.fleet, frozenset()), Oracle)
    assert isinstance(Blind(LOSING.fleet), Oracle)


def test_the_table_has_changes_by_cell_and_their_mean() -> None:
    base = run(Run(EXACT, BASE, SEED))

    def times(factor: float) -> Figures:
        scaled = {metric: getattr(base, metric) for metric in ("ttft_ms", "e2e_ms")}
        return Figures(
            **{name: getattr(base, name) for name in Figures.__struct_fields__ if name not in scaled},
            **{metric: type(value)(0.0, 0.0, value.p95 * factor, 0.0) for metric, value in scaled.items()},
        )

    figures = {
        (name, arm): [times(1.0 if arm == BASE else factor)] * 2
        for name, factor in (("one", 0.5), ("two", 0.98))
        for arm in ARMS
    }
    lines = table(["one", "two"], figures)
    assert lines[2].endswith("| -50.0 % / -50.0 % |")
    mean = f"{(math.sqrt(0.49) - 1) * 100:+.1f} %"
    assert lines[-1].startswith("| **mean** |")
    assert lines[-1].endswith(f"| {mean} / {mean} |")
    assert all(line.count("|") == lines[0].count("|") for line in lines)
