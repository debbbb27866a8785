"""The same window gives the same bytes, whatever process it ran in."""

from __future__ import annotations

import os
import subprocess
import sys

from epp.lab.sim.engine_class import L40S_X2
from epp.lab.sim.run import run_window
from epp.lab.sim.scenario import Event, FleetSpec, Happening, WindowOptions, regional_fleet
from epp.lab.workloads.art_chat import DEMO, generate

_PROGRAM = """
from tests.sim.test_fleet_same import digest
print(digest("gorgo"), digest("random"), digest("session-affinity"))
"""


def digest(policy: str, seed: int = 5) -> str:
    fleet = FleetSpec(
        regional_fleet(L40S_X2, lost_hit_share=0.2).replicas,
        (
            Event(8.0, "eu-frankfurt:8000", Happening.DIE),
            Event(12.0, "eu-frankfurt:8000", Happening.REVIVE),
        ),
    )
    options = WindowOptions(max_in_flight=16, timeline_s=1.0)
    return run_window(generate(DEMO, 1)[:150], fleet, policy, seed=seed, options=options).digest()


def test_hash_seeds_do_not_matter() -> None:
    outputs = []
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.split())
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0] == [digest("gorgo"), digest("random"), digest("session-affinity")]
    assert len(set(outputs[0])) == 3


def test_another_seed_is_another_window() -> None:
    assert digest("gorgo", seed=5) != digest("gorgo", seed=6)


def test_policies_meet_the_same_network() -> None:
    load = generate(DEMO, 2)[:80]
    fleet = regional_fleet(L40S_X2)
    runs = [run_window(load, fleet, policy, seed=3) for policy in ("random", "round-robin")]
    same = 0
    for left, right in zip(*(run.requests for run in runs), strict=True):
        if left.endpoint == right.endpoint and left.network_ms == right.network_ms:
            same += 1
    # Alike but for handshakes and windows, which hang on what was sent before.
    assert same > 10
