"""One fleet of the demo: simulated replicas, a picker with one policy, a real Envoy; fresh each time."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import aiohttp

from epp.config.address import split_address
from epp.config.pool import EndpointSpec, dump_pool
from epp.demo.child import Child
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings
from epp.errors import EppError
from epp.policies.registry import create

if TYPE_CHECKING:
    from pathlib import Path

_START_S = 30.0
#: Envoy sends its access log ten times a second, and the recorder writes twenty times.
LAST_REPORTS_S = 0.3
_ADDRESS = re.compile(r"^(?P<name>[\w-]+): http://(?P<address>\S+)", re.MULTILINE)
_DECISION_SUM = re.compile(r"^epp_decision_seconds_(sum|count) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Region:
    """One simulated replica: its region's name and its round trip from the picker."""

    name: str
    rtt_ms: float


#: Warm round trips behind the published figures of the reference's three regions.
REGIONS = (Region("ashburn", 20.0), Region("frankfurt", 102.0), Region("seoul", 211.0))


class Stack:
    """Everything that serves, as an async context manager.

    Args:
        folder: configuration, logs and records of this fleet.
        policy: the picker's policy.
        model: model name served.
        regions: one replica each.

    Attributes:
        url: where clients send requests.
        picker_url: the picker's metrics and decisions.
        admin_url: Envoy's admin interface.
        folder: configuration, logs and records.
    """

    def __init__(self, folder: Path, policy: str, model: str, regions: tuple[Region, ...] = REGIONS) -> None:
        self._folder, self._policy, self._model, self._regions = folder, policy, model, regions
        self._exit = AsyncExitStack()
        self.folder = folder
        self.url = self.picker_url = self.admin_url = ""

    async def __aenter__(self) -> Self:
        """Start in order: replicas, picker, Envoy; all ready when it returns.

        Raises:
            EppError: something did not come up; with the end of its log.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            async with asyncio.timeout(_START_S):
                await self._start()
        except TimeoutError:
            await self._exit.aclose()
            raise EppError(f"the fleet was not ready within {_START_S:.0f} s; see {self._folder}") from None
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all of it, last started first, once Envoy's last reports have reached the picker."""
        await asyncio.sleep(LAST_REPORTS_S)
        await self._exit.aclose()

    async def _start(self) -> None:
        addresses = await self._start_replicas()
        endpoints = [
            EndpointSpec(address=addresses[region.name], region=region.name, engine_class="l40s-x2")
            for region in self._regions
        ]
        (self._folder / "endpoints.yaml").write_bytes(dump_pool(endpoints))
        addresses_of = await self._start_picker()
        if create(self._policy).weight_specs:
            await self._start_tuner()
        host, port = split_address(addresses_of["grpc"])
        settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in endpoints),
            listener_port=0,
            admin_port=0,
            picker_host=host,
            picker_port=port,
            first_token_port=split_address(addresses_of["first_token"])[1],
        )
        envoy = await self._exit.enter_async_context(EnvoyProcess(settings, folder=self._folder / "envoy"))
        self.url, self.picker_url = envoy.listener_url, f"http://{addresses_of['http']}"
        self.admin_url = envoy.admin_url

    async def _start_replicas(self) -> dict[str, str]:
        arguments = ["sim", "serve", "--model", self._model]
        for region in self._regions:
            arguments += ["--replica", f"name={region.name},port=0,rtt_ms={region.rtt_ms}"]
        child = await self._exit.enter_async_context(Child("replicas", arguments, self._folder))
        while True:
            child.check()
            found = {match["name"]: match["address"] for match in _ADDRESS.finditer(child.log())}
            if len(found) == len(self._regions):
                return found
            await asyncio.sleep(0.05)

    async def _start_picker(self) -> dict[str, str]:
        config, ready = self._folder / "epp.yaml", self._folder / "ready.json"
        config.write_text(
            "# Written by `epp demo`; works with `epp serve --config`, too.\n"
            "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0', first_token: '127.0.0.1:0'}\n"
            "pool: {file: endpoints.yaml}\n"
            f"policy: {{name: {self._policy}}}\n"
            "records: {folder: records}\n"
            "weights_file: weights.yaml\n"
            "overrides_file: overrides.yaml\n"
            "prefix: {secret_file: secret}\n"
            "probe: {interval_s: 0.5}\n"
            "drain_s: 1\n"
        )
        (self._folder / "secret").write_text(secrets.token_hex(32))
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--config", str(config), "--ready-file", str(ready)]
        child = await self._exit.enter_async_context(Child("picker", arguments, self._folder))
        while not ready.exists():
            child.check()
            await asyncio.sleep(0.05)
        addresses: dict[str, str] = json.loads(ready.read_text())
        await self._until_measured(child, f"http://{addresses['http']}")
        return addresses

    async def _start_tuner(self) -> None:
        """The second process; it has begun once it has written the weights that it found."""
        weights = self._folder / "weights.yaml"
        arguments = ["tune", "--config", str(self._folder / "epp.yaml")]
        child = await self._exit.enter_async_context(Child("tuner", arguments, self._folder))
        while not weights.exists():
            child.check()
            await asyncio.sleep(0.05)

    async def _until_measured(self, child: Child, url: str) -> None:
        """Wait until the picker has measured every region, so that the first requests are priced fairly."""
        async with aiohttp.ClientSession() as session:
            while True:
                child.check()
                async with session.get(f"{url}/metrics") as answer:
                    text = await answer.text()
                if text.count("epp_endpoint_rtt_seconds{") == len(self._regions):
                    return
                await asyncio.sleep(0.1)

    async def decisions(self) -> tuple[int, float]:
        """Decisions taken so far and the seconds spent on them."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.picker_url}/metrics") as answer:
            found = dict(_DECISION_SUM.findall(await answer.text()))
        return int(float(found.get("count", 0))), float(found.get("sum", 0.0))
