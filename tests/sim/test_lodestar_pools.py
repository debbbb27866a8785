"""The pools of Lodestar's evaluation: what their engines are, and how often the picker reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.lab.compare.fleets import FLEETS
from epp.lab.sim.engine_class import A30, L20, V100
from epp.lab.sim.fleet import FleetSim
from epp.lab.sim.run import policy_named, run_window
from epp.lab.sim.scenario import WindowOptions, parse_fleet
from epp.lab.workloads.tool_agent import ToolAgent, generate

if TYPE_CHECKING:
    from epp.lab.sim.scenario import FleetSpec
    from epp.schedule.decision import Decision

LOAD = generate(ToolAgent(duration_s=20.0, rate_rps=5.0, divisor=4), 1)


def test_pools_have_the_published_hardware() -> None:
    kinds = {
        name: Counter(replica.engine_class.name for replica in FLEETS[name][1].replicas)
        for name in ("homo", "hetero", "l20-a30")
    }
    assert kinds == {
        "homo": {"a30": 7},
        "hetero": {"a30": 7, "v100": 8},
        "l20-a30": {"l20": 7, "a30": 8},
    }


def test_an_l20_is_the_faster_and_larger_one_and_a_v100_remembers_nothing() -> None:
    assert L20.prefill_batch_ms(2000) < A30.prefill_batch_ms(2000) < V100.prefill_batch_ms(2000)
    assert L20.kv_capacity_tokens > V100.kv_capacity_tokens > A30.kv_capacity_tokens
    assert (A30.prefix_cache, L20.prefix_cache, V100.prefix_cache) == (True, True, False)


def test_replicas_without_a_prefix_cache_give_no_hits() -> None:
    result = run_window(LOAD, FLEETS["hetero"][1], "round-robin", seed=1)
    hits = Counter[str]()
    for request in result.requests:
        hits[request.endpoint.split("-")[0]] += request.cached_tokens
    assert hits["a30"] > 0
    assert hits["v100"] == 0


def _ages_ms(spec: FleetSpec) -> list[float]:
    """The oldest engine metrics that each decision saw; none of them was too old to be used."""
    seen: list[float] = []

    class Watched(FleetSim):
        def decided(self, decision: Decision) -> None:
            seen.append(float(decision.fleet.engine_age_ms.max()))
            assert np.isfinite(decision.fleet.engine_running).all()

    sim = Watched(LOAD, spec, policy_named("least-request"), weights={}, seed=1, options=WindowOptions())
    sim.run()
    return seen


def test_engine_metrics_come_as_often_as_the_fleet_says() -> None:
    homo = FLEETS["homo"][1]
    assert homo.scrape_interval_s == pytest.approx(0.1)
    assert max(_ages_ms(homo)) <= 100.0 + 1e-6
    slower = _ages_ms(replace(homo, scrape_interval_s=None))  # the configuration's second
    assert 500.0 < max(slower) <= 1000.0 + 1e-6
    slowest = _ages_ms(replace(homo, scrape_interval_s=30.0))
    assert max(slowest) > 10_000.0, "metrics read seldom are good until the next ones"
    with pytest.raises(ValueError, match="scrape_interval_s"):
        replace(parse_fleet("a30"), scrape_interval_s=0.0)
