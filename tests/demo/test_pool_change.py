"""`make demo` takes a replica from the pool file while requests come, and puts it in again."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from epp.demo.pool_change import change_pool, pool_table
from epp.demo.stack import Stack
from tests.kit.envoy import require_envoy

if TYPE_CHECKING:
    from pathlib import Path


async def test_it_shows_who_serves_before_without_and_again(tmp_path: Path) -> None:
    require_envoy()
    async with Stack(tmp_path, "random", "demo-model") as stack:
        change = await change_pool(stack, "demo-model")
    before, without, again = (phase[change.replica] for phase in change.phases)
    assert change.failed == without == 0
    assert min(before, again) > 0
    assert all(phase.total() > 20 for phase in change.phases)
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(pool_table(change))
    rows = [row.replace("│", " ").split() for row in console.export_text().splitlines()]
    assert [change.replica, str(before), "0", str(again)] in rows
    title = f"{change.replica} taken from the pool file under load, and put in again: no request failed"
    assert title in " ".join(word for row in rows for word in row)
