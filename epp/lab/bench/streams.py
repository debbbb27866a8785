"""Many streams at once: what each costs in CPU and memory, and how long decisions then wait.

Streams stay open from the pick to the end of the answer, so a picker in front of long answers has
thousands.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

from epp.lab.bench import prompts, recorded
from epp.lab.bench.children import picker, pool_of
from epp.lab.bench.client import Proxy
from epp.lab.bench.cpu import cpu_s, held
from epp.lab.bench.figures import percentile
from epp.lab.bench.recorded import Mode

if TYPE_CHECKING:
    from epp.lab.bench.figures import Figures

OPEN = (1, 10, 100, 1000, 2000)
_TOKENS, _CONNECTIONS, _LEAST = 1000, 8, 100


async def measure(figures: Figures, number: int, open_streams: int) -> None:
    """One round: so many streams opened, decided, held open together, and ended."""
    with picker(pool_of(10)) as server:
        proxies = [Proxy(server.grpc) for _ in range(_CONNECTIONS)]
        for proxy in proxies:
            await proxy.__aenter__()
        try:
            await _hold(proxies, number * 100_000 + 50_000, 20)  # connections and caches warm
            before, before_s = held(server.pid), cpu_s(server.pid)
            turns = max(_LEAST // open_streams, 1)
            waited: list[float] = []
            most = 0
            for turn in range(turns):
                found, most = await _hold(
                    proxies, number * 100_000 + turn * open_streams, open_streams, server.pid
                )
                waited += found
            spent_ms = (cpu_s(server.pid) - before_s) / (turns * open_streams) * 1e3
        finally:
            for proxy in proxies:
                await proxy.__aexit__()
    name = f"streams/{open_streams} open"
    figures.add(name, "ms CPU", spent_ms, "each, prompts of 1k tokens")
    figures.add(f"{name} p50", "ms", statistics.median(waited), "to the pick, all begun at one moment")
    figures.add(f"{name} p99", "ms", percentile(waited, 0.99))
    if open_streams >= 1000:
        figures.add(f"{name} memory", "KB", (most - before.rss_bytes) / open_streams / 1e3, "each")


async def _hold(proxies: list[Proxy], seed: int, count: int, pid: int = 0) -> tuple[list[float], int]:
    gate = asyncio.Event()
    waiting = [
        asyncio.ensure_future(
            proxies[at % len(proxies)].hold(
                recorded.conversation(Mode.CONSTANT, prompts.conversation(_TOKENS, seed + at)[1]),
                gate,
                reported=False,
            )
        )
        for at in range(count)
    ]
    await asyncio.sleep(0)  # all have begun
    while any(proxy.undecided for proxy in proxies) and not any(  # noqa: ASYNC110 - a stream costs no event
        task.done() for task in waiting
    ):
        await asyncio.sleep(0.01)
    most = held(pid).rss_bytes if pid else 0
    gate.set()
    return list(await asyncio.gather(*waiting)), most
