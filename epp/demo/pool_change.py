"""A replica leaves the pool file under load and comes back: who serves before, without it, and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from epp.replay.load import LoadOptions, run_load
from epp.replay.trace import TraceRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.demo.stack import Stack
    from epp.replay.load import RequestResult

RATE_RPS = 10.0
#: Length of each of the three phases.
PHASE_S = 2.5
#: From a change of the file until picker and Envoy follow it: the picker looks twice a second.
TAKEN_S = 1.0
#: Besides, a new replica waits for Envoy to know it, and warms up.
PUT_IN_S = 3.0


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Who served while a replica left the pool and came back.

    Attributes:
        replica: the one that was taken out.
        phases: requests by the replica that served them: before, without it, and with it again.
        failed: requests that failed, at any time.
    """

    replica: str
    phases: tuple[Counter[str], Counter[str], Counter[str]]
    failed: int


async def change_pool(stack: Stack, model: str) -> PoolChange:
    """Send a steady load and meanwhile take out the replica that serves most, then put it in again."""
    starts_s = (0.0, PHASE_S + TAKEN_S, 2 * PHASE_S + TAKEN_S + PUT_IN_S)
    served = Counter[str]()
    load = asyncio.ensure_future(
        run_load(
            _steady(starts_s[-1] + PHASE_S),
            LoadOptions(base_url=stack.url, model=model),
            on_result=lambda result: served.update([result.served_by]),
        )
    )
    try:
        await asyncio.sleep(PHASE_S)
        replica = max(stack.endpoints, key=lambda name: served[name])
        stack.write_pool(name for name in stack.endpoints if name != replica)
        await asyncio.sleep(TAKEN_S + PHASE_S)
        stack.write_pool(stack.endpoints)
        results = await load
    finally:
        load.cancel()
    before, without, again = (_served(results, start_s) for start_s in starts_s)
    return PoolChange(replica, (before, without, again), sum(not result.ok for result in results))


def _steady(length_s: float) -> list[TraceRequest]:
    """Short prompts that share nothing, so that nothing but the pool decides where they go."""
    return [
        TraceRequest(
            at_ms=number / RATE_RPS * 1e3,
            session=f"pool-{number}",
            user=f"pool-{number}",
            prompt_tokens=200,
            output_tokens=16,
            block_ids=(),
            block_tokens=16,
        )
        for number in range(round(length_s * RATE_RPS))
    ]


def _served(results: Sequence[RequestResult], start_s: float) -> Counter[str]:
    within = (result for result in results if 0 <= result.intended_ms / 1e3 - start_s < PHASE_S)
    return Counter(result.served_by for result in within if result.ok)


def pool_table(change: PoolChange) -> Table:
    """A row a replica."""
    failed = f"{change.failed} requests failed" if change.failed else "no request failed"
    title = f"{change.replica} taken from the pool file under load, and put in again: {failed}"
    table = Table(title=title)
    table.add_column("requests served by")
    for phase in ("before", "without", "again"):
        table.add_column(phase, justify="right")
    for name in sorted({name for phase in change.phases for name in phase} | {change.replica}):
        table.add_row(name, *(str(phase[name]) for phase in change.phases))
    return table
