"""End to end through a real Envoy: what each way of choosing adds to a request with a 72 KB prompt.

Each way has a picker and an Envoy of its own; all share one upstream, whose first token comes at once.
Requests come at a fixed rate, whatever is still open, so that a slow way is not spared. CPU is what the
system accounts to picker and Envoy beyond what they use at rest; *added* is the difference to an Envoy
without a picker in the same round.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from epp.config.pool import EndpointSpec
from epp.envoy.settings import Variant
from epp_lab.bench.peers import ALONE, Rival
from epp_lab.bench.processes import spent_s
from epp_lab.bench.recorded import LAST, TOKEN, bodies
from epp_lab.compare.stats import percentile
from epp_lab.demo.stack import Stack

if TYPE_CHECKING:
    import argparse

    from epp_lab.bench.figures import Figures

TOKENS, RATE, REQUESTS, PROMPT_TOKENS = 128, 50.0, 200, 18_000
#: Lengths that are compared: tokens, share of the requests of a burst, requests a second.
LENGTHS = ((16, 0.2, 12.5), (1024, 0.08, 3.0))
_PAUSE_S, _SETTLE_S, _IDLE_S = 0.004, 0.4, 3.0
#: Name, Envoy's variant and the picker's way of observing.
WAYS: tuple[tuple[str, Variant, Any], ...] = (
    ("constant", Variant.STANDALONE, "all"),
    ("duplex, read", Variant.FULL_DUPLEX, {"mode": "all", "max_chunks_per_s": 0}),
    ("duplex, left", Variant.FULL_DUPLEX, "none"),
)
PLAIN = "no picker"


@dataclass
class Way:
    """One way's processes, and what the last burst showed.

    Attributes:
        url: where clients connect.
        pids: of Envoy and, if there is one, the picker.
        idle_share: of a core, of each while nobody asks anything.
        cpu_ms: of each, per request.
        ttft_ms: of each request.
    """

    url: str
    pids: list[int]
    idle_share: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)

    async def burst(
        self, http: aiohttp.ClientSession, seed: int, count: int, *, rate: float, tokens: int
    ) -> None:
        """Send requests at a rate; fills in what was seen."""
        sent = [bodies(PROMPT_TOKENS, seed * 10_000 + at + 1)[1] for at in range(count)]

        async def send() -> None:
            begun_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                asking = []
                for at, body in enumerate(sent):
                    await asyncio.sleep(begun_s + at / rate - time.monotonic())
                    asking.append(group.create_task(_ttft_ms(http, self.url, body, tokens)))
            self.ttft_ms = [task.result() for task in asking]
            await asyncio.sleep(_SETTLE_S)

        lasted_s, *used_s = await spent_s(send(), *([pid] for pid in self.pids))
        pairs = zip(used_s, self.idle_share, strict=True)
        self.cpu_ms = [(busy_s - share * lasted_s) / count * 1e3 for busy_s, share in pairs]

    async def measure_idle(self) -> None:
        """Fill in what the processes use at rest."""
        lasted_s, *used_s = await spent_s(asyncio.sleep(_IDLE_S), *([pid] for pid in self.pids))
        self.idle_share = [idle_s / lasted_s for idle_s in used_s]


async def measure(found: Figures, arguments: argparse.Namespace, rounds: int) -> None:
    """Measure every way in turn at 128 tokens, then the constant one at 16 and 1,024."""
    count = arguments.requests or REQUESTS
    async with AsyncExitStack() as stack:
        ways = await _start(stack)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        for way in ways.values():
            await way.measure_idle()
        plain, constant = ways[PLAIN], ways["constant"]
        for number in range(rounds):
            for name, way in ways.items():
                await way.burst(http, number, count, rate=RATE, tokens=TOKENS)
                found.add(f"envoy/{name}: Envoy", "ms CPU", way.cpu_ms[0], f"{TOKENS} tokens, 72 KB")
                if way is not plain:
                    found.add(f"envoy/{name}: picker", "ms CPU", way.cpu_ms[1])
                found.add(f"envoy/{name}: TTFT p50", "ms", median(way.ttft_ms), f"{RATE:.0f} req/s")
                found.add(f"envoy/{name}: TTFT p99", "ms", percentile(way.ttft_ms, 99))
            for q in (50, 99):
                added = percentile(constant.ttft_ms, q) - percentile(plain.ttft_ms, q)
                found.add(f"envoy/added TTFT p{q}", "ms", added, "constant-message mode")
            added_ms = []
            for tokens, share, rate in LENGTHS:
                for way in (plain, constant):
                    fewer = max(round(count * share), 4)
                    await way.burst(http, number * 7 + tokens, fewer, rate=rate, tokens=tokens)
                added_ms.append(sum(constant.cpu_ms) - sum(plain.cpu_ms))
                found.add(f"envoy/added at {tokens} tokens", "ms CPU", added_ms[-1], "picker and Envoy")
            if added_ms[0] > 0:
                found.add("envoy/1024 of 16 tokens", "ratio", added_ms[1] / added_ms[0])


async def _start(stack: AsyncExitStack) -> dict[str, Way]:
    runner = web.AppRunner(_upstream(), access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
    upstream = {"upstream": EndpointSpec(address="{}:{}".format(*runner.addresses[0]))}
    gateways: dict[str, Stack] = {PLAIN: Rival(folder / ALONE, (), ALONE, endpoints=upstream)}
    for name, variant, observe in WAYS:
        settings = {"variant": variant, "message_timeout_ms": 5000, "served_model_header": False}
        sections = {"observe": observe}
        gateways[name] = Stack(folder / name, (), sections, endpoints=upstream, envoy=settings)
    for gateway in gateways.values():
        await stack.enter_async_context(gateway)
    return {name: Way(gateway.url, [*gateway.pids.values()][::-1]) for name, gateway in gateways.items()}


def _upstream() -> web.Application:
    """Make an engine whose first token comes at once, the others after a pause each."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(TOKEN)
        for _ in range(int(request.headers["x-tokens"]) - 1):
            await asyncio.sleep(_PAUSE_S)
            await response.write(TOKEN)
        await response.write(LAST)
        return response

    upstream = web.Application(client_max_size=1 << 20)
    upstream.router.add_post("/v1/chat/completions", answer)
    return upstream


async def _ttft_ms(http: aiohttp.ClientSession, url: str, body: bytes, tokens: int) -> float:
    """Send a request on a connection of its own; milliseconds to its first token."""
    headers = {"content-type": "application/json", "x-tokens": str(tokens)}
    begun_s = time.perf_counter()
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
        answer.raise_for_status()
        await answer.content.readany()
        ttft_ms = (time.perf_counter() - begun_s) * 1e3
        await answer.read()
    return ttft_ms
