"""The ext_proc server alone: recorded conversations of every mode over loopback, against any picker.

CPU is what the system accounts to the picker's process, all threads, so that of another picker is measured by
the same means: name its address and process id. Ours is started here, with recorder and metrics on, and gets
first tokens and the access log as Envoy sends them. In the same rounds two servers that only answer are
measured, on grpc.aio and on the picker's own transport: what is above them is the picker's own.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from epp_lab.bench.client import Proxy
from epp_lab.bench.processes import Server, bare, cpu_s, picker, pool_of
from epp_lab.bench.recorded import Mode, bodies, conversation
from epp_lab.compare.stats import percentile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from epp_lab.bench.figures import Figures

#: Prompt length in tokens by name; those after the first two in constant-message mode, fewer requests.
SIZES = {"200 tokens": 200, "72 KB": 18_000, "100k tokens": 100_000}
LONG_TOKENS, FEWER = 50_000, 5
ENDPOINTS, REQUESTS, AT_ONCE, CHUNKS = 3, 160, 16, 128
#: Servers that only answer, by the figure's name.
BARE = {"bare": "grpcio", "bare, builtin": "builtin"}


class Row(NamedTuple):
    """A server, the modes that it is measured in, and a connection to it."""

    server: Server
    modes: Sequence[Mode]
    proxy: Proxy


async def measure(found: Figures, arguments: argparse.Namespace, rounds: int) -> None:
    """Measure every size, server and mode in turn."""
    async with AsyncExitStack() as stack:
        rows = await _start(stack, arguments)
        for number in range(rounds):
            for size, tokens in SIZES.items():
                spent_ms: dict[str, float] = {}
                for name, row in rows.items():
                    for mode in row.modes:
                        if mode is Mode.CONSTANT or tokens < LONG_TOKENS:
                            duplex = "duplex, left" if name == "left" else "duplex, read"
                            shown = duplex if mode is Mode.DUPLEX else mode.value
                            key = f"{name}: {shown}"
                            pairs = _prompts(tokens, mode, number, arguments.requests or REQUESTS)
                            spent_ms[key] = await _burst(found, f"server/{key}/{size}", row, mode, pairs)
                _compare(found, size, spent_ms)


async def _start(stack: AsyncExitStack, arguments: argparse.Namespace) -> dict[str, Row]:
    modes = [Mode(name) for name in arguments.modes]

    async def row(
        started: AbstractAsyncContextManager[Server], of: Sequence[Mode], *, reports: bool = False
    ) -> Row:
        server = await stack.enter_async_context(started)
        return Row(server, of, await stack.enter_async_context(Proxy(server, reports=reports)))

    if arguments.address:
        return {"picker": await row(nullcontext(Server(arguments.pid, arguments.address)), modes)}
    constant = [mode for mode in modes if mode is Mode.CONSTANT]
    rows = {name: await row(bare(transport), constant) for name, transport in BARE.items()}
    ours = picker(pool_of(ENDPOINTS), observe={"mode": "all", "max_chunks_per_s": 0})
    rows["picker"] = await row(ours, modes, reports=True)
    if Mode.DUPLEX in modes:
        rows["left"] = await row(picker(pool_of(ENDPOINTS), observe="none"), [Mode.DUPLEX])
    return rows


def _prompts(tokens: int, mode: Mode, number: int, count: int) -> list[tuple[bytes, bytes]]:
    """Make prompts of a round's own for each mode: what one has sent is cached whole for the next."""
    count = max(count // FEWER, 8) if tokens >= LONG_TOKENS else count
    seed = (number * len(Mode) + list(Mode).index(mode)) * 10_000
    return [bodies(tokens, seed + at) for at in range(1, count + 1)]


async def _burst(found: Figures, name: str, row: Row, mode: Mode, pairs: list[tuple[bytes, bytes]]) -> float:
    """Return CPU milliseconds per request of one server in one mode, prompts known to nine tenths."""
    cpu_ms, decided_ms = 0.0, [0.0]
    for turn in (0, 1):
        held = [conversation(mode, pair[turn], CHUNKS) for pair in pairs]
        before_s = cpu_s(row.server.pid)
        decided_ms = await row.proxy.burst(held, AT_ONCE, reported=mode is not Mode.DUPLEX)
        cpu_ms = (cpu_s(row.server.pid) - before_s) / len(pairs) * 1e3
    found.add(name, "ms CPU", cpu_ms)
    found.add(f"{name} p50", "ms", median(decided_ms), f"latency, {AT_ONCE} at once")
    found.add(f"{name} p99", "ms", percentile(decided_ms, 99))
    return cpu_ms


def _compare(found: Figures, size: str, spent_ms: dict[str, float]) -> None:
    ours = spent_ms.get("picker: constant")
    floors = [spent_ms.get(f"{name}: constant") for name in BARE]
    for name, floor in zip(BARE, floors, strict=True):
        if ours is not None and floor is not None:
            found.add(f"server/above {name}/{size}", "ms CPU", ours - floor, "constant-message mode")
    if floors[0] and floors[1]:
        found.add(f"server/builtin of grpcio, bare/{size}", "ratio", floors[1] / floors[0])
    for key, what in (("left: duplex, left", "left"), ("picker: duplex, read", "read")):
        if ours and key in spent_ms and size == "72 KB":
            found.add(f"server/duplex {what} of constant", "ratio", spent_ms[key] / ours)
