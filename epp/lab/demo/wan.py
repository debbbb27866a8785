"""The same load over real TCP to three regions, by one tier and by two, and faults: `make demo-wan`.

    python -m epp.lab.demo.wan [--loss 0.5] [--no-faults]

Every request carries the same prompt, which the engines have in their caches, so what differs between
requests is the way there. The demonstration's own process lives in the hub, where clients, the picker and the
global Envoy are. Needs root and TUN devices; says so and ends well where they are not there.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from epp.config.pool import EndpointSpec
from epp.config.relays import GLOBAL_NAME, RELAY_NAME, Relays
from epp.envoy.child import EPP, Child
from epp.envoy.process import find_envoy, version_of
from epp.envoy.render import render_relay, write
from epp.envoy.settings import FULL_FEATURED, EnvoySettings
from epp.lab.compare.load import RequestResult, run_load
from epp.lab.compare.stats import percentile
from epp.lab.compare.trace import TraceRequest
from epp.lab.demo.example import example_parser, run_example
from epp.lab.demo.stack import MODEL, REGIONS, Stack
from epp.lab.origin import origin
from epp.lab.wan.delay import Shape
from epp.lab.wan.network import HUB, Network, why_not

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

REGION_HEADER = "x-demo-region"
"""Binds a request to a region, by a rule of the picker's."""

ENGINE_PORT, RELAY_PORT = 8000, 8443
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
#: When a fault begins and ends, under a load of a request each so often.
FAULT_S, LOAD_S, INTERVAL_MS = (2.0, 10.0), 15.0, 400.0
#: Ways of reaching engines, and whether there are two tiers.
WAYS = {"one tier, as most are set up": False, "two tiers, kernel set": True}


class Route(Stack):
    """Replicas behind long links, a picker, a global Envoy and, in two tiers, relays; entered in the hub.

    Args:
        network: has a region of each name in `REGIONS`.
        folder: configuration and logs.
        two_tiers: whether there is a relay in each region, and hosts are set for long links.

    Attributes:
        relays: by region.
    """

    def __init__(self, network: Network, folder: Path, *, two_tiers: bool) -> None:
        self._network, self._two_tiers = network, two_tiers
        certificate, key = str(folder.absolute() / "tls.crt"), str(folder.absolute() / "tls.key")
        self._second_tier = Relays(
            regions={r.name: f"{network.address(r.name)}:{RELAY_PORT}" for r in REGIONS},
            ca_file=certificate,
            cert_file=certificate,
            key_file=key,
        )
        self.relays: dict[str, Child] = {}
        sections: dict[str, object] = {
            "policy": {"name": "least-request"},
            "regions": [{"allow": [r.name], "header": REGION_HEADER, "value": r.name} for r in REGIONS],
        }
        # The machine is busy with three regions: a picker that waits for a core is not a dead one.
        envoy: dict[str, object] = {"message_timeout_ms": 2000, "preconnect_ratio": 1.0}
        if two_tiers:
            sections["relays"] = msgspec.to_builtins(self._second_tier)
            envoy["relays"] = self._second_tier
        super().__init__(folder, REGIONS, sections, envoy=envoy)

    async def start_relay(self, region: str) -> None:
        """Start a region's relay, again after it was killed."""
        binary = find_envoy()
        settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in self.endpoints.values()),
            listener_host=self._network.address(region),
            relays=self._second_tier,
            envoy_version=min(FULL_FEATURED, await version_of(binary)),
        )
        file = self.folder / f"relay-{region}.yaml"
        write(file, render_relay(settings, region))
        options = ("--config-path", str(file), "--concurrency", "1", "--log-level", "warning")
        program = (str(binary), *options, "--disable-hot-restart")
        self.relays[region] = await self._run_inside(region, f"relay-{region}", program, RELAY_PORT)

    async def _start_replicas(self) -> None:
        self._set_kernels()
        for name in (region.name for region in REGIONS):
            address = f"{self._network.address(name)}:{ENGINE_PORT}"
            self.endpoints[name] = EndpointSpec(address=address, region=name)
        self.write_pool(self.endpoints)
        await asyncio.gather(*(self._start_replica(name) for name in self.endpoints))
        if self._two_tiers:
            make_certificate(self._second_tier)
            await asyncio.gather(*(self.start_relay(name) for name in self.endpoints))

    async def _start_replica(self, region: str) -> None:
        words = ("lab", "sim", "--model", MODEL, "--host", self._network.address(region))
        program = (*EPP, *words, "--replica", f"name={region},port={ENGINE_PORT}")
        await self._run_inside(region, f"replica-{region}", program, ENGINE_PORT)

    def _set_kernels(self) -> None:
        """Set Linux's defaults, or what docs/multi-region.md has set for long links."""
        slow_after_idle, segments = ("0", 64) if self._two_tiers else ("1", 10)
        for place in (HUB, *(region.name for region in REGIONS)):
            self._network.set_kernel(place, "ipv4.tcp_slow_start_after_idle", slow_after_idle)
        for region in REGIONS:
            self._network.initial_window(HUB, region.name, segments)
            self._network.initial_window(region.name, region.name, segments)

    async def _run_inside(self, region: str, name: str, program: tuple[str, ...], port: int) -> Child:
        """Run a program in a region's namespace, once somebody listens on its port."""
        ip, *words = self._network.command(region, *program)
        child = await self._run(name, words, (shutil.which(ip) or ip,))
        await self._until_listening(child, self._network.address(region), port)
        return child


def make_certificate(relays: Relays) -> None:
    """Write the certificate that both tiers have and that is its own authority, and its key."""
    names = f"subjectAltName=DNS:{GLOBAL_NAME},DNS:{RELAY_NAME}"
    files = ("-out", relays.cert_file, "-keyout", relays.key_file)
    algorithm = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    subject = ("-days", "2", "-subj", "/CN=demo", "-addext", names)
    command = (shutil.which("openssl") or "openssl", "req", "-x509", *algorithm, *files, *subject)
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # names of ours


def main() -> int:
    """Run the demo, or report what is missing for it."""
    parser = example_parser("wan", __doc__)
    parser.add_argument("--loss", type=float, default=0.0, help="percent lost each way (%(default)s)")
    parser.add_argument("--no-faults", action="store_true", help="leave the faults out")
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    return run_example(parser, show, out="demo-wan-out")


def show(arguments: argparse.Namespace) -> int:
    """Measure both ways, then the faults, and print tables."""
    loss = arguments.loss / 100.0
    regions = {region.name: Shape(region.rtt_ms / 2, loss=loss) for region in REGIONS}
    with Network(regions) as network, network.joined(HUB):
        asyncio.run(show_inside(arguments, network))
    return 0


async def show_inside(arguments: argparse.Namespace, network: Network) -> None:
    """Measure, inside the hub."""
    console, out = Console(width=None if sys.stdout.isatty() else 130), arguments.out
    ways = Table("way", "region", "requests", "TTFT p50", "TTFT p95", "failed", "opened")
    ways.title = f"72 KB prompts, {arguments.loss} % of packets lost in each direction"
    faults = Table("way", "fault", "requests meanwhile", "failed", f"by {FAULTY}", "slowest")
    faults.title = f"faults in {FAULTY}; requests to whichever region the picker takes"
    kept: dict[str, list[RequestResult]] = {}
    for way, two_tiers in WAYS.items():
        async with Route(network, out / way.split(",")[0].replace(" ", "-"), two_tiers=two_tiers) as route:
            await send_bursts(route, WARM_UP)
            before = await opened_so_far(route)
            results = await send_bursts(route, BURSTS)
            opened = await opened_so_far(route) - before
            found_faults = {} if arguments.no_faults else await send_through_faults(route, network)
        for region, found in results.items():
            ttft_ms = [result.ttft_ms for result in found if result.ok and result.ttft_ms]
            cells = (f"{percentile(ttft_ms, 50):.0f} ms", f"{percentile(ttft_ms, 95):.0f} ms")
            ways.add_row(way, region, str(len(found)), *cells, str(len(found) - len(ttft_ms)), str(opened))
        for fault, found in found_faults.items():
            during = [r for r in found if FAULT_S[0] <= r.intended_ms / 1e3 < FAULT_S[1]]
            good = [result for result in during if result.ok]
            slowest = f"{max((result.e2e_ms for result in good), default=0.0):.0f} ms"
            by = sum(result.served_by == FAULTY for result in good)
            faults.add_row(way, fault, str(len(during)), str(len(during) - len(good)), str(by), slowest)
        kept |= {f"{way}, {what}": found for what, found in (results | found_faults).items()}
    console.print(ways, *([] if arguments.no_faults else [faults]))
    (out / "results.json").write_bytes(msgspec.json.encode({"made": origin(), **kept}))
    console.print(f"Output in {out}/: configuration, logs, records, results.")


async def send_bursts(route: Route, bursts: Sequence[tuple[int, float]]) -> dict[str, list[RequestResult]]:
    """Send bursts to all regions at once; results by region."""
    results: dict[str, list[RequestResult]] = {region.name: [] for region in REGIONS}
    for requests, pause_s in bursts:
        runs = (
            run_load([PROMPT] * requests, route.load_options(headers={REGION_HEADER: region}))
            for region in results
        )
        for found, new in zip(results.values(), await asyncio.gather(*runs), strict=True):
            found.extend(new)
        await asyncio.sleep(pause_s)
    return results


async def opened_so_far(route: Route) -> int:
    """Count connections that the global Envoy has opened to replicas or relays."""
    return sum((await route.envoy.stats("cluster.replicas.upstream_cx_total")).values())


async def send_through_faults(route: Route, network: Network) -> dict[str, list[RequestResult]]:
    """Kill a relay, where there are any, then cut the region off, under a steady load; results by fault."""

    async def steadily(begin: Callable[[], None], end: Callable[[], Awaitable[None]]) -> list[RequestResult]:
        load = [replace(PROMPT, at_ms=at * INTERVAL_MS) for at in range(round(LOAD_S * 1e3 / INTERVAL_MS))]
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(run_load(load, route.load_options()))
            await asyncio.sleep(FAULT_S[0])
            begin()
            await asyncio.sleep(FAULT_S[1] - FAULT_S[0])
            await end()
        return sending.result()

    async def mend() -> None:
        network.change(FAULTY, cut=False)

    found = {}
    if route.relays:
        relay = route.relays[FAULTY]
        found["relay killed"] = await steadily(relay.kill, lambda: route.start_relay(FAULTY))
    found["region cut off"] = await steadily(lambda: network.change(FAULTY, cut=True), mend)
    return found


if __name__ == "__main__":
    sys.exit(main())
