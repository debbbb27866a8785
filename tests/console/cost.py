"""The live page: what it costs a picker, how old it is, and whether it grows a browser.

The picker's CPU is compared with the page open and closed, in turns, at 100 decisions/s. Then a Chromium
shows it at 1,000 decisions/s, and its memory is read after collections of garbage.

python -m tests.console.cost [--shown 600000]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import uvloop

from epp.errors import EppError
from epp_lab.bench.client import Proxy
from epp_lab.bench.figures import Figures, settings
from epp_lab.bench.processes import cpu_s, picker, pool_of
from epp_lab.bench.recorded import Mode, bodies, conversation
from epp_lab.compare.stats import percentile
from tests.kit.browser import Chromium

if TYPE_CHECKING:
    from epp_lab.bench.processes import Server

#: Decisions a second while CPU is measured, and how long each of open and closed.
RATE_PER_S, OPEN_S = 100, 10.0
#: Decisions a second that a browser is shown, and how many; for ten minutes ``--shown 600000``.
SHOWN_PER_S, SHOWN = 1000, 60_000
_TICK_S, _AT_ONCE, _TOKENS = 0.1, 32, 200
_LOOKS = 12
#: Growth of the heap from the second quarter to the last that is the browser's own.
_WOBBLE = 0.10


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description="What the live page costs, and whether it grows a browser.")
    parser.add_argument("--rounds", type=int, default=3, help="of the picker's part (%(default)s)")
    parser.add_argument("--shown", type=int, default=SHOWN, help="decisions shown (%(default)s)")
    arguments, found = parser.parse_args(), Figures(settings=settings())
    uvloop.run(measure(found, arguments.rounds, arguments.shown))
    print(found.table(None))
    return 0


async def measure(found: Figures, rounds: int, shown: int) -> None:
    """Measure the picker's part, then the browser's.

    Raises:
        EppError: the browser's memory grew.
    """
    async with picker(pool_of(3)) as server, Proxy(server) as proxy:
        for _ in range(rounds):
            await _measure_picker(found, server, proxy)
        with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
            async with Chromium(Path(name)) as page:
                await page.open(f"http://{server.http}/ui")
                await page.until("document.getElementById('state')?.textContent === 'live'")
                await _measure_browser(found, proxy, page, shown)


async def _measure_picker(found: Figures, server: Server, proxy: Proxy) -> None:
    shares = []
    ages_s: list[float] = []
    for opened in (False, True):
        listening = asyncio.create_task(_listen(server, ages_s)) if opened else None
        await _send(proxy, RATE_PER_S, RATE_PER_S)
        before_s, begun_s = cpu_s(server.pid), time.monotonic()
        await _send(proxy, RATE_PER_S, round(RATE_PER_S * OPEN_S))
        shares.append((cpu_s(server.pid) - before_s) / (time.monotonic() - begun_s) * 100)
        if listening is not None:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
    found.add("ui/closed", "% core", shares[0], f"{RATE_PER_S} decisions/s")
    found.add("ui/open", "% core", shares[1])
    found.add("ui/the page", "% core", shares[1] - shares[0])
    found.add("ui/age when shown p99", "ms", percentile(ages_s, 99) * 1e3)


async def _listen(server: Server, ages_s: list[float]) -> None:
    """Read events, and note how old each decision is when it comes; not those of before."""
    url, begun_s = f"http://{server.http}/ui/events", time.time()
    limit = aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(read_bufsize=1 << 22, timeout=limit) as http, http.get(url) as answer:
        known = set[str]()
        async for line in answer.content:
            if line.startswith(b"data: "):
                rows = msgspec.json.decode(line[6:])["decisions"]
                now_s = time.time()
                ages_s += [
                    now_s - row["at"] for row in rows if row["at"] > begun_s and row["id"] not in known
                ]
                known = {row["id"] for row in rows}


async def _measure_browser(found: Figures, proxy: Proxy, page: Chromium, shown: int) -> None:
    used, nodes, begun_s = list[int](), list[int](), time.monotonic()
    for _ in range(_LOOKS):
        await _send(proxy, SHOWN_PER_S, shown // _LOOKS)
        looked = await page.heap()
        used.append(looked[0])
        nodes.append(looked[1])
        print(f"heap {looked[0] / 1e6:.2f} MB, {looked[1]} nodes", flush=True)
    # The least of some, as a frame that has just come is no growth.
    half, end = min(used[_LOOKS // 4 : _LOOKS // 2]), min(used[-_LOOKS // 4 :])
    rate = _LOOKS * (shown // _LOOKS) / (time.monotonic() - begun_s)
    found.add("ui/heap", "MB", median(used) / 1e6, f"{shown:,} decisions at {rate:,.0f}/s")
    found.add("ui/heap grew", "%", (end / half - 1.0) * 100, "from the second quarter to the last")
    found.add("ui/nodes", "", max(nodes))
    if end > half * (1.0 + _WOBBLE) or min(nodes[_LOOKS // 2 :]) > min(nodes[: _LOOKS // 2]):
        raise EppError(f"the page grew: heap {used}, nodes {nodes}")


async def _send(proxy: Proxy, rate_per_s: int, count: int) -> None:
    """Have so many decisions taken, evenly or, where that is too many, as fast as they are."""
    each = max(round(rate_per_s * _TICK_S), 1)
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    steps = [conversation(Mode.CONSTANT, bodies(_TOKENS, seed + 1)[0], 1) for seed in range(each)]
    for _ in range(max(count // each, 1)):
        due_s = max(due_s + _TICK_S, loop.time())
        await proxy.burst(steps, _AT_ONCE, reported=False)
        await asyncio.sleep(due_s - loop.time())


if __name__ == "__main__":
    sys.exit(main())
