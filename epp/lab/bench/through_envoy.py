"""End to end through a real Envoy: what each way of picking adds to a request with a 72 KB prompt.

Each way has a picker and an Envoy of its own, both started here; all share one upstream and one load.
Requests come at a fixed rate, whatever is still open, so that a slow way is not spared. CPU is what the
system accounts to the picker's and to Envoy's process; added is the difference to the Envoy without picker
in the same round. The floor is a server that only answers, before an Envoy that observes nothing: what no
picker gets below on this machine. Answers of two lengths are compared with requests of all ways in turns.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from epp.config.address import split_address
from epp.config.pool import EndpointSpec
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.lab.bench import prompts
from epp.lab.bench.asking import ask
from epp.lab.bench.children import bare, picker
from epp.lab.bench.cpu import cpu_s, prefer
from epp.lab.bench.figures import percentile
from epp.lab.bench.plain_envoy import plain_envoy
from epp.lab.bench.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from epp.lab.bench.children import Server
    from epp.lab.bench.figures import Figures

TOKENS, RATE, REQUESTS = 128, 50.0, 200
PROMPT_TOKENS = 18_000
#: Lengths that are compared: tokens, the share of the requests of a burst, and requests a second of all ways
#: together, so that about as many chunks are on their way at both.
LENGTHS = ((16, 0.2, 25.0), (1024, 0.08, 6.0))
_SETTLE_S, _IDLE_S = 0.4, 3.0
_READ = {"mode": "all", "max_chunks_per_s": 0}
#: Name, Envoy's variant and the picker's way of observing.
WAYS: tuple[tuple[str, Variant, Any], ...] = (
    ("constant", Variant.STANDALONE, "all"),
    ("duplex, read", Variant.FULL_DUPLEX, _READ),
    ("duplex, left", Variant.FULL_DUPLEX, "none"),
)
PLAIN = "no picker"
FLOOR = "only answers"


@dataclass(slots=True)
class Way:
    """One way's processes, and what the last burst showed.

    Attributes:
        address: where clients connect.
        envoy: Envoy's process.
        picker: the picker's, None for the way without.
        ttft_ms: of each request.
        cpu_ms: of picker and Envoy, per request.
        idle_share: of a core, of picker and Envoy while nobody asks anything.
    """

    address: str
    envoy: int
    picker: int | None
    ttft_ms: list[float] = field(default_factory=list)
    cpu_ms: tuple[float, float] = (0.0, 0.0)
    idle_share: tuple[float, float] = (0.0, 0.0)

    def used_s(self) -> tuple[float, float]:
        """CPU seconds of picker and Envoy so far."""
        return 0.0 if self.picker is None else cpu_s(self.picker), cpu_s(self.envoy)


class EnvoyBench:
    """Everything that serves, as an async context manager; ``ways`` are names out of `WAYS`."""

    def __init__(self, ways: Iterable[str] = (), requests: int = REQUESTS) -> None:
        self._wanted, self._requests = set(ways) or {name for name, _, _ in WAYS}, requests
        self._exit = AsyncExitStack()
        self._upstream = Upstream(TOKENS)
        self._ways: dict[str, Way] = {}

    async def __aenter__(self) -> Self:
        """Start it."""
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def _start(self) -> None:
        await self._exit.enter_async_context(self._upstream)
        pid, address = await self._exit.enter_async_context(plain_envoy(self._upstream.address))
        self._ways[PLAIN] = Way(address, pid, None)
        spec = EndpointSpec(address=self._upstream.address)
        for name, variant, observe in WAYS:
            if name not in self._wanted:
                continue
            ours = self._exit.enter_context(picker([spec], observe=observe))
            first_token_port = split_address(ours.first_token)[1]
            settings = _settings(spec, ours, variant=variant, first_token_port=first_token_port)
            self._ways[name] = await self._way(settings, ours.pid)
        if "constant" in self._wanted:
            only = self._exit.enter_context(bare("builtin", self._upstream.address))
            settings = _settings(spec, only, observe=False, restore_model=False)
            self._ways[FLOOR] = await self._way(settings, only.pid)
        for way in self._ways.values():
            prefer(way.envoy)

    async def _way(self, settings: EnvoySettings, picker_pid: int) -> Way:
        envoy = await self._exit.enter_async_context(EnvoyProcess(settings))
        return Way(envoy.listener_url.removeprefix("http://"), envoy.pid, picker_pid)

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        await self._exit.aclose()

    async def measure(self, figures: Figures, number: int) -> None:
        """One round: every way in turn at 128 tokens, then the constant one at 16 and 1,024."""
        self._upstream.tokens = TOKENS
        for way in self._ways.values():
            await self._burst(way, number, self._requests, RATE)
        plain = self._ways[PLAIN]
        for name, way in self._ways.items():
            figures.add(f"envoy/{name}: Envoy", "ms CPU", way.cpu_ms[1], f"{TOKENS} tokens, 72 KB")
            if way.picker is not None:
                figures.add(f"envoy/{name}: picker", "ms CPU", way.cpu_ms[0])
                figures.add(f"envoy/{name}: Envoy, added", "ms CPU", way.cpu_ms[1] - plain.cpu_ms[1])
            figures.add(f"envoy/{name}: TTFT p50", "ms", statistics.median(way.ttft_ms), f"{RATE:.0f} req/s")
            figures.add(f"envoy/{name}: TTFT p99", "ms", percentile(way.ttft_ms, 0.99))
        for name, note in (("constant", ""), (FLOOR, f", {FLOOR}")):
            if name in self._ways:
                way = self._ways[name]
                for of, share in (("p50", 0.5), ("p99", 0.99)):
                    added = percentile(way.ttft_ms, share) - percentile(plain.ttft_ms, share)
                    figures.add(f"envoy/added TTFT {of}{note}", "ms", added, "constant-message mode")
        if "constant" in self._ways:
            await self._lengths(figures, number)

    async def _lengths(self, figures: Figures, number: int) -> None:
        """What a long answer adds against a short one, over the Envoy without a picker.

        The ways take turns request by request: all see the same state of the machine. What they use while
        nobody asks is taken off, because a burst of long answers lasts longer.
        """
        ways = {name: way for name, way in self._ways.items() if name in (PLAIN, "constant", FLOOR)}
        if not ways[PLAIN].idle_share[1]:
            await self._idle(list(ways.values()))
        added: dict[str, list[float]] = {name: [] for name in ways if name != PLAIN}
        for self._upstream.tokens, share, rate in LENGTHS:
            count = max(round(self._requests * share), 4)
            await self._in_turns(list(ways.values()), number * 7 + self._upstream.tokens, count, rate)
            for name, spent in added.items():
                spent.append(sum(ways[name].cpu_ms) - sum(ways[PLAIN].cpu_ms))
                at = f"{self._upstream.tokens} tokens{_as(name)}"
                figures.add(f"envoy/added at {at}", "ms CPU", spent[-1], "both")
        for name, (short, long) in added.items():
            if short > 0:
                figures.add(f"envoy/1024 of 16 tokens{_as(name)}", "ratio", long / short)

    async def _idle(self, ways: Sequence[Way]) -> None:
        before = [way.used_s() for way in ways]
        await asyncio.sleep(_IDLE_S)
        for way, used_s in zip(ways, before, strict=True):
            now_s = way.used_s()
            way.idle_share = (now_s[0] - used_s[0]) / _IDLE_S, (now_s[1] - used_s[1]) / _IDLE_S

    async def _in_turns(self, ways: Sequence[Way], seed: int, count: int, rate: float) -> None:
        """So many requests of each way, one after the other at a rate of all; fills in the CPU."""
        requests = [(way.address, body) for body in _bodies(seed, count) for way in ways]
        loop = asyncio.get_running_loop()
        before, begun_s = [way.used_s() for way in ways], loop.time()
        await self._at_rate(rate, requests)
        lasted_s = loop.time() - begun_s
        for way, used_s in zip(ways, before, strict=True):
            spent = [
                (now_s - then_s - share * lasted_s) / count * 1e3
                for now_s, then_s, share in zip(way.used_s(), used_s, way.idle_share, strict=True)
            ]
            way.cpu_ms = spent[0], spent[1]

    async def _burst(self, way: Way, seed: int, count: int, rate: float) -> None:
        """Send requests of one way at a rate; fills in what was seen."""
        requests = [(way.address, body) for body in _bodies(seed, count)]
        before = way.used_s()
        way.ttft_ms = await self._at_rate(rate, requests)
        spent = [(now_s - then_s) / count * 1e3 for now_s, then_s in zip(way.used_s(), before, strict=True)]
        way.cpu_ms = spent[0], spent[1]

    async def _at_rate(self, rate: float, requests: Iterable[tuple[str, bytes]]) -> list[float]:
        """Requests to addresses at a rate, whatever is still open; their times to first token."""
        loop = asyncio.get_running_loop()
        begun_s, asking = loop.time(), []
        for at, (address, body) in enumerate(requests):
            await asyncio.sleep(begun_s + at / rate - loop.time())
            asking.append(asyncio.ensure_future(ask(address, body)))
        ttft_ms = list(await asyncio.gather(*asking))
        await asyncio.sleep(_SETTLE_S)
        return ttft_ms


def _bodies(seed: int, count: int) -> list[bytes]:
    return [prompts.conversation(PROMPT_TOKENS, seed * 10_000 + at + 1)[1] for at in range(count)]


def _settings(spec: EndpointSpec, server: Server, **more: Any) -> EnvoySettings:
    """An Envoy on ports of its own, before a server that picks."""
    host, port = split_address(server.grpc)
    return EnvoySettings(
        endpoints=(spec.endpoint(),),
        listener_port=0,
        admin_port=0,
        picker_host=host,
        picker_port=port,
        message_timeout_ms=5000,
        **more,
    )


def _as(name: str) -> str:
    return f", {name}" if name == FLOOR else ""
