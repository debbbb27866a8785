"""Simulated engines' counters teach the picker what live ones would, where answers tell nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epp.lab.sim.fleet import FleetSim
from epp.policies.registry import create
from tests.kit.simfleet import options, request, still_fleet


@pytest.mark.parametrize(("lost", "low", "high"), [(0.0, 0.9, 1.05), (0.8, 0.0, 0.75)])
@pytest.mark.parametrize("told", [True, False])
def test_hit_ratios_come_from_usage_or_from_counters(
    lost: float, low: float, high: float, told: bool
) -> None:
    load = [request(n * 100.0, prompt_tokens=500, family=n % 3, session=str(n % 3)) for n in range(200)]
    fleet = still_fleet(2)
    fleet = replace(fleet, replicas=tuple(replace(r, lost_hit_share=lost) for r in fleet.replicas))
    sim = FleetSim(
        load,
        fleet,
        create("gorgo"),
        weights={},
        seed=1,
        options=options(report_usage=told, report_cached_tokens=told),
    )
    sim.run()
    calibration = sim._picker.fleet.calibration
    assert calibration.used > 0
    assert calibration.refused == 0
    ratios = [float(calibration.hit_ratio[slot]) for slot, _ in sim._picker.fleet.members]
    served = [replica.counters().done for replica in sim.replicas.values()]
    busiest = ratios[served.index(max(served))]
    assert low <= busiest <= high
