"""What serves in a demo: simulated replicas, the picker, a real Envoy."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from epp.config.address import split_address
from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.child import EPP, Child
from epp.envoy.process import EnvoyProcess, find_envoy
from epp.envoy.settings import EnvoySettings
from epp.errors import EppError
from epp.feeds.files import replace_file
from epp_lab.compare.load import LoadOptions, run_load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.trace import TraceRequest

MODEL = "demo-model"
"""What clients and engines call the model."""

#: Envoy sends its access log five times a second, and the recorder writes twenty times.
LAST_REPORTS_S = 0.3
_START_S = 90.0
_ADDRESS = re.compile(r"^(?P<name>\S+): http://(?P<address>\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Replica:
    """A simulated replica.

    Attributes:
        name: as answers name it.
        rtt_ms: round trip to its region.
        region: its region's name.
        port: where it listens, 0 for any free one.
        kv_tokens: size of its KV cache, 0 for what its class has.
    """

    name: str
    rtt_ms: float = 0.0
    region: str = ""
    port: int = 0
    kv_tokens: int = 0


#: Round trips of open connections behind the published figures of the reference's three regions.
REGIONS = tuple(
    Replica(name, rtt_ms=rtt_ms, region=name)
    for name, rtt_ms in (("ashburn", 20.0), ("frankfurt", 102.0), ("seoul", 211.0))
)


class Stack:
    """Replicas, a picker, Envoy, fresh: an async context manager.

    Args:
        folder: configuration, logs and records.
        replicas: the pool.
        sections: of the picker's configuration, beside those that every demo has.
        endpoints: engines that are there already, by name, instead of replicas.
        envoy: settings that differ from the demos'; None for no Envoy before `start_envoy`.

    Attributes:
        picker_url: the picker's HTTP side.
        envoy: the running Envoy.
        endpoints: the pool, by the replicas' names.
        pids: of all processes, by name.
        listening: the picker's addresses, by listener.
    """

    def __init__(
        self,
        folder: Path,
        replicas: Sequence[Replica],
        sections: Mapping[str, Any],
        *,
        endpoints: Mapping[str, EndpointSpec] | None = None,
        envoy: Mapping[str, Any] | None = {},
    ) -> None:
        self.folder, self._replicas, self._sections = folder, replicas, sections
        self._envoy_settings = envoy
        self._exit = AsyncExitStack()
        self.picker_url = ""
        self.envoy: EnvoyProcess
        self.endpoints = dict(endpoints or {})
        self.pids: dict[str, int] = {}
        self.listening = dict.fromkeys(("grpc", "http", "first_token"), "127.0.0.1:0")

    async def __aenter__(self) -> Self:
        """Start in order: replicas, picker, Envoy; all ready when it returns.

        Raises:
            EppError: something did not come up; with the end of its log.
        """
        find_envoy()  # now, and not when the rest has started
        self.folder.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as started:
            self._exit = started
            try:
                async with asyncio.timeout(_START_S):
                    await self._start()
            except TimeoutError:
                raise EppError(f"not ready within {_START_S:.0f} s; see {self.folder}") from None
            self._exit = started.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all of it, last started first, once Envoy's last reports have reached the picker."""
        await asyncio.sleep(LAST_REPORTS_S)
        await self._exit.aclose()

    @property
    def url(self) -> str:
        """Return where clients send requests."""
        return self.envoy.listener_url

    def load_options(self, **others: Any) -> LoadOptions:
        """Return where clients send loads, with other fields of `LoadOptions`."""
        return LoadOptions(**{"base_url": self.url, "model": MODEL, **others})

    async def send(self, requests: Sequence[TraceRequest]) -> list[RequestResult]:
        """Send a load, and keep what its client saw."""
        results = await run_load(requests, self.load_options())
        (self.folder / "results.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(results))
        return results

    def write_pool(self, names: Iterable[str]) -> None:
        """Replace the pool file: these replicas alone."""
        replace_file(self.folder / "endpoints.yaml", dump_pool([self.endpoints[name] for name in names]))

    async def _start(self) -> None:
        await self._start_replicas()
        (self.folder / "secret").write_text(secrets.token_hex(32))
        picker = await self.start_picker()
        await self._until_measured(picker)
        if self._envoy_settings is not None:
            await self.start_envoy(**self._envoy_settings)

    async def start_picker(self) -> Child:
        """Start the picker; one that was killed listens where it did."""
        config = {
            "listen": self.listening,
            "pool": {"file": "endpoints.yaml", "warmup_s": 0},
            "records": {"folder": "records"},
            "prefix": {"secret_file": "secret"},
            "probe": {"interval_s": 0.5},
            "drain_s": 1,
            **self._sections,
        }
        file, ready = self.folder / "epp.yaml", self.folder / "ready.json"
        file.write_bytes(
            b"# Of a demo; works with `epp serve --config`, too.\n" + msgspec.yaml.encode(config)
        )
        ready.unlink(missing_ok=True)
        words = ["serve", "--config", str(file), "--ready-file", str(ready)]
        picker = await self._run("picker", words)
        await picker.until(ready.exists)
        self.listening = json.loads(ready.read_text())
        self.picker_url = f"http://{self.listening['http']}"
        return picker

    async def _run(self, name: str, words: list[str], program: tuple[str, ...] = EPP) -> Child:
        child = await self._exit.enter_async_context(Child(name, words, self.folder, program))
        self.pids[name] = child.pid
        return child

    async def _start_replicas(self) -> None:
        if self._replicas:
            await self._simulate()
        self.write_pool(self.endpoints)

    async def _simulate(self) -> None:
        words = ["lab", "sim", "--model", MODEL]
        for replica in self._replicas:
            spec = f"name={replica.name},port={replica.port},rtt_ms={replica.rtt_ms:g}"
            words += ["--replica", f"{spec},kv_tokens={replica.kv_tokens}"]
        child = await self._run("replicas", words)
        await child.until(lambda: len(_ADDRESS.findall(child.log())) == len(self._replicas))
        addresses = dict(_ADDRESS.findall(child.log()))
        for replica in self._replicas:
            self.endpoints[replica.name] = EndpointSpec(
                address=addresses[replica.name],
                region=replica.region,
                engine_class="l40s-x2",
            )

    async def _until_measured(self, picker: Child) -> None:
        """Wait for a round trip to every replica: before that no request would be priced fairly."""
        async with aiohttp.ClientSession() as session:
            while True:
                picker.check()
                async with session.get(f"{self.picker_url}/metrics") as answer:
                    if (await answer.text()).count("epp_endpoint_rtt_seconds{") == len(self.endpoints):
                        return
                await asyncio.sleep(0.1)

    async def start_envoy(self, **changes: Any) -> None:
        """Start Envoy, with settings that differ from the demos'."""
        host, port = split_address(self.listening["grpc"])
        settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in self.endpoints.values()),
            eds_path=str(self.folder.absolute() / "eds.json"),
            listener_port=0,
            admin_port=0,
            picker_host=host,
            picker_port=port,
            first_token_port=split_address(self.listening["first_token"])[1],
            **{"served_model_header": True, **changes},
        )
        envoy = EnvoyProcess(settings, folder=self.folder / "envoy")
        self.envoy = await self._exit.enter_async_context(envoy)
        self.pids["envoy"] = envoy.pid
