"""Reward hacking: a candidate that wins TTFT by herding is proposed to a tuner that holds good weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp_lab.experiment import Experiment
from epp_lab.tuner.state import NothingBetter, Proposed
from epp_lab.tuner_life import CELLS, defaults_of, life

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.tuner.state import TunerState

HOURS = 30
#: As far as the tuner's bounds let weights of `gorgo-ms` go.
CANDIDATES = {
    "herds to the nearest": {
        "network_weight": 4.0,
        "prefill_weight": 1.0,
        "waiting_weight": 0.5,
        "stall_weight": 0.05,
        "decode_weight": 0.2,
    }
}


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Live until the candidate is promoted or its trial ends."""

    def propose(_state: TunerState, now_wall_s: float, _: Sequence[TraceRequest]) -> Proposed | NothingBetter:
        return Proposed(now_wall_s, CANDIDATES[entry], entry)

    world = life(CELLS[cell], "gorgo-ms", defaults_of("gorgo-ms"), seed, propose)
    world.stop = lambda state: state.promotions > 0 or state.fruitless > 0
    world.run(stretches=HOURS)
    last = next((note.before for note in reversed(world.notes) if note.before != note.after), "")
    return {
        "promoted": world.state.promotions > 0,
        "ended": world.state.fruitless > 0,
        "ended_in_screen": world.state.fruitless > 0 and last == "screen",
        "hours": world.hours,
    }


EXPERIMENT = Experiment(
    question="Is a candidate promoted that lowers TTFT by sending everything to the nearest replica?",
    cells=("chat / three regions",),
    entries=CANDIDATES,
    events=("promoted", "ended", "ended_in_screen"),
    run=run,
    minutes=4,
    seeds=50,
)
