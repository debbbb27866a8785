"""What a picker's messages cost: CPU to make and to take them, and bytes; without NATS.

A fact is of a conversation's turn that adds `NEW` blocks to `KNOWN`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.cluster.index_sync import LEAST_S, URGENT_TOKENS, IndexSync
from epp.cluster.messages import Group
from epp_lab.bench.index import prompt
from epp_lab.bench.rig import rig
from epp_lab.sim.loop import Loop
from epp_lab.sim.pickers import VirtualClock

if TYPE_CHECKING:
    import argparse

    from epp.types import Floats
    from epp_lab.bench.figures import Figures

COUNT, KNOWN, NEW = 100, 32, 8


def costs() -> dict[str, Floats]:
    """Return us to make, us to take and bytes of a message with one reservation, one more, of a delta."""
    loop, sent, turns = Loop(), list[bytes](), list[Any]()
    group, clock = Group("", "", ""), VirtualClock(loop)
    with rig(COUNT) as here, rig(COUNT) as there:
        writer, reader = (
            IndexSync(
                app.scheduler.datastore,
                *(group, name, clock),
                publish=lambda _, data: sent.append(data),
                wake=lambda _: None,
            )
            for name, app in (("writer", here), ("reader", there))
        )
        ledger, index = here.scheduler.datastore.ledger, here.scheduler.datastore.index
        promised: Any = ledger.on_change["sharing"]
        inserted: Any = index.on_insert["sharing"]

        def step(promises: int, facts: int) -> Floats:
            loop.now_ms += LEAST_S * 1.1e3
            begun_s = time.thread_time()
            for slot in range(promises):
                promised(slot, URGENT_TOKENS + 1)
            for _ in range(facts):
                inserted(*turns.pop(0))
            writer.flush()
            made_s = time.thread_time()
            reader.receive(sent[-1])
            times_s = np.array([made_s - begun_s, time.thread_time() - made_s])
            return np.append(times_s * 1e6, len(sent[-1]))

        index.on_insert["sharing"] = lambda *turn: turns.append(turn)
        for blocks in (KNOWN, KNOWN + NEW):
            for slot in range(COUNT):
                ledger.reserve(f"{slot} {blocks}", slot, 3000, 3000, 0.0)
                index.insert(slot, prompt(slot, blocks))
        step(COUNT, COUNT)  # or the reader would not know what the next turns begin with
        one, all_promises, all_facts = step(1, 0), step(COUNT, 0), step(COUNT, COUNT)
        return {
            "message": one,
            "promise": (all_promises - one) / (COUNT - 1),
            "fact": (all_facts - all_promises) / COUNT,
        }


async def measure(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure a message by what is in it."""
    for _round in range(rounds):
        for what, (make_us, take_us, size) in costs().items():
            found.add(f"cluster/{what}: make", "us CPU", make_us)
            found.add(f"cluster/{what}: take", "us CPU", take_us)
            found.add(f"cluster/{what}: size", "B", size)
