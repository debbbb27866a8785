"""One fleet of the demo: simulated replicas, a picker with one policy, a real Envoy; fresh each time."""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from epp.config.pool import EndpointSpec, dump_pool
from epp.demo.child import Child
from epp.demo.serving import LISTEN, Serving
from epp.policies.registry import create
from epp.server.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_START_S = 30.0
_DECISION_SUM = re.compile(r"^llm_d_epp_request_processing_duration_seconds_(sum|count) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Region:
    """One simulated replica: its region's name and its round trip from the picker."""

    name: str
    rtt_ms: float


#: Warm round trips behind the published figures of the reference's three regions.
REGIONS = (Region("ashburn", 20.0), Region("frankfurt", 102.0), Region("seoul", 211.0))


class Stack(Serving):
    """Everything that serves, as an async context manager.

    Args:
        folder: configuration, logs and records of this fleet.
        policy: the picker's policy.
        model: model name served.
        regions: one replica each.

    Attributes:
        admin_url: Envoy's admin interface.
        endpoints: the pool, by the names of its replicas.
    """

    def __init__(self, folder: Path, policy: str, model: str, regions: tuple[Region, ...] = REGIONS) -> None:
        super().__init__(folder, _START_S)
        self._policy, self._model, self._regions = policy, model, regions
        self.admin_url = ""
        self.endpoints: dict[str, EndpointSpec] = {}

    async def _start(self) -> None:
        arguments = ["--model", self._model]
        for region in self._regions:
            arguments += ["--replica", f"name={region.name},port=0,rtt_ms={region.rtt_ms}"]
        addresses = await self._replicas(arguments, len(self._regions))
        self.endpoints = {
            region.name: EndpointSpec(
                address=addresses[region.name], region=region.name, engine_class="l40s-x2"
            )
            for region in self._regions
        }
        self.write_pool(self.endpoints)
        (self.folder / "secret").write_text(secrets.token_hex(32))
        listening = await self._picker(self._config(), len(self.endpoints))
        if create(self._policy).weight_specs:
            await self._start_tuner()
        envoy = await self._envoy(list(self.endpoints.values()), listening)
        self.admin_url = envoy.admin_url

    def write_pool(self, names: Iterable[str]) -> None:
        """Replace the pool file: these replicas alone."""
        replace_file(self.folder / "endpoints.yaml", dump_pool([self.endpoints[name] for name in names]))

    def _config(self) -> str:
        return (
            "# Written by `epp demo`; works with `epp serve --config`, too.\n"
            f"{LISTEN}"
            "pool: {file: endpoints.yaml, warmup_s: 2}\n"
            f"policy: {{name: {self._policy}}}\n"
            "records: {folder: records}\n"
            "weights_file: weights.yaml\n"
            "overrides_file: overrides.yaml\n"
            "prefix: {secret_file: secret}\n"
            "probe: {interval_s: 0.5}\n"
            "drain_s: 1\n"
        )

    async def _start_tuner(self) -> None:
        """The second process; it has begun once it has written the weights that it found."""
        weights = self.folder / "weights.yaml"
        arguments = ["tune", "--config", str(self.folder / "epp.yaml")]
        child = await self._exit.enter_async_context(Child("tuner", arguments, self.folder))
        while not weights.exists():
            child.check()
            await asyncio.sleep(0.05)

    async def decisions(self) -> tuple[int, float]:
        """Decisions taken so far and the seconds spent on them."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.picker_url}/metrics") as answer:
            found = dict(_DECISION_SUM.findall(await answer.text()))
        return int(float(found.get("count", 0))), float(found.get("sum", 0.0))
