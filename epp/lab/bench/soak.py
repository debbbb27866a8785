"""A soak: requests of every mode without end, and whether the picker gives back what it took.

Conversations go on and new ones begin, as in traffic; the prefix index is small enough to be full long
before the end. What is held - memory, descriptors, threads - is read while nothing is open, so whatever is
left is a leak.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.lab.bench import prompts, recorded
from epp.lab.bench.children import picker, pool_of
from epp.lab.bench.client import Proxy
from epp.lab.bench.cpu import Held, cpu_s, held
from epp.lab.bench.recorded import Mode

if TYPE_CHECKING:
    from epp.lab.bench.figures import Figures

REQUESTS = 1_000_000
_LENGTHS = (200, 1_000, 4_000)
_MODES = (Mode.CONSTANT,) * 7 + (Mode.HEADERS, Mode.STREAMED, Mode.DUPLEX)
_STEPS, _AT_ONCE, _CHUNKS = 20, 64, 8
_PREFIX = {"secret_file": "secret", "capacity_tokens": 200_000, "max_tokens": 2_000_000}
#: Growth from the second quarter to the last that is no leak: the allocator's own wobble.
_WOBBLE = 0.05


async def run(figures: Figures, requests: int) -> None:
    """Hold so many conversations.

    Raises:
        EppError: the picker did not give back memory, descriptors or threads.
    """
    each = max(requests // _STEPS, 1)
    seen: list[Held] = []
    with picker(pool_of(10), prefix=_PREFIX) as server:
        async with Proxy(server.grpc, first_token=server.first_token, access_log=True) as proxy:
            before_s = cpu_s(server.pid)
            for step in range(_STEPS):
                await _step(proxy, step, each)
                await proxy.settle()
                seen.append(held(server.pid))
                print(
                    f"{(step + 1) * each:>9,} requests: {seen[-1].rss_bytes / 1e6:7.1f} MB, "
                    f"{seen[-1].descriptors} descriptors, {seen[-1].threads} threads",
                    flush=True,
                )
            figures.add(
                "soak/CPU", "ms CPU", (cpu_s(server.pid) - before_s) / (each * _STEPS) * 1e3, "all modes"
            )
    half = statistics.median(one.rss_bytes for one in seen[_STEPS // 4 : _STEPS // 2])
    end = statistics.median(one.rss_bytes for one in seen[-_STEPS // 4 :])
    figures.add("soak/memory grew", "%", (end / half - 1.0) * 100, "from the second quarter to the last")
    figures.add("soak/descriptors grew", "", seen[-1].descriptors - seen[1].descriptors)
    figures.add("soak/threads grew", "", seen[-1].threads - seen[1].threads)
    if requests >= REQUESTS and end > half * (1.0 + _WOBBLE):
        raise EppError(f"memory grew from {half / 1e6:.1f} to {end / 1e6:.1f} MB")
    if seen[-1].descriptors > seen[1].descriptors or seen[-1].threads > seen[1].threads:
        raise EppError(f"descriptors or threads grew: {seen[1]} to {seen[-1]}")


async def _step(proxy: Proxy, step: int, count: int) -> None:
    for shown in (False, True):
        held_ones = []
        for at in range(count):
            mode = _MODES[at % len(_MODES)]
            if (mode is Mode.DUPLEX) is not shown:
                continue
            held_ones.append((mode, body_of(step * count + at)))
            if len(held_ones) == 1000:
                await _hold(proxy, held_ones, shown=shown)
                held_ones = []
        if held_ones:
            await _hold(proxy, held_ones, shown=shown)


def body_of(number: int) -> bytes:
    """A request's body: every other one is the next turn of the conversation before it."""
    conversation, turn = divmod(number, 2)
    return prompts.conversation(_LENGTHS[conversation % len(_LENGTHS)], conversation + 1)[turn]


async def _hold(proxy: Proxy, asked: list[tuple[Mode, bytes]], *, shown: bool) -> None:
    held_ones = [recorded.conversation(mode, body, _CHUNKS) for mode, body in asked]
    await proxy.burst(held_ones, _AT_ONCE, reported=not shown)
