"""The same load over real TCP to three regions, by one tier and by two, and faults: `make demo-wan`.

    python -m epp.demo.wan [--loss 0.5] [--no-faults]

Every request carries the same prompt, which the engines have in their caches, so what differs between
requests is the way there. Needs root and TUN devices; says so and ends well where they are not there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from epp.demo.example import run_example
from epp.demo.stack import MODEL, REGIONS
from epp.demo.wan_world import REGION_HEADER, TIERS, Route, network
from epp.replay.load import LoadOptions, RequestResult, run_load
from epp.replay.stats import percentile
from epp.replay.trace import TraceRequest
from epp.wan.network import HUB, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from epp.wan.network import Network

#: 72 KB, about 18,000 tokens.
PROMPT = TraceRequest(
    at_ms=0.0,
    session="s",
    user="u",
    prompt_tokens=18_000,
    output_tokens=4,
    block_ids=(1,),
    block_tokens=18_000,
)
#: Requests at once to each region, and the pause after them. Six seconds end the connections that are closed
#: at five, and slow others down where kernels do so.
WARM_UP = ((8, 0.1), (8, 0.1))
BURSTS = ((4, 0.1), (8, 6.0), (8, 0.1), (4, 0.1))
#: The middle one: far enough to notice, near enough to be picked.
FAULTY = "frankfurt"
INTERVAL_S = 0.4
#: When the phases of a fault begin, and when its load ends.
PHASES_S = {"before": 0.0, "during": 2.0, "after": 10.0}
END_S = 15.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, or report what is missing for it."""
    parser = argparse.ArgumentParser(prog="epp.demo.wan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--loss", type=percent, default=0.0, help="percent of packets lost each way (%(default)s)"
    )
    parser.add_argument("--no-faults", action="store_true", help="leave the faults out")
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    return run_example(parser, show, argv, out="demo-wan-out")


def percent(text: str) -> float:
    """Read percent as a share."""
    if not 0.0 <= float(text) <= 100.0:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to 100")
    return float(text) / 100.0


def show(arguments: argparse.Namespace) -> int:
    """Measure both ways, then the faults, and print tables."""
    with network(arguments.loss) as made, made.joined(HUB):
        asyncio.run(show_inside(arguments, made))
    return 0


async def show_inside(arguments: argparse.Namespace, made: Network) -> None:
    """Measure, inside the hub."""
    console, out = Console(width=None if sys.stdout.isatty() else 130), arguments.out
    ways = Table("way", "region", "requests", "TTFT p50", "TTFT p95", "failed", "opened")
    ways.title = f"72 KB prompts, {arguments.loss:.1%} of packets lost in each direction"
    faults = Table("way", "fault", "begun", "requests", "failed", f"by {FAULTY}", "slowest")
    faults.title = f"faults in {FAULTY}; requests to whichever region the picker takes"
    kept: dict[str, list[RequestResult]] = {}
    for way, two_tiers in TIERS.items():
        async with Route(
            made, out / ("two-tiers" if two_tiers else "one-tier"), two_tiers=two_tiers
        ) as route:
            await send_bursts(route, WARM_UP)
            before = await opened_so_far(route)
            results = await send_bursts(route, BURSTS)
            opened = await opened_so_far(route) - before
            for region, found in results.items():
                kept[f"{way}, {region}"] = found
                ttft = [result.ttft_ms for result in found if result.ok and result.ttft_ms]
                cells = (f"{percentile(ttft, 50):.0f} ms", f"{percentile(ttft, 95):.0f} ms")
                failed = sum(not result.ok for result in found)
                ways.add_row(way, region, str(len(found)), *cells, str(failed), str(opened))
            if not arguments.no_faults:
                await show_faults(route, way, faults, kept)
    console.print(ways)
    if not arguments.no_faults:
        console.print(faults)
    (out / "results.json").write_bytes(msgspec.json.encode(kept))
    console.print(f"Output in {out}/: configuration, logs, records, results.")


async def send_bursts(route: Route, bursts: Sequence[tuple[int, float]]) -> dict[str, list[RequestResult]]:
    """Send bursts to all regions; results by region."""
    results: dict[str, list[RequestResult]] = {region.name: [] for region in REGIONS}
    for requests, pause_s in bursts:
        await asyncio.gather(
            *(send_burst(route, region, requests, found) for region, found in results.items())
        )
        await asyncio.sleep(pause_s)
    return results


async def send_burst(route: Route, region: str, requests: int, found: list[RequestResult]) -> None:
    """Send requests at once to a region, and add their results."""
    options = LoadOptions(base_url=route.envoy.listener_url, model=MODEL, headers={REGION_HEADER: region})
    found += await run_load([PROMPT] * requests, options)


async def opened_so_far(route: Route) -> int:
    """Count connections that the global Envoy has opened to replicas or relays."""
    return sum((await route.envoy.stats("cluster.replicas.upstream_cx_total")).values())


async def show_faults(route: Route, way: str, table: Table, kept: dict[str, list[RequestResult]]) -> None:
    """Kill a relay, where there are any, then cut the region off, under a steady load."""

    async def kill() -> None:
        route.relays[FAULTY].kill()

    async def restart() -> None:
        await route.start_relay(FAULTY)

    async def cut() -> None:
        route.network.change(FAULTY, cut=True)

    async def join() -> None:
        route.network.change(FAULTY, cut=False)

    found = {"relay killed": await under_load(route, kill, restart)} if route.relays else {}
    found["region cut off"] = await under_load(route, cut, join)
    for fault, results in found.items():
        kept[f"{way}, {fault}"] = results
        ends_s = [*list(PHASES_S.values())[1:], END_S]
        for (phase, start_s), end_s in zip(PHASES_S.items(), ends_s, strict=True):
            of_phase = [result for result in results if start_s <= result.intended_ms / 1e3 < end_s]
            good = [result for result in of_phase if result.ok]
            slowest = f"{max(result.e2e_ms for result in good):.0f} ms" if good else "-"
            by = sum(result.served_by == FAULTY for result in good)
            failed = len(of_phase) - len(good)
            table.add_row(way, fault, phase, str(len(of_phase)), str(failed), str(by), slowest)


async def under_load(
    route: Route, begin: Callable[[], Coroutine[Any, Any, None]], end: Callable[[], Coroutine[Any, Any, None]]
) -> list[RequestResult]:
    """Send a request every so often to whichever region the picker takes, while a fault begins and ends."""
    times_s = [number * INTERVAL_S for number in range(round(END_S / INTERVAL_S))]
    load = [replace(PROMPT, at_ms=1e3 * at_s) for at_s in times_s]
    options = LoadOptions(base_url=route.envoy.listener_url, model=MODEL)
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(run_load(load, options))
        await asyncio.sleep(PHASES_S["during"])
        await begin()
        await asyncio.sleep(PHASES_S["after"] - PHASES_S["during"])
        await end()
    return sending.result()


if __name__ == "__main__":
    sys.exit(main())
