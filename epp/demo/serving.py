"""What serves in a demo: started in order, ready or an error, stopped in order; the parts that fleets share.

Owns the order and the waiting. Which replicas, which configuration and which Envoy is a fleet's own.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import aiohttp

from epp.config.address import split_address
from epp.demo.child import Child
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.config.pool import EndpointSpec

#: Envoy sends its access log ten times a second, and the recorder writes twenty times.
LAST_REPORTS_S = 0.3
_ADDRESS = re.compile(r"^(?P<name>\S+): http://(?P<address>\S+)", re.MULTILINE)
_POLL_S = 0.05
#: Where every demo's picker listens: the system chooses the ports.
LISTEN = "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0', first_token: '127.0.0.1:0'}\n"


class Serving:
    """Replicas, a picker, Envoy: an async context manager.

    Args:
        folder: configuration, logs and records.
        start_s: longest wait until all of it is ready.

    Attributes:
        folder: as given.
        url: where clients send requests.
        picker_url: the picker's HTTP side.
    """

    def __init__(self, folder: Path, start_s: float) -> None:
        self.folder, self._start_s = folder, start_s
        self._exit = AsyncExitStack()
        self.url = self.picker_url = ""

    async def __aenter__(self) -> Self:
        """Start in order: replicas, picker, Envoy; all ready when it returns.

        Raises:
            EppError: something did not come up; with the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            async with asyncio.timeout(self._start_s):
                await self._start()
        except TimeoutError:
            await self._exit.aclose()
            raise EppError(
                f"the fleet was not ready within {self._start_s:.0f} s; see {self.folder}"
            ) from None
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all of it, last started first, once Envoy's last reports have reached the picker."""
        await asyncio.sleep(LAST_REPORTS_S)
        await self._exit.aclose()

    async def _start(self) -> None:
        """Start everything, and set the URLs."""
        raise NotImplementedError

    async def _replicas(self, arguments: list[str], count: int) -> dict[str, str]:
        """Addresses by name of ``epp sim serve`` with these arguments, once all of them listen."""
        child = await self._exit.enter_async_context(
            Child("replicas", ["sim", "serve", *arguments], self.folder)
        )
        while True:
            child.check()
            found = {match["name"]: match["address"] for match in _ADDRESS.finditer(child.log())}
            if len(found) == count:
                return found
            await asyncio.sleep(_POLL_S)

    async def _picker(self, config: str, count: int) -> dict[str, str]:
        """Addresses by purpose of ``epp serve``, once it has measured so many replicas.

        Before that, its first requests would not be priced fairly.
        """
        file, ready = self.folder / "epp.yaml", self.folder / "ready.json"
        file.write_text(config)
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--config", str(file), "--ready-file", str(ready)]
        child = await self._exit.enter_async_context(Child("picker", arguments, self.folder))
        while not ready.exists():
            child.check()
            await asyncio.sleep(_POLL_S)
        listening: dict[str, str] = json.loads(ready.read_text())
        async with aiohttp.ClientSession() as session:
            while True:
                child.check()
                async with session.get(f"http://{listening['http']}/metrics") as answer:
                    if (await answer.text()).count("epp_endpoint_rtt_seconds{") == count:
                        return listening
                await asyncio.sleep(2 * _POLL_S)

    async def _envoy(
        self, pool: Sequence[EndpointSpec], listening: Mapping[str, str], *, served_model_header: bool = False
    ) -> EnvoyProcess:
        """Envoy before the pool, asking the picker of these addresses; the URLs are set."""
        settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in pool),
            eds_path=str(self.folder.absolute() / "eds.json"),
            listener_port=0,
            admin_port=0,
            picker_host=split_address(listening["grpc"])[0],
            picker_port=split_address(listening["grpc"])[1],
            first_token_port=split_address(listening["first_token"])[1],
            served_model_header=served_model_header,
        )
        envoy = await self._exit.enter_async_context(EnvoyProcess(settings, folder=self.folder / "envoy"))
        self.url, self.picker_url = envoy.listener_url, f"http://{listening['http']}"
        return envoy
