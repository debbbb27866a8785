"""Three regions on one machine, each with a link and a simulated replica, reached by one tier or by two.

The demonstration's own process lives in the hub, where clients, the picker and the global Envoy are.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import msgspec

from epp.config.pool import EndpointSpec
from epp.config.relays import Relays
from epp.envoy.process import find_envoy, version_of
from epp.envoy.render import render_relay, write
from epp.envoy.settings import FULL_FEATURED, EnvoySettings
from epp.errors import EppError
from epp.lab.demo.child import EPP, Child
from epp.lab.demo.stack import MODEL, REGIONS, Stack
from epp.lab.wan.network import HUB

if TYPE_CHECKING:
    from pathlib import Path

    from epp.lab.wan.network import Network

REGION_HEADER = "x-demo-region"
"""Binds a request to a region, by a rule of the picker's."""

ENGINE_PORT, RELAY_PORT = 8000, 8443


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
        words = ("sim", "serve", "--model", MODEL, "--host", self._network.address(region))
        program = (*EPP, *words, "--replica", f"name={region},port={ENGINE_PORT}")
        await self._run_inside(region, f"replica-{region}", program, ENGINE_PORT)

    def _set_kernels(self) -> None:
        """Set what Linux does unless told otherwise, or what docs/multi-region.md has set for long links."""
        slow_after_idle, segments = ("0", 64) if self._two_tiers else ("1", 10)
        for place in (HUB, *(region.name for region in REGIONS)):
            self._network.set_kernel(place, "ipv4.tcp_slow_start_after_idle", slow_after_idle)
        for region in REGIONS:
            self._network.initial_window(HUB, region.name, segments)
            self._network.initial_window(region.name, region.name, segments)

    async def _run_inside(self, region: str, name: str, program: tuple[str, ...], port: int) -> Child:
        """Run a program in a region's namespace, once somebody listens on its port."""
        ip, *words = self._network.command(region, *program)
        child = Child(name, words, self.folder, (shutil.which(ip) or ip,))
        await self._exit.enter_async_context(child)
        while True:
            child.check()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self._network.address(region), port)
                writer.close()
                return child
            await asyncio.sleep(0.1)


def make_certificate(relays: Relays) -> None:
    """Write the certificate that both tiers have and that is its own authority, and its key.

    Raises:
        EppError: openssl is missing, or fails.
    """
    names = f"subjectAltName=DNS:{relays.global_name},DNS:{relays.relay_name}"
    files = ("-out", relays.cert_file, "-keyout", relays.key_file)
    algorithm = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    subject = ("-days", "2", "-subj", "/CN=demo", "-addext", names)
    command = (shutil.which("openssl") or "openssl", "req", "-x509", *algorithm, *files, *subject)
    try:
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # names of ours
    except (OSError, subprocess.CalledProcessError) as error:
        raise EppError(f"no certificate can be made with openssl: {error}") from error
