"""A replica leaves the pool file under load and comes back: who serves before, without it, and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from epp.demo.stack import MODEL
from epp.replay.load import LoadOptions, run_load
from epp.replay.trace import TraceRequest

if TYPE_CHECKING:
    from epp.demo.stack import Stack

RATE_RPS = 10.0
#: Length of each of the three phases.
PHASE_S = 2.5
#: From a change of the file until picker and Envoy follow it: the picker looks twice a second.
TAKEN_S = 1.0
#: Besides, a new replica waits for Envoy to know it, and warms up.
PUT_IN_S = 3.0
#: When the phases begin.
STARTS_S = {"before": 0.0, "without": PHASE_S + TAKEN_S, "again": 2 * PHASE_S + TAKEN_S + PUT_IN_S}


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Who served while a replica left the pool and came back.

    Attributes:
        replica: the one that was taken out.
        phases: requests by the replica that served them, by phase.
        failed: requests that failed, at any time.
    """

    replica: str
    phases: dict[str, Counter[str]]
    failed: int


async def change_pool(stack: Stack) -> PoolChange:
    """Send a steady load and meanwhile take out the replica that serves most, then put it in again."""
    served = Counter[str]()
    # Short prompts that share nothing, so that nothing but the pool decides where they go.
    load = [
        TraceRequest(
            at_ms=number / RATE_RPS * 1e3,
            session=f"pool-{number}",
            user=f"pool-{number}",
            prompt_tokens=200,
            output_tokens=16,
            block_ids=(),
            block_tokens=16,
        )
        for number in range(round((STARTS_S["again"] + PHASE_S) * RATE_RPS))
    ]
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(
            run_load(
                load,
                LoadOptions(base_url=stack.url, model=MODEL),
                on_result=lambda result: served.update([result.served_by]),
            )
        )
        await asyncio.sleep(PHASE_S)
        replica = max(stack.endpoints, key=lambda name: served[name])
        stack.write_pool(name for name in stack.endpoints if name != replica)
        await asyncio.sleep(TAKEN_S + PHASE_S)
        stack.write_pool(stack.endpoints)
    results = sending.result()
    phases = {
        phase: Counter(r.served_by for r in results if r.ok and 0 <= r.intended_ms / 1e3 - start_s < PHASE_S)
        for phase, start_s in STARTS_S.items()
    }
    return PoolChange(replica, phases, sum(not result.ok for result in results))


def pool_table(change: PoolChange) -> Table:
    """Lay out a row a replica."""
    failed = f"{change.failed} requests failed" if change.failed else "no request failed"
    table = Table(
        "requests served by",
        title=f"{change.replica} taken from the pool file under load, and put in again: {failed}",
    )
    for phase in change.phases:
        table.add_column(phase, justify="right")
    for name in sorted({change.replica}.union(*change.phases.values())):
        table.add_row(name, *(str(served[name]) for served in change.phases.values()))
    return table
