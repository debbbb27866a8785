"""Count how long the gate keeps a first model from a pool that saturates, and whether it keeps a bad one out.

The bad one sees cached prefixes and prompts and no load: it piles requests onto whoever has their prefix. No
estimate of single choices sees the queues that come of it; that it predicts poorly is to be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp.policies.lodestar import Lodestar
from epp.policies.reward_model import DEFAULT_FEATURES
from epp_lab.compare.fleets import FLEETS
from epp_lab.compare.learned import UNTRIED, Learning, run_learned
from epp_lab.experiment import Experiment
from epp_lab.reward_model.settings import DataKeys, Gate, Network
from epp_lab.sim.scenario import WindowOptions
from epp_lab.workloads.registry import workload_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEED = 1
WORKLOAD = workload_named("mooncake-chat")
DATA = DataKeys(first=1000, every=500)
_BLIND = ("hit_ratio", "prompt_tokens")
#: Features of the model, and whether the gate is on.
ENTRIES: Mapping[str, tuple[Sequence[str], bool]] = {
    "no gate": (DEFAULT_FEATURES, False),
    "gate": (DEFAULT_FEATURES, True),
    "blind, no gate": (_BLIND, False),
    "blind, gate": (_BLIND, True),
}


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Learn from a cold start for half an hour."""
    features, gated = ENTRIES[entry]
    settings = msgspec.structs.replace(
        UNTRIED, data=DATA, gate=Gate(on=gated), network=Network(features=tuple(features))
    )
    options = WindowOptions(max_in_flight=WORKLOAD.max_in_flight)
    load, fleet = WORKLOAD.make(SEED + seed), FLEETS[cell][1]
    result, lesson = run_learned(
        load, fleet, Lodestar(), Learning(settings), seed=SEED + seed, options=options
    )
    ttft_ms = [request.ttft_ms for request in result.requests if request.ttft_ms is not None]
    return {
        "mean TTFT ms": float(np.mean(ttft_ms)),
        "first model s": lesson.first_model_s,
        "let through": lesson.passed / len(lesson.rounds),
        "by a model": lesson.picks.get("model", 0) / len(load),
    }


EXPERIMENT = Experiment(
    question="When does the gate let a first model into a pool that saturates, and does it let in a bad one?",
    cells=("l20-a30", "hetero"),
    entries=ENTRIES,
    run=run,
    seeds=3,
    minutes=4,
)
