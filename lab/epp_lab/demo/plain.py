"""Replicas behind Envoy alone, which balances without a picker: what a demo compares with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from epp.config.eds import eds_content
from epp.envoy.process import find_envoy
from epp.feeds.files import replace_file
from epp_lab.demo.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from epp_lab.demo.stack import Replica

#: Names of Envoy's balancers, and how it spells them.
BALANCERS = {"least-request": "LEAST_REQUEST", "round-robin": "ROUND_ROBIN"}


class Plain(Stack):
    """Replicas and Envoy, configured by ``plain.yaml``: an async context manager.

    Args:
        folder: configuration and logs.
        replicas: the pool.
        balancer: one of `BALANCERS`.
    """

    def __init__(self, folder: Path, replicas: Sequence[Replica], balancer: str) -> None:
        super().__init__(folder, replicas, {})
        self._balancer, self._url = BALANCERS[balancer], ""
        self._eds_file = folder.absolute() / "eds.json"

    @property
    def url(self) -> str:
        """Return where clients send requests."""
        return self._url

    def write_pool(self, names: Iterable[str]) -> None:
        """Replace Envoy's list of endpoints: these replicas alone."""
        replace_file(self._eds_file, eds_content(self.endpoints[name].endpoint() for name in names))

    async def _start(self) -> None:
        await self._start_replicas()
        text = Path(__file__).with_name("plain.yaml").read_text()
        config, admin = self.folder / "envoy.yaml", self.folder / "admin-address"
        config.write_text(text.replace("EDS_FILE", str(self._eds_file)).replace("LB_POLICY", self._balancer))
        words = ["--config-path", str(config), "--admin-address-path", str(admin), "--concurrency", "1"]
        words += ["--log-level", "warning", "--disable-hot-restart"]
        envoy = await self._run("envoy", words, (str(find_envoy()),))
        await envoy.until(lambda: admin.exists() and admin.read_text())
        async with aiohttp.ClientSession(f"http://{admin.read_text()}") as http:
            while (await http.get("/ready")).status != 200:
                envoy.check()
                await asyncio.sleep(0.05)
            answer = await http.get("/listeners", params={"format": "json"})
            (listener,) = (await answer.json(content_type=None))["listener_statuses"]
        self._url = f"http://127.0.0.1:{listener['local_address']['socket_address']['port_value']}"
