"""`epp bench peers`: gateways before the same simulated replicas, in turns, each run with all of it fresh.

Replicas stand on one machine with the gateway and the client, so a run's load must leave both cores air: rows
``client`` and ``replicas`` say how busy they were. Runs are kept, and a bench that was stopped goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from dataclasses import replace
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
import numpy as np
import uvloop
import yaml

from epp.envoy.process import find_envoy
from epp.envoy.render import render
from epp.envoy.settings import EnvoySettings
from epp.errors import EppError
from epp_lab.bench.figures import number
from epp_lab.bench.processes import held, spent_s
from epp_lab.compare.gateways import parse_gateways
from epp_lab.compare.load import run_load
from epp_lab.compare.measure import figures, from_live
from epp_lab.compare.trace import TraceRequest
from epp_lab.demo.stack import Replica, Stack
from epp_lab.experiment import Experiment, execute, interval
from epp_lab.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from epp.config.pool import EndpointSpec
    from epp_lab.experiment import CellRun

OURS, ALONE = "ours", "envoy"
#: Python's arguments: the policy that its documentation recommends for conversations, with the thresholds
#: that it tunes it by where it names some; all else is its default.
PEERS: Mapping[str, tuple[str, ...]] = {
    "vllm-router": ("-m", "vllm_router.launch_router", "--policy", "consistent_hash"),
    "sglang-router": (
        *("-m", "sglang_router.launch_router", "--policy", "cache_aware", "--cache-threshold", "0.5"),
        *("--balance-abs-threshold", "32", "--balance-rel-threshold", "1.5"),
    ),
    "smg": ("-m", "smg.cli", "launch", "--policy", "cache_aware"),
}
INSTALLED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gorgo-epp", "peers")
#: Replicas listen at this port and those after it: where a gateway of `--peer` has to look for them.
FIRST_PORT = 18_101
#: As `deploy/epp.example.yaml`: what else a demo sets is left at its default.
SECTIONS: Mapping[str, object] = {"probe": {}, "records": {}}
KEPT = Path("build", "lab", "peers.jsonl")
ROUNDS = 6
_SETTLE_S, _FAULT_AT_S, _TRIES = 1.0, 2.0, 40


class RivalCell(NamedTuple):
    """What a gateway goes through.

    Attributes:
        replicas: how many stand behind it.
        load: the requests of a seed.
        slowdown: of the first replica from `_FAULT_AT_S` on; 0 kills it, None leaves it alone.
        quiet_s: how long the gateway is watched at rest before the load; 0 measures no CPU.
        uncounted: requests before those that count.
    """

    replicas: int
    load: Callable[[int], Sequence[TraceRequest]]
    slowdown: float | None = None
    quiet_s: float = 0.0
    uncounted: int = 0


def chat(seed: int, *, seconds: float, output_tokens: int = 64) -> Sequence[TraceRequest]:
    """Make conversations that well-placed use half of three replicas."""
    return generate(replace(DEMO, duration_s=seconds, output_tokens=output_tokens, rate_rps=10.0), seed)


def burst(seed: int) -> Sequence[TraceRequest]:
    """Make one request, and 256 at once that share all but its end with it, 2,048 tokens each."""
    shared, own = range(seed * 1000, seed * 1000 + 30), 1_000_000 + seed * 1000
    return [
        TraceRequest(
            at_ms=1_000.0 * (number > 0),
            session=f"b{number}",
            user=f"b{number}",
            prompt_tokens=2_048,
            output_tokens=4,
            block_ids=(*shared, own + 2 * number, own + 2 * number + 1),
            block_tokens=64,
        )
        for number in range(257)
    ]


CELLS: Mapping[str, RivalCell] = {
    "chat": RivalCell(3, partial(chat, seconds=10.0, output_tokens=128), quiet_s=3.0),
    "burst": RivalCell(8, burst, uncounted=1),
    "one dies": RivalCell(3, partial(chat, seconds=6.0), slowdown=0.0),
    "one slows": RivalCell(3, partial(chat, seconds=6.0), slowdown=3.0),
}
LATENCIES = tuple(f"{what} p{q} ms" for what in ("TTFT", "E2E") for q in (50, 95, 99))
COST, IDLE = "CPU ms a request", "idle CPU ms a second"
MEASURES = (
    *(*LATENCIES, "failed", "hits %", "hottest / mean", COST, IDLE),
    *("memory MB", "client % core", "replicas % core", "client late p95 ms"),
)


class Rival(Stack):
    """Fresh replicas behind another gateway; `EnvoyProcess` of ours is not there.

    Args:
        folder: configuration and logs.
        replicas: the pool.
        name: of `PEERS`, or `ALONE`.
        url: of a gateway that runs already, empty to start the one that is named.
        endpoints: instead of replicas.
    """

    def __init__(
        self,
        folder: Path,
        replicas: Sequence[Replica],
        name: str,
        url: str = "",
        endpoints: Mapping[str, EndpointSpec] | None = None,
    ) -> None:
        super().__init__(folder, replicas, {}, endpoints=endpoints)
        self._name, self._url = name, url

    @property
    def url(self) -> str:
        """Return where clients send requests."""
        return self._url

    async def _start(self) -> None:
        await self._start_replicas()
        if self._url:
            return
        port, other_port = _free_ports()
        self._url = f"http://127.0.0.1:{port}"
        if self._name == ALONE:
            file = self.folder / "envoy.json"
            file.write_text(json.dumps(self._plain_envoy(port)))
            words = ["--config-path", str(file), "--concurrency", "1", "--disable-hot-restart"]
            envoy = await self._run(ALONE, [*words, "--log-level", "warning"], (str(find_envoy()),))
            await envoy.until(lambda: is_listening(port))
            return
        ports = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other_port)]
        workers = [f"http://{spec.address}" for spec in self.endpoints.values()]
        words = [*PEERS[self._name], *ports, "--worker-urls", *workers]
        await self._run(self._name, words, (str(INSTALLED / "bin" / "python"),))

    def _plain_envoy(self, port: int) -> object:
        """Render our Envoy without picker, scripts and reports: least request, the same retries."""
        endpoints = tuple(spec.endpoint() for spec in self.endpoints.values())
        settings = EnvoySettings(endpoints=endpoints, listener_port=port, admin_port=0, observe=False)
        config = yaml.safe_load(render(settings))
        resources = config["static_resources"]
        resources["clusters"] = resources["clusters"][:1]
        (manager,) = resources["listeners"][0]["filter_chains"][0]["filters"]
        manager["typed_config"]["http_filters"] = manager["typed_config"]["http_filters"][-1:]
        (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
        host["routes"] = host["routes"][-1:]
        del host["response_headers_to_add"]
        return config


def is_listening(port: int) -> bool:
    """Check whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [free.getsockname()[1] for free in (one, other)]


def run_one(urls: Mapping[str, str], cell: str, entry: str, seed: int) -> dict[str, float]:
    """Measure one gateway in one cell under one seed; ``urls`` are of gateways that run already."""
    ports = range(FIRST_PORT, FIRST_PORT + CELLS[cell].replicas)
    replicas = [Replica(f"replica-{port}", rtt_ms=1.0, port=port if entry in urls else 0) for port in ports]
    with tempfile.TemporaryDirectory(prefix="epp-peers-") as name:
        stack: Stack = Rival(Path(name), replicas, entry, urls.get(entry, ""))
        if entry == OURS:
            stack = Stack(Path(name), replicas, SECTIONS, envoy={"served_model_header": False})
        return uvloop.run(measure(stack, CELLS[cell], seed))


async def measure(stack: Stack, cell: RivalCell, seed: int) -> dict[str, float]:
    """Drive a gateway once it serves: at rest, then under load.

    Raises:
        EppError: it does not serve.
    """
    load = cell.load(seed)
    async with stack:
        await _until_served(stack)
        gateway = [pid for name, pid in stack.pids.items() if name != "replicas"]
        await asyncio.sleep(_SETTLE_S)
        quiet_s, idle_s = await spent_s(asyncio.sleep(cell.quiet_s), gateway)
        sending = asyncio.ensure_future(run_load(load, stack.load_options()))
        work = asyncio.gather(sending, _fault(stack, cell.slowdown))
        lasted_s, busy_s, *others_s = await spent_s(work, gateway, [os.getpid()], [stack.pids["replicas"]])
        memory = sum(held(pid).rss_bytes for pid in gateway) or nan
    counted = np.arange(len(load)) >= cell.uncounted
    found = figures(from_live(sending.result(), len(load)), load, counted, pace=1.0)
    values = [getattr(of, f"p{q}") for of in (found.ttft_ms, found.e2e_ms) for q in (50, 95, 99)]
    values += [found.errors, found.true_hit_share * 100, found.hottest_share * cell.replicas]
    if cell.quiet_s:
        idle = idle_s / quiet_s
        values += [(busy_s - idle * lasted_s) / len(load) * 1e3, idle * 1e3, memory / 1e6]
        values += [*(other_s / lasted_s * 100 for other_s in others_s), found.slip_ms.p95]
    return dict(zip(MEASURES, values, strict=False))


async def _until_served(stack: Stack) -> None:
    """Send short requests, more than there are replicas, until all of them are answered."""
    request = TraceRequest(
        at_ms=0.0, session="", user="", prompt_tokens=20, output_tokens=2, block_ids=(), block_tokens=16
    )
    load = [replace(request, session=f"warm-up {number}") for number in range(16)]
    for _ in range(_TRIES):
        results = await run_load(load, stack.load_options())
        if all(result.ok for result in results):
            return
        await asyncio.sleep(0.5)
    raise EppError(f"{stack.url} does not serve: {results[-1].error}")


async def _fault(stack: Stack, slowdown: float | None) -> None:
    """Slow the first replica down under load, or kill it."""
    if slowdown is not None:
        await asyncio.sleep(_FAULT_AT_S)
        url = f"http://{next(iter(stack.endpoints.values())).address}/fault?slowdown={slowdown}"
        with contextlib.suppress(aiohttp.ClientError):  # the dead do not answer
            async with aiohttp.ClientSession() as session, session.post(url):
                pass


def run(arguments: argparse.Namespace) -> int:
    """Run all cells, each round every gateway in turn; print a table a cell, then the goals.

    Raises:
        EppError: the peers are not installed, or a gateway of ``--peer`` is no URL.
    """
    urls = parse_gateways(arguments.peer)
    if not (INSTALLED / "bin").is_dir():
        raise EppError(f"no peers in {INSTALLED}: run `make peers`")
    entries = (OURS, ALONE, *PEERS, *urls)
    experiment = Experiment("", CELLS, entries, partial(run_one, urls))
    runs = execute(experiment, seeds=range(arguments.rounds or ROUNDS), jobs=1, kept=KEPT)
    print("\n".join(f"{name}: python {' '.join(words)}" for name, words in PEERS.items()))
    print("commit", *sorted({run.commit for run in runs}))
    print(report(runs, entries))
    return 0


Bounds = tuple[float, float, float]


def _best_upper_bound(others: Sequence[Bounds]) -> float:
    return min(others)[2]


#: Highest value of ours, by the means and intervals of the others, Envoy alone first.
GOALS: Mapping[tuple[str, str], Callable[[Sequence[Bounds]], float]] = {
    ("chat", "TTFT p95 ms"): _best_upper_bound,
    ("chat", "E2E p95 ms"): _best_upper_bound,
    ("burst", "TTFT p95 ms"): _best_upper_bound,
    ("chat", COST): lambda others: 1.7 * min(others)[0],
    ("chat", IDLE): lambda _: 4.0,
    ("one dies", "failed"): lambda others: others[0][0],
}


def report(runs: Sequence[CellRun], entries: Sequence[str]) -> str:
    """Lay out a table a cell, means over the rounds with 95 % intervals, and the goals beneath."""

    def over_rounds(cell: str, entry: str, measure: str) -> tuple[float, float, float]:
        return interval(np.array([run.value(measure) for run in runs if run.key[:2] == (cell, entry)]))

    lines = []
    for cell in CELLS:
        lines += ["", f"| {cell} | {' | '.join(entries)} |", "|---" * (len(entries) + 1) + "|"]
        for measure in MEASURES:
            found = [over_rounds(cell, entry, measure) for entry in entries]
            texts = (f"{number(mean)} [{number(low)}, {number(high)}]" for mean, low, high in found)
            if not all(isnan(mean) for mean, *_ in found):
                lines.append(f"| {measure} | {' | '.join(texts)} |")
    lines.append("")
    for (cell, measure), goal in GOALS.items():
        ours, _, _ = over_rounds(cell, OURS, measure)
        others = [over_rounds(cell, entry, measure) for entry in entries[1:]]
        known = [other for other in others if not isnan(other[0])]
        most = goal(known) if known else nan
        mark = "met" if ours <= most else "MISSED"
        lines.append(f"{cell}, {measure}: {number(ours)}, goal {number(most)}: {mark}")
    return "\n".join(lines)
