"""The same load over real TCP to three regions, by one tier and by two, and faults: `make demo-wan`.

    python -m epp.lab.demo.wan [--loss 0.5] [--no-faults]

Every request carries the same prompt, which the engines have in their caches, so what differs between
requests is the way there. Needs root and TUN devices; says so and ends well where they are not there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from asyncio import TaskGroup
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from epp.lab.compare.load import LoadOptions, RequestResult, run_load
from epp.lab.compare.stats import percentile
from epp.lab.compare.trace import TraceRequest
from epp.lab.demo.example import run_example
from epp.lab.demo.stack import MODEL, REGIONS
from epp.lab.demo.wan_world import REGION_HEADER, Route
from epp.lab.wan.network import HUB, Network, why_not
from epp.lab.wan.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
PHASES_S = {"before": 0.0, "during": 2.0, "after": 10.0, "end": 15.0}
#: Ways of reaching engines, and whether there are two tiers.
WAYS = {"one tier, as most are set up": False, "two tiers, kernel set": True}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, or report what is missing for it."""
    parser = argparse.ArgumentParser(prog="epp.lab.demo.wan", description=(__doc__ or "").splitlines()[0])
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
    regions = {region.name: Shape(region.rtt_ms / 2, loss=arguments.loss) for region in REGIONS}
    with Network(regions) as network, network.joined(HUB):
        asyncio.run(show_inside(arguments, network))
    return 0


async def show_inside(arguments: argparse.Namespace, network: Network) -> None:
    """Measure, inside the hub."""
    console, out = Console(width=None if sys.stdout.isatty() else 130), arguments.out
    ways = Table("way", "region", "requests", "TTFT p50", "TTFT p95", "failed", "opened")
    ways.title = f"72 KB prompts, {arguments.loss:.1%} of packets lost in each direction"
    faults = Table("way", "fault", "begun", "requests", "failed", f"by {FAULTY}", "slowest")
    faults.title = f"faults in {FAULTY}; requests to whichever region the picker takes"
    kept: dict[str, list[RequestResult]] = {}
    for way, two_tiers in WAYS.items():
        async with Route(network, out / way.split(",")[0].replace(" ", "-"), two_tiers=two_tiers) as route:
            await send_bursts(route, WARM_UP)
            before = await opened_so_far(route)
            results = await send_bursts(route, BURSTS)
            opened = await opened_so_far(route) - before
            for region, found in results.items():
                kept[f"{way}, {region}"] = found
                ttft = [result.ttft_ms for result in found if result.ok and result.ttft_ms]
                cells = (f"{percentile(ttft, 50):.0f} ms", f"{percentile(ttft, 95):.0f} ms")
                ways.add_row(way, region, str(len(found)), *cells, str(len(found) - len(ttft)), str(opened))
            found_faults = {} if arguments.no_faults else await send_through_faults(route, network)
        for fault, results_of in found_faults.items():
            kept[f"{way}, {fault}"] = results_of
            for phase, cells_of in phases(results_of):
                faults.add_row(way, fault, phase, *cells_of)
    console.print(ways, *([] if arguments.no_faults else [faults]))
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
    options = LoadOptions(base_url=route.url, model=MODEL, headers={REGION_HEADER: region})
    found += await run_load([PROMPT] * requests, options)


async def opened_so_far(route: Route) -> int:
    """Count connections that the global Envoy has opened to replicas or relays."""
    return sum((await route.envoy.stats("cluster.replicas.upstream_cx_total")).values())


async def send_through_faults(route: Route, network: Network) -> dict[str, list[RequestResult]]:
    """Kill a relay, where there are any, then cut the region off, under a steady load; results by fault."""
    found = {}
    if route.relays:
        async with TaskGroup() as group:
            sending = group.create_task(send_steadily(route))
            await asyncio.sleep(PHASES_S["during"])
            route.relays[FAULTY].kill()
            await asyncio.sleep(PHASES_S["after"] - PHASES_S["during"])
            await route.start_relay(FAULTY)
        found["relay killed"] = sending.result()
    async with TaskGroup() as group:
        sending = group.create_task(send_steadily(route))
        await asyncio.sleep(PHASES_S["during"])
        network.change(FAULTY, cut=True)
        await asyncio.sleep(PHASES_S["after"] - PHASES_S["during"])
        network.change(FAULTY, cut=False)
    return {**found, "region cut off": sending.result()}


async def send_steadily(route: Route) -> list[RequestResult]:
    """Send a request every so often to whichever region the picker takes."""
    times_s = [number * INTERVAL_S for number in range(round(PHASES_S["end"] / INTERVAL_S))]
    load = [replace(PROMPT, at_ms=1e3 * at_s) for at_s in times_s]
    return await run_load(load, LoadOptions(base_url=route.url, model=MODEL))


def phases(results: Sequence[RequestResult]) -> Iterator[tuple[str, list[str]]]:
    """Sum up the requests that were begun before, during and after a fault, as cells of the table."""
    for (phase, start_s), (_, end_s) in pairwise(PHASES_S.items()):
        begun = [result for result in results if start_s <= result.intended_ms / 1e3 < end_s]
        good = [result for result in begun if result.ok]
        slowest = f"{max(result.e2e_ms for result in good):.0f} ms" if good else "-"
        by = sum(result.served_by == FAULTY for result in good)
        yield phase, [str(len(begun)), str(len(begun) - len(good)), str(by), slowest]


if __name__ == "__main__":
    sys.exit(main())
