"""The demo's fleet of different models behind one name: replicas, picker, Envoy, ready or an error."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import aiohttp

from epp.config.address import split_address
from epp.config.pool import EndpointSpec, dump_pool
from epp.demo.child import Child
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings
from epp.errors import EppError
from epp.sim.a100 import A100_MODELS

if TYPE_CHECKING:
    from pathlib import Path

#: What clients call all of them.
MODEL = "chat"
_START_S = 60.0
#: Envoy hands its last reports over within this time.
_LAST_REPORTS_S = 0.5
_ADDRESS = re.compile(r"^(?P<name>\S+): http://(?P<address>\S+) ", re.MULTILINE)


class LaarFleet:
    """Everything that serves, as an async context manager.

    Args:
        folder: configuration, logs and records of this fleet.
        policy: the picker's policy.
        shared: folder with ``truth.yaml`` and ``capability.yaml``.

    Attributes:
        url: where clients send requests.
        picker_url: the picker's HTTP side.
    """

    def __init__(self, folder: Path, policy: str, shared: Path) -> None:
        self._folder, self._policy, self._shared = folder, policy, shared.absolute()
        self._exit = AsyncExitStack()
        self.url = self.picker_url = ""

    async def __aenter__(self) -> Self:
        """Start in order: replicas, picker, Envoy.

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
        """Stop all of it, last started first."""
        await asyncio.sleep(_LAST_REPORTS_S)
        await self._exit.aclose()

    async def _start(self) -> None:
        addresses = await self._start_replicas()
        pool = [
            EndpointSpec(address=addresses[name], engine_class=name, models={MODEL: name})
            for name in (cls.name for cls in A100_MODELS)
        ]
        (self._folder / "endpoints.yaml").write_bytes(dump_pool(pool))
        listening = await self._start_picker()
        host, port = split_address(listening["grpc"])
        settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in pool),
            listener_port=0,
            admin_port=0,
            picker_host=host,
            picker_port=port,
            first_token_port=split_address(listening["first_token"])[1],
            served_model_header=True,
        )
        envoy = await self._exit.enter_async_context(EnvoyProcess(settings, folder=self._folder / "envoy"))
        self.url, self.picker_url = envoy.listener_url, f"http://{listening['http']}"

    async def _start_replicas(self) -> dict[str, str]:
        arguments = ["sim", "serve", "--accuracy", str(self._shared / "truth.yaml")]
        for cls in A100_MODELS:
            arguments += ["--replica", f"name={cls.name},port=0,class={cls.name},model={cls.name}"]
        child = await self._exit.enter_async_context(Child("replicas", arguments, self._folder))
        while True:
            child.check()
            found = {match["name"]: match["address"] for match in _ADDRESS.finditer(child.log())}
            if len(found) == len(A100_MODELS):
                return found
            await asyncio.sleep(0.05)

    async def _start_picker(self) -> dict[str, str]:
        config, ready = self._folder / "epp.yaml", self._folder / "ready.json"
        config.write_text(
            "# Written by `epp laar demo`; works with `epp serve --config`, too.\n"
            "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0', first_token: '127.0.0.1:0'}\n"
            "pool: {file: endpoints.yaml, warmup_s: 0}\n"
            f"policy: {{name: {self._policy}}}\n"
            f"capability: {{file: {json.dumps(str(self._shared / 'capability.yaml'))}, tell_model: true}}\n"
            "records: {folder: records}\n"
            "probe: {interval_s: 0.5}\n"
            "drain_s: 1\n"
        )
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--config", str(config), "--ready-file", str(ready)]
        child = await self._exit.enter_async_context(Child("picker", arguments, self._folder))
        while not ready.exists():
            child.check()
            await asyncio.sleep(0.05)
        listening: dict[str, str] = json.loads(ready.read_text())
        async with aiohttp.ClientSession() as session:
            while True:
                child.check()
                async with session.get(f"http://{listening['http']}/metrics") as answer:
                    if (await answer.text()).count("epp_endpoint_rtt_seconds{") == len(A100_MODELS):
                        return listening
                await asyncio.sleep(0.1)
