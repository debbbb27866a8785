"""Three regions on one machine: a namespace, a link and a simulated replica each; and ways of reaching them.

Owns what stays (`World`: namespaces, replicas, certificates) and what changes with each way (`Path`: picker,
Envoys, kernel settings). The demonstration's own process lives in the hub, where clients, the picker and the
global Envoy are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import msgspec
import yaml

from epp.config.address import split_address
from epp.config.pool import EndpointSpec, dump_pool
from epp.config.relays import Relays
from epp.demo import certificates
from epp.demo.child import EPP, Child
from epp.demo.stack import REGIONS
from epp.envoy.process import EnvoyProcess, find_envoy, version_of
from epp.envoy.render import render_relay, write
from epp.envoy.settings import FULL_FEATURED, EnvoySettings
from epp.errors import EppError
from epp.wan.network import HUB, Network, Site
from epp.wan.shape import Shape

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "demo-model"
REGION_HEADER = "x-demo-region"
"""Binds a request to a region, by a rule of the picker's."""

ENGINE_PORT, RELAY_PORT = 8000, 8443
_START_S = 60.0
#: What Linux does unless told otherwise, and what is set on hosts with long links (docs/multi-region.md).
_SLOW_AFTER_IDLE = "ipv4.tcp_slow_start_after_idle"
_USUAL_SEGMENTS, _WIDE_SEGMENTS = 10, 64


@dataclass(frozen=True, slots=True)
class Way:
    """One way of reaching engines over long links.

    Attributes:
        said: what it is, for tables.
        connections: HTTP/2 connections to each relay; 0 for no relays, so one tier.
        tuned: hosts do not slow connections down after idle times, and routes over the links open them wider.
        preconnect_ratio: one tier's connections held ready for each request in flight.
        idle_s: one tier's life of an idle connection.
        compression: of bodies between the tiers.
    """

    said: str
    connections: int = 0
    tuned: bool = False
    preconnect_ratio: float = 1.0
    idle_s: float = 4.0
    compression: str = "none"


WAYS = {
    # Engines' servers close idle connections after 5 s (uvicorn, so vLLM and SGLang); Envoy has to be
    # earlier.
    "one-tier": Way("one tier, as most are set up"),
    "one-tier-tuned": Way("one tier, kept alive, ahead, kernel set", 0, True, 1.5, 590.0),
    "two-tier-plain": Way("two tiers, kernel's defaults", 8),
    "two-tier": Way("two tiers, kernel set", 8, True),
    **{f"two-tier-{count}": Way(f"two tiers, {count} connections", count, True) for count in (1, 2, 4)},
    "two-tier-gzip": Way("two tiers, bodies in gzip", 8, True, compression="gzip"),
}


class World:
    """Namespaces, links, a replica in each, certificates: an async context manager, entered in the hub.

    Args:
        network: made already; its regions are those of `REGIONS`.
        folder: logs and certificates.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the replicas.

        Raises:
            EppError: one did not come up.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        certificates.make(self.folder, {"global": Relays().global_name, "relay": Relays().relay_name})
        try:
            async with asyncio.timeout(_START_S):
                for region in REGIONS:
                    await self._replica(region.name)
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop them."""
        await self._exit.aclose()

    def engine(self, region: str) -> str:
        """Address of a region's replica."""
        return f"{self.network.address(region)}:{ENGINE_PORT}"

    def shape(self, loss: float) -> None:
        """Links of their length, losing so many packets in each direction."""
        for site, region in zip(self.network.sites, REGIONS, strict=True):
            self.network.change(site.name, delay_ms=region.rtt_ms / 2, loss=loss)

    def near(self, region: str) -> None:
        """No distance at all, to learn what the engine alone takes."""
        self.network.change(region, delay_ms=0.0, loss=0.0)

    def inside(self, name: str, region: str, program: tuple[str, ...], folder: Path) -> Child:
        """A program in a region's namespace; its first word has to be a whole path."""
        found = shutil.which("ip") or "/usr/sbin/ip"
        command = (found, *self.network.command(region, *program)[1:])
        return Child(f"{name}-{region}", [], folder, command)

    async def _replica(self, region: str) -> None:
        program = (
            *EPP,
            "sim", "serve", "--model", MODEL, "--host", self.network.address(region),
            "--replica", f"name={region},port={ENGINE_PORT},rtt_ms=0",
        )  # fmt: skip
        child = await self._exit.enter_async_context(self.inside("replica", region, program, self.folder))
        await until_open(child, self.network.address(region), ENGINE_PORT)


class Route:
    """Picker, relays and global Envoy of one way: an async context manager, entered inside the hub.

    Args:
        world: where it leads.
        way: how.
        folder: configuration and logs.
        congestion: the kernel's congestion control for connections over the links, its default when empty.

    Attributes:
        envoy: the global Envoy.
        relays: by region.
    """

    def __init__(self, world: World, way: Way, folder: Path, *, congestion: str = "") -> None:
        self._world, self._way, self._folder, self._congestion = world, way, folder, congestion
        self._exit = AsyncExitStack()
        self.relays: dict[str, Child] = {}
        self.envoy: EnvoyProcess

    async def __aenter__(self) -> Self:
        """Start them.

        Raises:
            EppError: something did not come up.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        network = self._world.network
        for place in (HUB, *(site.name for site in network.sites)):
            network.kernel(place, {_SLOW_AFTER_IDLE: "0" if self._way.tuned else "1"})
        segments = _WIDE_SEGMENTS if self._way.tuned else _USUAL_SEGMENTS
        for site in network.sites:
            network.initial_window(HUB, site.name, segments)
            network.initial_window(site.name, site.name, segments)
        try:
            async with asyncio.timeout(_START_S):
                await self._start()
        except TimeoutError:
            await self._exit.aclose()
            raise EppError(f"not ready within {_START_S:.0f} s; see {self._folder}") from None
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop them, last started first."""
        await self._exit.aclose()

    async def start_relay(self, region: str) -> None:
        """Start a region's relay, again after it was killed."""
        child = self._world.inside("relay", region, await self._relay_program(region), self._folder)
        self.relays[region] = await self._exit.enter_async_context(child)
        await until_open(child, self._world.network.address(region), RELAY_PORT)

    def log(self) -> list[dict[str, Any]]:
        """The global Envoy's access log."""
        lines = self.envoy.log_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def _start(self) -> None:
        specs = [
            EndpointSpec(address=self._world.engine(region.name), region=region.name) for region in REGIONS
        ]
        (self._folder / "endpoints.yaml").write_bytes(dump_pool(specs))
        picker = await self._start_picker()
        host, port = split_address(picker["grpc"])
        way = self._way
        self._settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in specs),
            listener_port=0,
            admin_port=0,
            picker_host=host,
            picker_port=port,
            # The machine is busy with three regions: a picker that waits for a core is not a dead one.
            message_timeout_ms=2000,
            first_token_port=split_address(picker["first_token"])[1],
            preconnect_ratio=way.preconnect_ratio,
            upstream_idle_timeout_s=way.idle_s,
            congestion_control=self._congestion,
            access_log=True,
            relays=self._relays("global") if way.connections else None,
        )
        if way.connections:
            for region in REGIONS:
                await self.start_relay(region.name)
        envoy = EnvoyProcess(self._settings, folder=self._folder / "envoy")
        self.envoy = await self._exit.enter_async_context(envoy)

    def _relays(self, who: str) -> Relays:
        network, folder = self._world.network, self._world.folder.absolute()
        return Relays(
            regions={site.name: f"{network.address(site.name)}:{RELAY_PORT}" for site in network.sites},
            connections=self._way.connections,
            ca_file=str(folder / "ca.crt"),
            cert_file=str(folder / f"{who}.crt"),
            key_file=str(folder / f"{who}.key"),
            congestion_control=self._congestion,
            compression="gzip" if self._way.compression == "gzip" else "none",
        )

    async def _relay_program(self, region: str) -> tuple[str, ...]:
        binary = find_envoy()
        settings = replace(
            self._settings,
            relays=self._relays("relay"),
            listener_host=self._world.network.address(region),
            envoy_version=min(FULL_FEATURED, await version_of(binary)),
            access_log=False,
        )
        file = self._folder / f"relay-{region}.yaml"
        write(file, render_relay(settings, region))
        return (
            str(binary), "--config-path", str(file), "--concurrency", "1", "--log-level", "warning",
            "--disable-hot-restart",
        )  # fmt: skip

    async def _start_picker(self) -> dict[str, str]:
        config, ready = self._folder / "epp.yaml", self._folder / "ready.json"
        values: dict[str, Any] = {
            "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "first_token": "127.0.0.1:0"},
            "pool": {"file": "endpoints.yaml", "warmup_s": 0},
            "policy": {"name": "least-request"},
            "regions": [
                {"allow": [region.name], "header": REGION_HEADER, "value": region.name} for region in REGIONS
            ],
            "records": {"folder": "records"},
            "drain_s": 1,
        }
        if self._way.connections:
            values["relays"] = msgspec.to_builtins(self._relays("global"))
        config.write_text(yaml.safe_dump(values))
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--config", str(config), "--ready-file", str(ready)]
        child = await self._exit.enter_async_context(Child("picker", arguments, self._folder))
        while not ready.exists():
            child.check()
            await asyncio.sleep(0.05)
        addresses: dict[str, str] = json.loads(ready.read_text())
        return addresses


def network() -> Network:
    """The demonstration's network, not made yet."""
    return Network([Site(region.name, Shape(region.rtt_ms / 2)) for region in REGIONS])


async def until_open(child: Child, host: str, port: int) -> None:
    """Until somebody listens there.

    Raises:
        EppError: the child ended.
    """
    while True:
        child.check()
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return
        await asyncio.sleep(0.1)
