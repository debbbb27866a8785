"""What a streamed answer costs by the way in which it is observed: CPU of picker and Envoy, and added TTFT.

    python -m bench.observe --only ways [--rounds 5] [--tokens 16,128,1024]

Ways: an Envoy without picker; the constant-message path (Lua filter, first-token call, access log), with
and without its filter; full duplex with every answer read; full duplex with none read. Each way has its
own picker process (`epp serve`, recorder on) and its own Envoy with one worker; one upstream in this
process streams tokens with a pause between them, so that each is a chunk of its own. The ways take turns,
round by round. CPU is what the kernel counted for all threads of the process. TTFT is the client's, over
loopback, of an upstream that answers at once: what a way adds to it is the difference to the Envoy
without picker in the same round.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from epp.bench.cpu import cpu_s
from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy import filters, listener
from epp.envoy import messages as api
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from tests.kit.duplex import Upstream, request
from tests.kit.picker import PickerProcess
from tests.observe import answers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CONCURRENCY = 24
REQUESTS = {16: 480, 128: 192, 1024: 24}
TTFT_REQUESTS = 40
_PAUSE_S = 0.004


@dataclass(frozen=True)
class Way:
    """A way of observing.

    Attributes:
        name: as printed.
        envoy: fields of Envoy's settings.
        observe: the picker's configuration; None for no picker at all.
    """

    name: str
    envoy: dict[str, Any]
    observe: Any


WAYS = (
    Way("no picker", {"observe": False}, None),
    Way("filter off", {"observe": False}, "all"),
    Way("constant messages", {}, "all"),
    Way("duplex, read", {"variant": Variant.FULL_DUPLEX}, {"mode": "all", "max_chunks_per_s": 0}),
    Way("duplex, left", {"variant": Variant.FULL_DUPLEX}, "none"),
    Way("duplex, carried", {"variant": Variant.FULL_DUPLEX}, {"mode": "none", "unobserved": "carry"}),
)


@dataclass
class Seen:
    """One round's figures of one way."""

    picker_us: float
    envoy_us: float


@dataclass
class Rig:
    """One way's processes.

    Attributes:
        way: what they are set up for.
        rounds: what was seen.
        ttft_us: the median of each round.
    """

    way: Way
    envoy: EnvoyProcess
    picker: PickerProcess | None
    rounds: list[Seen] = field(default_factory=list)
    ttft_us: list[float] = field(default_factory=list)

    def cpu_us(self) -> tuple[float, float]:
        """CPU so far of picker and Envoy."""
        return cpu_us(self.picker.pid) if self.picker else 0.0, cpu_us(self.envoy.pid)


def cpu_us(pid: int) -> float:
    """CPU time of a process, threads that have ended included."""
    return cpu_s(pid) * 1e6


def streams(tokens: list[int]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """An upstream whose answers are of ``tokens[0]`` tokens, the first at once."""
    token = answers.chunk(answers.token(" word"))

    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head())
        for _token in range(tokens[0]):
            writer.write(token)
            await asyncio.sleep(_PAUSE_S)
        writer.write(answers.chunk(answers.usage() + answers.DONE) + answers.chunk(b""))

    return play


async def load(rig: Rig, count: int, *, at_once: int) -> list[float]:
    """Send so many requests; the TTFT of each in microseconds."""
    left, ttft_us = iter(range(count)), []
    port = int(rig.envoy.listener_url.rpartition(":")[2])

    async def one_by_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        for _ in left:
            begun = time.perf_counter()
            writer.write(request())
            await reader.readuntil(b"word")
            ttft_us.append((time.perf_counter() - begun) * 1e6)
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.transport.abort()

    await asyncio.gather(*(one_by_one() for _ in range(at_once)))
    return ttft_us


def _router_alone(settings: EnvoySettings, *_: object) -> list[api.hcm.HttpFilter]:
    return filters.http_filters(settings)[-1:]


async def start(stack: AsyncExitStack, way: Way, folder: Path, upstream: Upstream) -> Rig:
    """Start one way's picker and Envoy."""
    folder.mkdir()  # noqa: ASYNC240  # nothing else runs yet
    spec = EndpointSpec(address=upstream.address)
    values: dict[str, Any] = {"endpoints": (spec.endpoint(),), "listener_port": 0, "admin_port": 0}
    picker = None
    if way.observe is not None:
        (folder / "endpoints.yaml").write_bytes(dump_pool([spec]))
        config = {"observe": way.observe, "scrape": {"interval_s": 0}, "probe": {"interval_s": 0}}
        picker = PickerProcess(folder, **config)
        stack.push_async_callback(picker.stop)
        await picker.start()
        host, _, port = picker.grpc.rpartition(":")
        values |= {"picker_host": host, "picker_port": int(port), "message_timeout_ms": 5000}
        values["first_token_port"] = int(picker.first_token.rpartition(":")[2])
    settings = dataclasses.replace(EnvoySettings(**values), **way.envoy)
    process = EnvoyProcess(settings, folder=folder / "envoy")
    if picker is None:
        with patch.object(listener, "http_filters", _router_alone):
            return Rig(way, await stack.enter_async_context(process), None)
    return Rig(way, await stack.enter_async_context(process), picker)


async def measure(rig: Rig, count: int) -> None:
    """One round."""
    before = rig.cpu_us()
    await load(rig, count, at_once=CONCURRENCY)
    picker_us, envoy_us = ((b - a) / count for a, b in zip(before, rig.cpu_us(), strict=True))
    rig.rounds.append(Seen(picker_us, envoy_us))


def spread(values: list[float], digits: int = 0) -> str:
    """Median and range."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def report(tokens: int, rigs: list[Rig]) -> None:
    """One table: each way, and its ratio to the constant-message path within a round."""
    base = next(rig for rig in rigs if rig.way.name == "constant messages").rounds
    print(f"\n{tokens} tokens: CPU in us per request, median [lowest-highest]")
    print(f"{'':18} {'picker':>20} {'Envoy':>20} {'both, ratio':>20}")
    for rig in rigs:
        total = [
            (a.picker_us + a.envoy_us) / (b.picker_us + b.envoy_us)
            for a, b in zip(rig.rounds, base, strict=True)
        ]
        print(
            f"{rig.way.name:18} {spread([r.picker_us for r in rig.rounds]):>20}"
            f" {spread([r.envoy_us for r in rig.rounds]):>20} {spread(total, 2):>20}",
            flush=True,
        )


async def added_ttft(rounds: int, rigs: list[Rig]) -> None:
    """Print what each way adds to TTFT, one request at a time."""
    for _ in range(rounds):
        for rig in rigs:
            rig.ttft_us.append(statistics.median(await load(rig, TTFT_REQUESTS, at_once=1)))
    print(
        f"\nTTFT in us, {TTFT_REQUESTS} requests a round, one at a time: median [lowest-highest] of medians"
    )
    print(f"{'':18} {'seen':>20} {'added':>20}")
    for rig in rigs:
        added = [a - b for a, b in zip(rig.ttft_us, rigs[0].ttft_us, strict=True)]
        print(f"{rig.way.name:18} {spread(rig.ttft_us):>20} {spread(added):>20}", flush=True)


async def duplex_cost(rounds: int, tokens: list[int]) -> None:
    """Measure all ways and print a table per answer length."""
    length = [tokens[0]]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = Upstream(streams(length))
        await upstream.start()
        stack.push_async_callback(upstream.stop)
        rigs = [await start(stack, way, folder / str(at), upstream) for at, way in enumerate(WAYS)]
        for length[0] in tokens:
            for rig in rigs:
                rig.rounds.clear()
                await load(rig, CONCURRENCY, at_once=CONCURRENCY)
            for _ in range(rounds):
                for rig in rigs:
                    await measure(rig, REQUESTS.get(length[0], 48))
            report(length[0], rigs)
        length[0] = 1
        await added_ttft(max(rounds, 5), rigs)
