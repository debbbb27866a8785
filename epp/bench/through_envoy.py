"""End to end through a real Envoy: what each way of picking adds to a request with a 72 KB prompt.

Each way has a picker and an Envoy of its own, both started here; all share one upstream and one load.
Requests come at a fixed rate, whatever is still open, so that a slow way is not spared. CPU is what the
system accounts to the picker's and to Envoy's process; added is the difference to the Envoy without picker
in the same round.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from epp.bench import prompts
from epp.bench.children import picker
from epp.bench.cpu import cpu_s
from epp.bench.figures import percentile
from epp.bench.plain_envoy import plain_envoy
from epp.bench.upstream import END, Upstream
from epp.config.address import split_address
from epp.config.pool import EndpointSpec
from epp.envoy.module import build
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp.bench.figures import Figures

TOKENS, RATE, REQUESTS = 128, 50.0, 200
PROMPT_TOKENS = 18_000
_ANSWER_S, _SETTLE_S = 60.0, 0.4
_READ = {"mode": "all", "max_chunks_per_s": 0}
#: Name, Envoy's variant and the picker's way of observing.
WAYS: tuple[tuple[str, Variant, Any], ...] = (
    ("constant", Variant.STANDALONE, "all"),
    ("duplex, read", Variant.FULL_DUPLEX, _READ),
    ("duplex, left", Variant.FULL_DUPLEX, "none"),
)
PLAIN = "no picker"
#: The constant one again, with the observing filter's compiled part; there where a C compiler is.
COMPILED = "compiled"


@dataclass(slots=True)
class Way:
    """One way's processes, and what the last burst showed.

    Attributes:
        address: where clients connect.
        envoy: Envoy's process.
        picker: the picker's, None for the way without.
        ttft_ms: of each request.
        cpu_ms: of picker and Envoy, per request.
    """

    address: str
    envoy: int
    picker: int | None
    ttft_ms: list[float] = field(default_factory=list)
    cpu_ms: tuple[float, float] = (0.0, 0.0)


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
        module = self._module() if "constant" in self._wanted else ""
        compiled = ((COMPILED, Variant.STANDALONE, "all"),) if module else ()
        for name, variant, observe in (*WAYS, *compiled):
            if name not in self._wanted and name != COMPILED:
                continue
            ours = self._exit.enter_context(picker([spec], observe=observe))
            host, port = split_address(ours.grpc)
            settings = EnvoySettings(
                endpoints=(spec.endpoint(),),
                variant=variant,
                listener_port=0,
                admin_port=0,
                picker_host=host,
                picker_port=port,
                message_timeout_ms=5000,
                first_token_port=split_address(ours.first_token)[1],
                observe_module=module if name == COMPILED else "",
            )
            envoy = await self._exit.enter_async_context(EnvoyProcess(settings))
            self._ways[name] = Way(envoy.listener_url.removeprefix("http://"), envoy.pid, ours.pid)

    def _module(self) -> str:
        """The filter's compiled part, built for this run; nothing where it does not compile."""
        folder = Path(self._exit.enter_context(TemporaryDirectory(prefix="epp-bench-")))
        try:
            build(folder / "libepp_observe.so")
        except EppError as error:
            print(f"the compiled filter is not measured: {error}")
            return ""
        return str(folder / "libepp_observe.so")

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
        constant = self._ways.get("constant")
        if constant is not None:
            p50 = statistics.median(constant.ttft_ms) - statistics.median(plain.ttft_ms)
            figures.add("envoy/added TTFT p50", "ms", p50, "constant-message mode")
            figures.add(
                "envoy/added TTFT p99",
                "ms",
                percentile(constant.ttft_ms, 0.99) - percentile(plain.ttft_ms, 0.99),
            )
            await self._lengths(figures, number)

    async def _lengths(self, figures: Figures, number: int) -> None:
        """What a long answer adds against a short one, over the Envoy without a picker."""
        ways = {name: way for name, way in self._ways.items() if name in (PLAIN, "constant", COMPILED)}
        added: dict[str, list[float]] = {name: [] for name in ways if name != PLAIN}
        count = max(self._requests // 5, 8)
        for self._upstream.tokens in (16, 1024):
            for way in ways.values():
                await self._burst(way, number * 7 + self._upstream.tokens, count, RATE / 2)
            for name, spent in added.items():
                spent.append(sum(ways[name].cpu_ms) - sum(ways[PLAIN].cpu_ms))
                at = f"{self._upstream.tokens} tokens{_as(name)}"
                figures.add(f"envoy/added at {at}", "ms CPU", spent[-1], "both")
        for name, (short, long) in added.items():
            if short > 0:
                figures.add(f"envoy/1024 of 16 tokens{_as(name)}", "ratio", long / short)

    async def _burst(self, way: Way, seed: int, count: int, rate: float) -> None:
        """Send requests at a rate; fills in what was seen."""
        bodies = [prompts.conversation(PROMPT_TOKENS, seed * 10_000 + at + 1)[1] for at in range(count)]
        pids = [way.picker, way.envoy]
        before_s = [0.0 if pid is None else cpu_s(pid) for pid in pids]
        loop = asyncio.get_running_loop()
        begun_s, asking = loop.time(), []
        for at, body in enumerate(bodies):
            await asyncio.sleep(begun_s + at / rate - loop.time())
            asking.append(asyncio.ensure_future(_ask(way.address, body)))
        way.ttft_ms = list(await asyncio.gather(*asking))
        await asyncio.sleep(_SETTLE_S)
        after_s = [0.0 if pid is None else cpu_s(pid) for pid in pids]
        spent = [(after - before) / count * 1e3 for before, after in zip(before_s, after_s, strict=True)]
        way.cpu_ms = spent[0], spent[1]


def _as(name: str) -> str:
    return f", {name}" if name == COMPILED else ""


async def _ask(address: str, body: bytes) -> float:
    """One request on a connection of its own: milliseconds to its first token.

    Raises:
        EppError: it was refused, or does not end.
    """
    host, port = split_address(address)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer 0123456789abcdef\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        async with asyncio.timeout(_ANSWER_S):
            begun_s = time.perf_counter()
            writer.write(head + body)
            status = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in status[:16]:
                raise EppError(f"a request was answered {status[:200]!r}")
            await reader.readuntil(b"word")
            ttft_ms = (time.perf_counter() - begun_s) * 1e3
            await reader.readuntil(b"\r\n" + END)
    except TimeoutError:
        raise EppError("an answer through Envoy does not end") from None
    finally:
        writer.transport.abort()
    return ttft_ms
