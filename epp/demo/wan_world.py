"""Three regions on one machine, each with a link and a simulated replica, reached by one tier or by two.

The demonstration's own process lives in the hub, where clients, the picker and the global Envoy are.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import msgspec

from epp.config.address import split_address
from epp.config.pool import EndpointSpec, dump_pool
from epp.config.relays import Relays
from epp.demo.child import EPP, Child
from epp.demo.stack import LISTEN, MODEL, REGIONS, start_picker
from epp.envoy.process import EnvoyProcess, find_envoy, version_of
from epp.envoy.render import render_relay, write
from epp.envoy.settings import FULL_FEATURED, EnvoySettings
from epp.errors import EppError
from epp.wan.network import HUB, Network, Site
from epp.wan.shape import Shape

if TYPE_CHECKING:
    from pathlib import Path

REGION_HEADER = "x-demo-region"
"""Binds a request to a region, by a rule of the picker's."""

TIERS = {"one tier, as most are set up": False, "two tiers, kernel set": True}
"""Ways of reaching engines, and whether there are relays."""

ENGINE_PORT, RELAY_PORT = 8000, 8443
_START_S = 60.0
#: What Linux does unless told otherwise, and what is set on hosts with long links (docs/multi-region.md).
_SLOW_AFTER_IDLE = "ipv4.tcp_slow_start_after_idle"
_USUAL_SEGMENTS, _WIDE_SEGMENTS = 10, 64


def network(loss: float = 0.0) -> Network:
    """Describe the demonstration's network, which loses this share of packets in each direction."""
    return Network([Site(region.name, Shape(region.rtt_ms / 2, loss)) for region in REGIONS])


class Route:
    """Replicas, picker, relays and global Envoy: an async context manager, entered inside the hub.

    Args:
        made: the network.
        folder: configuration and logs.
        two_tiers: whether there is a relay in each region, and hosts are set for long links.

    Attributes:
        envoy: the global Envoy.
        relays: by region.
    """

    def __init__(self, made: Network, folder: Path, *, two_tiers: bool) -> None:
        self.network, self._folder, self._two_tiers = made, folder, two_tiers
        self._exit = AsyncExitStack()
        self.relays: dict[str, Child] = {}
        self.envoy: EnvoyProcess
        self._settings: EnvoySettings

    async def __aenter__(self) -> Self:
        """Start them.

        Raises:
            EppError: something did not come up.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._set_kernels()
        async with AsyncExitStack() as started:
            self._exit = started
            try:
                async with asyncio.timeout(_START_S):
                    await self._start()
            except TimeoutError:
                raise EppError(f"not ready within {_START_S:.0f} s; see {self._folder}") from None
            self._exit = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop them, last started first."""
        await self._exit.aclose()

    async def start_relay(self, region: str) -> None:
        """Start a region's relay, again after it was killed."""
        binary = find_envoy()
        settings = replace(
            self._settings,
            relays=self._relays(),
            listener_host=self.network.address(region),
            envoy_version=min(FULL_FEATURED, await version_of(binary)),
        )
        file = self._folder / f"relay-{region}.yaml"
        write(file, render_relay(settings, region))
        options = ("--config-path", str(file), "--concurrency", "1", "--log-level", "warning")
        program = (str(binary), *options, "--disable-hot-restart")
        self.relays[region] = await self._run_inside(region, f"relay-{region}", program, RELAY_PORT)

    def _set_kernels(self) -> None:
        for place in (HUB, *(region.name for region in REGIONS)):
            self.network.kernel(place, {_SLOW_AFTER_IDLE: "0" if self._two_tiers else "1"})
        segments = _WIDE_SEGMENTS if self._two_tiers else _USUAL_SEGMENTS
        for region in REGIONS:
            self.network.initial_window(HUB, region.name, segments)
            self.network.initial_window(region.name, region.name, segments)

    async def _start(self) -> None:
        for region in REGIONS:
            spec = f"name={region.name},port={ENGINE_PORT}"
            words = ("sim", "serve", "--model", MODEL, "--host", self.network.address(region.name))
            program = (*EPP, *words, "--replica", spec)
            await self._run_inside(region.name, f"replica-{region.name}", program, ENGINE_PORT)
        pool = [
            EndpointSpec(address=f"{self.network.address(region.name)}:{ENGINE_PORT}", region=region.name)
            for region in REGIONS
        ]
        (self._folder / "endpoints.yaml").write_bytes(dump_pool(pool))
        if self._two_tiers:
            make_certificate(self._folder)
        config = {
            "listen": LISTEN,
            "pool": {"file": "endpoints.yaml", "warmup_s": 0},
            "policy": {"name": "least-request"},
            "regions": [
                {"allow": [region.name], "header": REGION_HEADER, "value": region.name} for region in REGIONS
            ],
            "relays": msgspec.to_builtins(self._relays()),
            "records": {"folder": "records"},
            "drain_s": 1,
        }
        _, listening = await start_picker(self._exit, self._folder, config)
        host, port = split_address(listening["grpc"])
        self._settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in pool),
            listener_port=0,
            admin_port=0,
            picker_host=host,
            picker_port=port,
            # The machine is busy with three regions: a picker that waits for a core is not a dead one.
            message_timeout_ms=2000,
            first_token_port=split_address(listening["first_token"])[1],
            preconnect_ratio=1.0,
            relays=self._relays() if self._two_tiers else None,
        )
        if self._two_tiers:
            for region in REGIONS:
                await self.start_relay(region.name)
        envoy = EnvoyProcess(self._settings, folder=self._folder / "envoy")
        self.envoy = await self._exit.enter_async_context(envoy)

    def _relays(self) -> Relays:
        if not self._two_tiers:
            return Relays()
        folder = self._folder.absolute()
        return Relays(
            regions={r.name: f"{self.network.address(r.name)}:{RELAY_PORT}" for r in REGIONS},
            ca_file=str(folder / "tls.crt"),
            cert_file=str(folder / "tls.crt"),
            key_file=str(folder / "tls.key"),
        )

    async def _run_inside(self, region: str, name: str, program: tuple[str, ...], port: int) -> Child:
        """Run a program in a region's namespace, once somebody listens on its port."""
        ip, *words = self.network.command(region, *program)
        child = Child(name, words, self._folder, (shutil.which(ip) or ip,))
        await self._exit.enter_async_context(child)
        while True:
            child.check()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self.network.address(region), port)
                writer.close()
                return child
            await asyncio.sleep(0.1)


def make_certificate(folder: Path) -> None:
    """Write ``tls.crt`` and ``tls.key``, which both tiers have and which is its own authority.

    Raises:
        EppError: openssl is missing, or fails.
    """
    names = f"subjectAltName=DNS:{Relays().global_name},DNS:{Relays().relay_name}"
    files = ("-out", str(folder / "tls.crt"), "-keyout", str(folder / "tls.key"))
    algorithm = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    command = (
        "openssl",
        "req",
        "-x509",
        *algorithm,
        *files,
        "-days",
        "2",
        "-subj",
        "/CN=demo",
        "-addext",
        names,
    )
    try:
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # names of ours
    except (OSError, subprocess.CalledProcessError) as error:
        raise EppError(f"no certificate can be made with openssl: {error}") from error
