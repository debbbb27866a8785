"""A soak: requests of every mode without end, and whether the picker gives back what it took.

Conversations go on and new ones begin, as in traffic; the prefix index is small enough to be full long before
the end. What is held - memory, descriptors, threads - is read while nothing is open: whatever is left leaks.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp_lab.bench.client import Proxy
from epp_lab.bench.processes import cpu_s, held, picker, pool_of
from epp_lab.bench.recorded import Mode, bodies, conversation

if TYPE_CHECKING:
    import argparse

    from epp_lab.bench.figures import Figures

REQUESTS = 1_000_000
_LENGTHS = (200, 1_000, 4_000)
_MODES = (Mode.CONSTANT,) * 7 + (Mode.HEADERS, Mode.STREAMED, Mode.DUPLEX)
_STEPS, _BURST, _AT_ONCE, _CHUNKS = 20, 1000, 64, 8
_PREFIX = {"secret_file": "secret", "capacity_tokens": 200_000}
#: Growth of memory from the second quarter to the last that is the allocator's own.
_WOBBLE = 0.05


async def measure(found: Figures, arguments: argparse.Namespace, _: int) -> None:
    """Hold conversations and watch what the picker holds.

    Raises:
        EppError: the picker did not give back memory, descriptors or threads.
    """
    wanted = arguments.requests or REQUESTS
    each = max(wanted // _STEPS, 1)
    seen = []
    async with picker(pool_of(10), prefix=_PREFIX) as server, Proxy(server, reports=True) as proxy:
        before_s = cpu_s(server.pid)
        for first in range(0, each * _STEPS, each):
            await _hold(proxy, range(first, first + each))
            seen.append(held(server.pid))
            print(f"{first + each:>9,} requests: {seen[-1]}", flush=True)
        spent_ms = (cpu_s(server.pid) - before_s) / (each * _STEPS) * 1e3
    half = median(one.rss_bytes for one in seen[_STEPS // 4 : _STEPS // 2])
    end = median(one.rss_bytes for one in seen[-_STEPS // 4 :])
    found.add("soak/CPU", "ms CPU", spent_ms, "all modes")
    found.add("soak/memory grew", "%", (end / half - 1.0) * 100, "from the second quarter to the last")
    grew = wanted >= REQUESTS and end > half * (1.0 + _WOBBLE)
    if grew or seen[-1].descriptors > seen[1].descriptors or seen[-1].threads > seen[1].threads:
        raise EppError(f"memory, descriptors or threads grew: {seen[1]} to {seen[-1]}")


async def _hold(proxy: Proxy, numbers: range) -> None:
    """Hold conversations in bursts; every other one is the next turn of the one before it."""
    for first in range(numbers.start, numbers.stop, _BURST):
        part = range(first, min(first + _BURST, numbers.stop))
        modes = [_MODES[number % len(_MODES)] for number in part]
        sent = [
            bodies(_LENGTHS[talk % len(_LENGTHS)], talk + 1)[turn]
            for talk, turn in (divmod(number, 2) for number in part)
        ]
        for reported in (True, False):
            steps = [
                conversation(mode, body, _CHUNKS)
                for mode, body in zip(modes, sent, strict=True)
                if (mode is not Mode.DUPLEX) is reported
            ]
            await proxy.burst(steps, _AT_ONCE, reported=reported)
