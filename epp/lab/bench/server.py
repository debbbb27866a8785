"""The ext_proc server alone: recorded conversations of every mode over loopback, against any picker.

CPU is what the system accounts to the picker's process, all threads, so that of another picker is measured
by the same means: name its address and process id. Ours is started here, with recorder and metrics on, and
is told first tokens and the access log as Envoy tells them; so are its rounds beside the bare server's,
which only answers: what is above that is the picker's own. There are two of those: on grpc.aio, the yardstick
of any picker on that library, and on the picker's own transport, above which is what deciding costs.
"""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from epp.lab.bench import prompts, recorded
from epp.lab.bench.children import Server, bare, picker, pool_of
from epp.lab.bench.client import Proxy
from epp.lab.bench.cpu import Instructions, cpu_s
from epp.lab.bench.figures import percentile
from epp.lab.bench.recorded import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.bench.bare import Transport
    from epp.lab.bench.client import Load
    from epp.lab.bench.figures import Figures

#: Prompt length in tokens by name.
SIZES = {"200 tokens": 200, "72 KB": 18_000}
#: Lengths at which others have published what they cost; in constant-message mode alone, and fewer requests.
LONG = {"220 KB": 55_000, "100k tokens": 100_000}
_FEWER, _FEWEST = 5, 8
ENDPOINTS = 3
REQUESTS = 160
AT_ONCE = 16
CHUNKS = 128
#: Modes in which Envoy shows the response, and so does not report it.
_ALL = {"mode": "all", "max_chunks_per_s": 0}
#: Servers that only answer, by the figure's name.
BARE: dict[str, Transport] = {"bare": "grpcio", "bare, builtin": "builtin"}
_SHOWN = {Mode.RESPONSE, Mode.DUPLEX}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to measure: a mode held with a server.

    Attributes:
        name: as in the figure.
        server: who answers.
        mode: how.
        told: whether the server is told first tokens and the access log.
        modes: modes that it is measured in.
    """

    name: str
    server: Server
    told: bool
    modes: tuple[Mode, ...]


class ServerBench:
    """Servers and connections, as an async context manager.

    Args:
        address: of another picker, ``""`` for ours.
        pid: its process.
        modes: to be measured.
        requests: of each burst.
    """

    def __init__(
        self, modes: Sequence[Mode], *, address: str = "", pid: int = 0, requests: int = REQUESTS
    ) -> None:
        self._modes, self._requests = tuple(modes), requests
        self._other = Server(pid, address) if address else None
        self._exit = AsyncExitStack()
        self._rows: list[Row] = []
        self._proxies: dict[str, Proxy] = {}

    async def __aenter__(self) -> Self:
        """Start what is ours and connect."""
        if self._other is not None:
            self._rows = [Row("picker", self._other, False, self._modes)]
        else:
            enter, pool = self._exit.enter_context, pool_of(ENDPOINTS)
            floor = (Mode.CONSTANT,) if Mode.CONSTANT in self._modes else ()
            self._rows = [
                *(Row(name, enter(bare(transport)), False, floor) for name, transport in BARE.items()),
                Row("picker", enter(picker(pool, observe=_ALL)), True, self._modes),
            ]
            if Mode.DUPLEX in self._modes:
                left = enter(picker(pool, observe="none"))
                self._rows.append(Row("left", left, False, (Mode.DUPLEX,)))
        for row in self._rows:
            proxy = Proxy(row.server.grpc, first_token=row.server.first_token, access_log=row.told)
            self._proxies[row.name] = await self._exit.enter_async_context(proxy)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all of it."""
        await self._exit.aclose()

    async def measure(self, figures: Figures, number: int) -> None:
        """One round: every size, mode and server in turn."""
        for name, tokens in (SIZES | LONG).items():
            long = name in LONG
            requests = max(self._requests // _FEWER, _FEWEST) if long else self._requests
            spent: dict[str, float] = {}
            for row in self._rows:
                for mode in row.modes:
                    if long and mode is not Mode.CONSTANT:
                        continue
                    # Of its own for each mode: what one has sent is cached whole for the next.
                    seed = (number * len(Mode) + list(Mode).index(mode)) * 10_000
                    pairs = [prompts.conversation(tokens, seed + at) for at in range(1, requests + 1)]
                    key = f"{row.name} {mode.value}"
                    spent[key] = await self._burst(figures, row, mode, name, pairs)
            self._compare(figures, name, spent)

    async def _burst(
        self, figures: Figures, row: Row, mode: Mode, size: str, pairs: list[tuple[bytes, bytes]]
    ) -> float:
        """CPU milliseconds per request of one server in one mode, prompts known to nine tenths."""
        proxy, reported = self._proxies[row.name], mode not in _SHOWN
        chunks = CHUNKS
        for bodies in ([before for before, _ in pairs], [whole for _, whole in pairs]):
            held = [recorded.conversation(mode, body, chunks) for body in bodies]
            before_s = cpu_s(row.server.pid)
            with Instructions(row.server.pid) as counter:
                load = await proxy.burst(held, AT_ONCE, reported=reported)
                await proxy.settle()
            cpu_ms = (cpu_s(row.server.pid) - before_s) / len(held) * 1e3
        self._add(figures, f"server/{row.name}: {_shown(row, mode)}/{size}", cpu_ms, load, counter.count)
        return cpu_ms

    def _add(self, figures: Figures, name: str, cpu_ms: float, load: Load, instructions: int | None) -> None:
        figures.add(name, "ms CPU", cpu_ms)
        figures.add(f"{name} p50", "ms", statistics.median(load.decided_ms), f"latency, {AT_ONCE} at once")
        figures.add(f"{name} p99", "ms", percentile(load.decided_ms, 0.99))
        if instructions is not None:
            figures.add(f"{name} instructions", "k", instructions / len(load.decided_ms) / 1e3)

    def _compare(self, figures: Figures, size: str, spent: dict[str, float]) -> None:
        ours = spent.get("picker constant")
        for name in BARE:
            floor = spent.get(f"{name} constant")
            if ours is not None and floor is not None:
                figures.add(f"server/above {name}/{size}", "ms CPU", ours - floor, "constant-message mode")
        library, builtin = spent.get("bare constant"), spent.get("bare, builtin constant")
        if library and builtin is not None:
            figures.add(f"server/builtin of grpcio, bare/{size}", "ratio", builtin / library)
        left, read = spent.get("left duplex"), spent.get("picker duplex")
        if ours is not None and left is not None and size == "72 KB":
            figures.add("server/duplex left of constant", "ratio", left / ours)
        if ours is not None and read is not None and size == "72 KB":
            figures.add("server/duplex read of constant", "ratio", read / ours, f"{CHUNKS} chunks")


def _shown(row: Row, mode: Mode) -> str:
    if mode is Mode.DUPLEX:
        return "duplex, left" if row.name == "left" else "duplex, read"
    return mode.value
