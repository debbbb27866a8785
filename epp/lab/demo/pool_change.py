"""A replica leaves the pool file under load and comes back: who serves before, without it, and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table

from epp.lab.compare.load import LoadOptions, run_load
from epp.lab.compare.trace import TraceRequest
from epp.lab.demo.stack import MODEL

if TYPE_CHECKING:
    from epp.lab.demo.stack import Stack

RATE_RPS = 10.0
#: Length of each of the three phases.
PHASE_S = 2.5
#: From a change of the file until picker and Envoy follow it: the picker looks twice a second.
TAKEN_S = 1.0
#: Besides, a new replica waits for Envoy to know it, and warms up.
PUT_IN_S = 3.0
#: When the phases begin.
STARTS_S = {"before": 0.0, "without": PHASE_S + TAKEN_S, "again": 2 * PHASE_S + TAKEN_S + PUT_IN_S}


async def change_pool(stack: Stack) -> Table:
    """Send a steady load and meanwhile take out the replica that serves most, then put it in again.

    Returns:
        Who served before, without it, and with it again.
    """
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
    failed = sum(not result.ok for result in results)
    table = Table("requests served by", *STARTS_S)
    table.title = (
        f"{replica} taken from the pool file under load, and put in again: "
        f"{f'{failed} requests failed' if failed else 'no request failed'}"
    )
    for name in stack.endpoints:
        begun_s = [r.intended_ms / 1e3 for r in results if r.ok and r.served_by == name]
        counts = (sum(0 <= at_s - start_s < PHASE_S for at_s in begun_s) for start_s in STARTS_S.values())
        table.add_row(name, *map(str, counts))
    return table
