"""Count how long the gate keeps a first model from a pool that saturates, and whether it keeps a bad one out.

The bad one is a training gone astray: a network as it was drawn at random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp.lab.compare.fleets import FLEETS
from epp.lab.compare.learned import UNTRIED, Learning, run_learned
from epp.lab.experiment import Experiment
from epp.lab.sim.scenario import WindowOptions
from epp.lab.workloads.registry import workload_named
from epp.learn.reward_model.settings import DataKeys, Gate, Network
from epp.policies.lodestar import Lodestar

if TYPE_CHECKING:
    from collections.abc import Mapping

SEED = 1
WORKLOAD = workload_named("mooncake-chat")
DATA = DataKeys(first=1000, every=500)
_ASTRAY = Network(epochs=1, learning_rate=1e-9)
#: How models are trained, and whether the gate is on.
ENTRIES: Mapping[str, tuple[Network, bool]] = {
    "no gate": (Network(), False),
    "gate": (Network(), True),
    "astray, no gate": (_ASTRAY, False),
    "astray, gate": (_ASTRAY, True),
}


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Learn from a cold start for half an hour."""
    network, gated = ENTRIES[entry]
    settings = msgspec.structs.replace(UNTRIED, data=DATA, gate=Gate(on=gated), network=network)
    options = WindowOptions(max_in_flight=WORKLOAD.max_in_flight)
    load, fleet = WORKLOAD.make(SEED + seed), FLEETS[cell][1]
    result, lesson = run_learned(
        load, fleet, Lodestar(), Learning(settings), seed=SEED + seed, options=options
    )
    ttft_ms = [request.ttft_ms for request in result.requests if request.ttft_ms is not None]
    return {
        "first model s": lesson.first_model_s,
        "let through": lesson.passed / len(lesson.rounds),
        "by a model": lesson.picks.get("model", 0) / len(load),
        "mean TTFT ms": float(np.mean(ttft_ms)),
    }


EXPERIMENT = Experiment(
    question="When does the gate let a first model into a pool that saturates, and does it let in a bad one?",
    cells=("l20-a30", "hetero", "one-region"),
    entries=tuple(ENTRIES),
    measures=("mean TTFT ms", "first model s", "let through", "by a model"),
    run=run,
    seeds=3,
)
