"""Three regions that hand each other requests, over real links of up to 211 ms: `make demo-regions`.

    python -m epp_lab.demo.regions [--seconds 30] [--only regions] [--loss 0.5]

Each region has an engine, a picker, an Envoy and a NATS server, a gateway to the others', in a network
namespace of its own; its clients are there, too. In turn: every region at half of its capacity; one at one
and a half times; the same with prompts that an idle far region has cached; one cut off; healed. Beside it,
the first two under a picker in each region that knows no others, and under one for all. That one also gets
long prompts from its own region, which the engines have in their caches: what differs between them is the way
there, through relays on hosts that are set for long links, or without either. Needs root and TUN devices;
says so and ends well where they are not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiohttp
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from epp.config.federation import DOMAIN
from epp.config.pool import EndpointSpec
from epp.config.relays import GLOBAL_NAME, RELAY_NAME
from epp.envoy.child import EPP, Child
from epp.envoy.process import find_envoy
from epp.errors import EppError
from epp_lab.compare.load import LoadOptions, run_load
from epp_lab.compare.stats import percentile
from epp_lab.compare.trace import TraceRequest
from epp_lab.demo.example import example_parser, run_example
from epp_lab.demo.nats import Nats
from epp_lab.demo.stack import MODEL, Stack
from epp_lab.wan.delay import Shape
from epp_lab.wan.network import Network, why_not
from epp_lab.wan.place import Place

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from epp_lab.compare.load import RequestResult

#: Round trip of each region's link, ms: between two regions it is the sum, 100, 181 and 211.
LINKS_MS = {"ashburn": 35.0, "frankfurt": 65.0, "seoul": 146.0}
#: The one that has too much to do, and that is cut off; and the one that holds what it asks for.
BUSY, HOLDER = "frankfurt", "seoul"
ENGINE_PORT, ENVOY_PORT, PICKER_PORT, PEERS_PORT, GATEWAY_PORT = 8000, 8080, 9002, 8443, 7222
#: Of a prompt that no cache has: 0.6 s of an engine of `ENGINE_CLASS`, which has room for ten of them.
ENGINE_CLASS, PROMPT_TOKENS, ANSWER_TOKENS = "a30", 3_000, 16
CAPACITY_PER_S = 1.6
#: Per GB that leaves a region and per million tokens computed there, in dollars of nobody's price list.
PRICES = {"ashburn": (0.05, 0.10), "frankfurt": (0.05, 0.12), "seoul": (0.08, 0.16)}
DOCUMENTS = 8
#: Binds a request to a region, by a rule of every picker; how many are sent, one at a time.
BOUND_HEADER, BOUND = "x-demo-region", 30
BOUND_RULES = [{"allow": [name], "header": BOUND_HEADER, "value": name} for name in LINKS_MS]
#: 72 KB, and how many of them at which times. The pauses end connections that are closed after five seconds,
#: and slow others down where kernels do so. The first two fill the cache and open connections, uncounted.
LONG_TOKENS, WARM_UP = 18_000, 9
BURSTS = ((0.0, 1), (7.0, 8), (9.0, 4), (15.5, 8), (17.0, 4))


class Region(Stack):
    """A picker and an Envoy in a region; entered there.

    Args:
        place: where.
        folder: configuration and logs.
        sections: of the picker's configuration.
        regions: whose engines are its pool.
        network: of all.
        tier: arguments of `epp envoy render`.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        sections: Mapping[str, Any],
        *,
        pool: Mapping[str, str],
        tier: tuple[str, ...] = (),
    ) -> None:
        listen = dict(zip(("grpc", "http", "first_token"), _loopback(PICKER_PORT), strict=True))
        super().__init__(folder, (), {"listen": listen, **sections})
        self._place, self._pool, self._tier = place, pool, tier

    @property
    def url(self) -> str:
        """Return where clients send requests."""
        return f"http://{self._place.address}:{ENVOY_PORT}"

    async def _start_replicas(self) -> None:
        for name, address in self._pool.items():
            self.endpoints[name] = EndpointSpec(
                address=f"{address}:{ENGINE_PORT}", region=name, engine_class=ENGINE_CLASS
            )
        self.write_pool(self.endpoints)

    async def _until_measured(self, picker: Child) -> None:
        """Leave it to `measured`: other regions may not be there yet."""

    async def measured(self, count: int) -> None:
        """Wait until the picker knows the round trip to so many endpoints and regions."""
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self.picker_url}/metrics") as answer:
                    if (await answer.text()).count("epp_endpoint_rtt_seconds{") >= count:
                        return
                await asyncio.sleep(0.2)

    async def start_envoy(self, **_: Any) -> None:
        """Start it where it is to be, as it was given."""
        await self.run_envoy("envoy", *self._tier, "--listen", f"{self._place.address}:{ENVOY_PORT}")
        await connect_ms(self._place.address, ENVOY_PORT)

    async def run_envoy(self, name: str, *words: str) -> None:
        """Render an Envoy's configuration as an operator would, and run it."""
        file, config = self.folder / f"{name}.yaml", self.folder / "epp.yaml"
        command = (*EPP, "envoy", "render", "--config", str(config), *words, "--out", str(file))
        rendering = await asyncio.create_subprocess_exec(*command, "--admin-port", "0")
        if await rendering.wait():
            raise SystemExit(2)
        options = ["--config-path", str(file), "--concurrency", "1", "--log-level", "warning"]
        await self._run(name, [*options, "--disable-hot-restart"], (str(find_envoy()),))


def _loopback(first: int) -> tuple[str, str, str]:
    return f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}", f"127.0.0.1:{first + 2}"


class Relay(Region):
    """A region's relay of the picker for all, alone."""

    async def _start(self) -> None:
        await self._start_replicas()
        (self.folder / "epp.yaml").write_bytes(msgspec.yaml.encode(self._sections))
        listen = ("--listen", f"{self._place.address}:{PEERS_PORT}")
        await self.run_envoy("relay", "--tier", f"relay:{self._place.region}", *listen)


class Phase(NamedTuple):
    """A load on all regions.

    Attributes:
        name: names its row.
        rates: by region, as a share of its capacity.
        cached: requests of `BUSY` ask for what `HOLDER` has in its cache, as far as there are documents.
    """

    name: str
    rates: Mapping[str, float]
    cached: bool = False


HALF = dict.fromkeys(LINKS_MS, 0.5)
SPILL = Phase("spill-over", {**HALF, BUSY: 1.5})
LOCAL = Phase("local", HALF)


class World:
    """Engines, NATS and places of all regions, as an async context manager; pickers come and go in it.

    Args:
        network: joins the regions.
        out: configuration and logs.
        seconds: length of a phase.
    """

    def __init__(self, network: Network, out: Path, seconds: float) -> None:
        self.network, self._out, self._seconds = network, out, seconds
        self.places = {name: Place(network, name) for name in LINKS_MS}
        self.addresses = {name: place.address for name, place in self.places.items()}
        self._exit = AsyncExitStack()
        self._seeds = iter(range(1, 1000))
        self.kept: dict[str, list[RequestResult]] = {}

    async def __aenter__(self) -> Self:
        """Start the engines."""
        make_certificates(self._out)
        for name in ("hash.key", "hop.key"):
            (self._out / name).write_text(secrets.token_hex(32))
        for name, place in self.places.items():
            words = ["lab", "sim", "--model", MODEL, "--host", place.address]
            replica = f"name={name},port={ENGINE_PORT},class={ENGINE_CLASS}"
            engine = Child(f"engine-{name}", [*words, "--replica", replica], self._out)
            await self.enter(place, engine)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all."""
        await self._exit.aclose()
        for place in self.places.values():
            place.end()

    async def enter(self, place: Place, started: Any, stack: AsyncExitStack | None = None) -> Any:
        """Start something in a place, and end it there with the stack, by default with the world."""
        await place.here(started.__aenter__())
        (stack or self._exit).push_async_callback(lambda: place.here(started.__aexit__(None, None, None)))
        return started

    async def federation(self, stack: AsyncExitStack, *, alone: bool) -> dict[str, Region]:
        """Start a picker and an Envoy in each region: one that forwards, or one that knows no other."""
        found = {}
        for name, place in self.places.items():
            folder = self._out / ("nearest" if alone else "regions") / name
            folder.mkdir(parents=True)
            sections: dict[str, Any] = {}
            if not alone:
                nats = Nats(folder, *self._gateway(name))
                await self.enter(place, nats, stack)
                sections = self._sections(name, nats.url)
            tier = () if alone else ("--region", name)
            region = Region(place, folder, sections, pool={name: place.address}, tier=tier)
            found[name] = await self.enter(place, region, stack)
        for name, region in found.items():
            await self.places[name].here(region.measured(1 if alone else len(found)))
        return found

    async def single(self, stack: AsyncExitStack, *, relays: bool) -> dict[str, Region]:
        """Start one picker for all, in the first region; beside relays hosts are set for long links."""
        first, *_ = self.places
        folder = self._out / ("global" if relays else "no-relays")
        sections: dict[str, Any] = {"policy": {"name": "gorgo-ms"}, "regions": BOUND_RULES}
        # The machine is busy with three regions: Envoy waits two seconds for a picker that waits for a core.
        sections["tokens"] = {"budget_ms": 1800}
        for name, place in self.places.items():
            # As docs/multi-region.md sets them, or Linux's defaults.
            self.network.set_kernel(name, "ipv4.tcp_slow_start_after_idle", "0" if relays else "1")
            self.network.initial_window(name, name, 64 if relays else 10)
            if relays:
                sections["relays"] = self._relays(GLOBAL_NAME)
                own = {"relays": self._relays(RELAY_NAME)}
                await self.enter(place, Relay(place, folder / name, own, pool=self.addresses), stack)
        region = Region(self.places[first], folder, sections, pool=self.addresses)
        await self.enter(self.places[first], region, stack)
        await self.places[first].here(region.measured(len(self.places)))
        return dict.fromkeys(self.places, region)

    def _sections(self, name: str, nats_url: str) -> dict[str, Any]:
        return {
            "policy": {"name": "local-first"},
            "nats": {"url": nats_url},
            "prefix": {"secret_file": str(self._out.absolute() / "hash.key")},
            "relays": self._relays(f"{name}.{DOMAIN}"),
            "regions": BOUND_RULES,
            "federation": {
                "region": name,
                "key_file": str(self._out.absolute() / "hop.key"),
                "prices": PRICES,
            },
        }

    def _relays(self, certificate: str) -> dict[str, Any]:
        folder = self._out.absolute()
        return {
            "regions": {name: f"{address}:{PEERS_PORT}" for name, address in self.addresses.items()},
            "connections": 2,
            "ca_file": str(folder / "ca.crt"),
            "cert_file": str(folder / f"{certificate}.crt"),
            "key_file": str(folder / f"{certificate}.key"),
        }

    def _gateway(self, name: str) -> Iterator[str]:
        yield f"server_name: {name}"
        others = ", ".join(
            f'{{name: {other}, url: "nats://{address}:{GATEWAY_PORT}"}}'
            for other, address in self.addresses.items()
        )
        here = f"{self.addresses[name]}:{GATEWAY_PORT}"
        yield f"gateway {{ name: {name}, listen: {here}, gateways: [{others}] }}"

    async def send(self, phase: Phase, regions: Mapping[str, Region], title: str) -> list[str]:
        """Send a phase's load from all regions; its row."""
        seed = next(self._seeds)
        documents = [-(seed * 100 + number) for number in range(DOCUMENTS)] if phase.cached else []
        if documents:
            # One after another, so that all stay.
            warm = [request(900.0 * place, [number]) for place, number in enumerate(documents)]
            await self._from(HOLDER, regions, warm)
            await asyncio.sleep(2.0)  # until summaries tell
        sent = {name: self.network.sent_bytes(name) for name in self.places}
        tokens = await self._computed()
        load = {
            name: poisson(
                rate * CAPACITY_PER_S, self._seconds, f"{phase.name} {name}", seed, documents * (name == BUSY)
            )
            for name, rate in phase.rates.items()
        }
        runs = (self._from(name, regions, requests) for name, requests in load.items())
        results = dict(zip(load, await asyncio.gather(*runs), strict=True))
        after = await self._computed()
        moved = {name: self.network.sent_bytes(name) - before for name, before in sent.items()}
        cost = sum(
            PRICES[name][0] * moved[name] / 1e9 + PRICES[name][1] * (after[name] - tokens[name]) / 1e6
            for name in self.places
        )
        self.kept |= {f"{title}, {phase.name}, {name}": found for name, found in results.items()}
        return [title, phase.name, *row(results, load, documents), *money(moved, cost)]

    async def send_long(self, regions: Mapping[str, Region], name: str, title: str) -> list[str]:
        """Send long prompts, cached, from the first region to one; their row."""
        first, *_ = self.places
        load = [request(1e3 * at_s, [8], LONG_TOKENS) for at_s, count in BURSTS for _ in range(count)]
        found = await self._from(first, regions, load, headers={BOUND_HEADER: name})
        counted = {name: found[WARM_UP:]}
        self.kept |= {f"{title}, long prompts, {name}": found}
        return [title, f"72 KB to {name}", *row(counted, {}, ()), "", ""]

    async def forward_adds_ms(self, regions: Mapping[str, Region], origin: str) -> tuple[float, float]:
        """Measure what a forward to `HOLDER` adds to the median TTFT there, and the round trip; ms."""
        load = [request(250.0 * place, [7], tokens=64) for place in range(BOUND)]
        medians = []
        for name in (HOLDER, origin):
            found = await self._from(name, regions, load, headers={BOUND_HEADER: HOLDER})
            if {result.served_by for result in found} != {HOLDER}:
                raise EppError(f"requests bound to {HOLDER} were answered elsewhere")
            # The first few open connections.
            medians.append(float(np.median([result.ttft_ms or np.inf for result in found[BOUND // 3 :]])))
        return medians[1] - medians[0], await self.places[origin].here(connect_ms(self.addresses[HOLDER]))

    async def _from(
        self,
        name: str,
        regions: Mapping[str, Region],
        requests: list[TraceRequest],
        headers: Mapping[str, str] | None = None,
    ) -> list[RequestResult]:
        options = LoadOptions(base_url=regions[name].url, model=MODEL, headers=headers or {})
        return await self.places[name].here(run_load(requests, options))

    async def _computed(self) -> dict[str, float]:
        """Count the prompt tokens that each region's engine has taken so far."""

        async def ask(address: str) -> float:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{address}:{ENGINE_PORT}/metrics") as answer,
            ):
                lines = (await answer.text()).splitlines()
            return sum(
                float(line.split()[-1]) for line in lines if line.startswith("vllm:prompt_tokens_total")
            )

        return {name: await place.here(ask(place.address)) for name, place in self.places.items()}


def request(at_ms: float, blocks: Sequence[int], tokens: int = PROMPT_TOKENS) -> TraceRequest:
    """Make a request with a prompt that has one block."""
    name = f"{blocks[-1]}"
    return TraceRequest(
        at_ms=at_ms,
        session=name,
        user=name,
        prompt_tokens=tokens,
        output_tokens=ANSWER_TOKENS,
        block_ids=tuple(blocks),
        block_tokens=tokens,
    )


async def connect_ms(address: str, port: int = ENGINE_PORT) -> float:
    """Measure the round trip to who listens, or will: the median of a few connects."""
    took = list[float]()
    while len(took) < BOUND // 3:
        began_s = time.perf_counter()
        with contextlib.suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection(address, port)
            took.append(1e3 * (time.perf_counter() - began_s))
            writer.close()
        await asyncio.sleep(0.1)
    return float(np.median(took))


def poisson(
    per_s: float, seconds: float, name: str, seed: int, documents: Sequence[int]
) -> list[TraceRequest]:
    """Make a load: at times by its name, prompts that no cache has, with the documents among them."""
    random = np.random.default_rng([*name.encode()])
    times = np.cumsum(random.exponential(1.0 / per_s, int(2 * per_s * seconds) + 10))
    times = times[times < seconds]
    number = (seed << 40) + int(random.integers(1, 1 << 40))
    # From a quarter on: by then there is no room left.
    spread = np.linspace(len(times) / 4, len(times) - 1, len(documents)).astype(int).tolist()
    known = dict(zip(spread, documents, strict=True))
    return [request(1e3 * at, [known.get(place, number + place)]) for place, at in enumerate(times.tolist())]


def row(
    results: Mapping[str, Sequence[RequestResult]],
    load: Mapping[str, Sequence[TraceRequest]],
    documents: Sequence[int],
) -> list[str]:
    """Sum up a phase: requests, failures, latencies with intervals, where they were served."""
    everything = [result for found in results.values() for result in found]
    good = [result for result in everything if result.ok]
    away = sum(result.served_by not in ("", name) for name, found in results.items() for result in found)
    told = f"{away}"
    if documents:
        asked = [
            result.served_by
            for result, one in zip(results[BUSY], load[BUSY], strict=True)
            if one.block_ids[0] in documents
        ]
        told += f", of {len(asked)} documents {Counter(asked)[HOLDER]} in {HOLDER}"
    ttft_ms = np.array([result.ttft_ms for result in good if result.ttft_ms is not None])
    e2e_ms = np.array([result.e2e_ms for result in good])
    return [
        str(len(everything)),
        str(len(everything) - len(good)),
        with_interval(ttft_ms, 50),
        with_interval(ttft_ms, 95),
        with_interval(e2e_ms, 95),
        told,
    ]


def with_interval(values: np.ndarray[Any, np.dtype[np.float64]], q: float) -> str:
    """Write a percentile with its bootstrap interval of 95 %."""
    random = np.random.default_rng(0)
    drawn = [percentile(random.choice(values, len(values)), q) for _ in range(1000)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{percentile(values, q):.0f} [{low:.0f}, {high:.0f}]"


def money(moved: Mapping[str, int], cost: float) -> list[str]:
    """Write what has left the regions, and what all of it costs."""
    return [f"{sum(moved.values()) / 1e3:.0f}", f"{cost:.4f}"]


def make_certificates(folder: Path) -> None:
    """Write an authority, and a certificate and key for each region and for both sides of relays."""
    algorithm = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    authority = (str(folder / "ca.crt"), str(folder / "ca.key"))
    _openssl("req", "-x509", *algorithm, "-subj", "/CN=demo", "-out", authority[0], "-keyout", authority[1])
    for name in (*(f"{region}.{DOMAIN}" for region in LINKS_MS), GLOBAL_NAME, RELAY_NAME):
        files = ("-out", str(folder / f"{name}.crt"), "-keyout", str(folder / f"{name}.key"))
        signed = ("-CA", authority[0], "-CAkey", authority[1], "-addext", f"subjectAltName=DNS:{name}")
        _openssl("req", "-x509", *algorithm, "-subj", f"/CN={name}", *signed, *files)


def _openssl(*words: str) -> None:
    command = (shutil.which("openssl") or "openssl", *words)
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # names of ours


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo, or report what is missing for it."""
    parser = example_parser("regions", __doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of a phase (%(default)s)")
    parser.add_argument("--only", choices=("regions", "nearest", "global"), help="leave the others out")
    parser.add_argument("--loss", type=float, default=0.0, help="percent lost on each link (%(default)s)")
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    return run_example(parser, show, argv, out="demo-regions-out")


def show(arguments: argparse.Namespace) -> int:
    """Run all, and print a row for each phase."""
    table = Table("pickers", "phase", "requests", "failed", "TTFT p50", "TTFT p95", "E2E p95", "elsewhere")
    for name in ("KB between", "$"):
        table.add_column(name)
    table.title = "ms with 95 % intervals; elsewhere: served by another region than the client's"
    links = {name: Shape(rtt_ms / 2, loss=arguments.loss / 100.0) for name, rtt_ms in LINKS_MS.items()}
    with Network(links, routed=True) as network:
        added = asyncio.run(run_all(arguments, network, table.add_row))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    for origin, (ms, rtt_ms) in added.items():
        beyond = f"{ms - rtt_ms:+.1f} beside a connect's {rtt_ms:.1f}"
        console.print(f"A forward from {origin} to {HOLDER} adds {ms:.1f} ms to the first token: {beyond}.")
    return 0


async def run_all(
    arguments: argparse.Namespace, network: Network, add: Callable[..., None]
) -> dict[str, tuple[float, float]]:
    """Run the regions with all phases, then what they are compared with; what forwards add, by origin."""
    added = dict[str, tuple[float, float]]()
    async with World(network, arguments.out, arguments.seconds) as world:

        async def phases(title: str, regions: Mapping[str, Region], *phases: Phase) -> None:
            for phase in phases:
                add(*await world.send(phase, regions, title))

        if arguments.only in (None, "regions"):
            async with AsyncExitStack() as stack:
                regions = await world.federation(stack, alone=False)
                for origin in (name for name in regions if name != HOLDER):
                    added[origin] = await world.forward_adds_ms(regions, origin)
                # The holder keeps what it holds only while it has little else to do.
                pull = Phase("prefix pull", {**SPILL.rates, HOLDER: 0.1}, cached=True)
                await phases("regions", regions, LOCAL, SPILL, pull)
                network.change(BUSY, cut=True)
                await phases("regions", regions, Phase(f"{BUSY} cut off", HALF))
                network.change(BUSY, cut=False)
                await phases("regions", regions, Phase("healed", SPILL.rates))
        if arguments.only in (None, "nearest"):
            async with AsyncExitStack() as stack:
                await phases("nearest only", await world.federation(stack, alone=True), LOCAL, SPILL)
        if arguments.only in (None, "global"):
            for title, relays in (("no relays", False), ("one for all", True)):
                async with AsyncExitStack() as stack:
                    regions = await world.single(stack, relays=relays)
                    for name in regions:
                        add(*await world.send_long(regions, name, title))
                    if relays:
                        await phases(title, regions, LOCAL, SPILL)
        (arguments.out / "results.json").write_bytes(msgspec.json.encode(world.kept))
    return added


if __name__ == "__main__":
    sys.exit(main())
