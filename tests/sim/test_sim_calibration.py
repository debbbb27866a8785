"""Simulated engines that lose hits teach the picker what live ones would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epp.lab.sim.fleet import FleetSim
from epp.policies.registry import create
from tests.kit.simfleet import options, request, still_fleet


@pytest.mark.parametrize(("lost", "low", "high"), [(0.0, 0.9, 1.05), (0.8, 0.0, 0.75)])
def test_hit_ratios_come_from_usage(lost: float, low: float, high: float) -> None:
    load = [request(n * 100.0, prompt_tokens=500, family=n % 3, session=str(n % 3)) for n in range(200)]
    fleet = still_fleet(2)
    fleet = replace(fleet, replicas=tuple(replace(r, lost_hit_share=lost) for r in fleet.replicas))
    sim = FleetSim(
        load,
        fleet,
        create("gorgo"),
        weights={},
        seed=1,
        options=options(report_usage=True, report_cached_tokens=True),
    )
    sim.run()
    calibration = sim._picker.fleet.calibration
    ratios = [float(calibration.hit_ratio[slot]) for slot, _ in sim._picker.fleet.members]
    served = [replica.counters().done for replica in sim.replicas.values()]
    busiest = ratios[served.index(max(served))]
    assert low <= busiest <= high
