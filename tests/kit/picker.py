"""A real picker process behind a real Envoy, for tests that prove what users see when things fail."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp.lab.demo.child import EPP, Child
from epp.lab.sim.http import SimReplica
from tests.kit.replicas import CHAT, MODEL, metric, quick_config
from tests.kit.transports import CHOSEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from epp.lab.sim.http import SimConfig

#: Probes and scrapes quick enough that a test need not wait for them; their time limit is that of a busy machine, on
#: which replicas that share the test's event loop may answer late.
CONFIG: dict[str, Any] = {
    "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "first_token": "127.0.0.1:0"},
    "pool": {"file": "endpoints.yaml", "warmup_s": 0.2},
    "probe": {"interval_s": 0.1, "timeout_s": 2.0, "eject_s": 0.5},
    "scrape": {"interval_s": 0.2},
    "weights_file": "weights.yaml",
    "overrides_file": "overrides.yaml",
    "records": {"folder": "records"},
    "drain_s": 1,
}


class PickerProcess:
    """`epp serve` as a child process.

    Args:
        folder: holds its configuration and files.
        program: what is run instead of `epp`.
        config: sections laid over `CONFIG`.
    """

    def __init__(self, folder: Path, *, program: tuple[str, ...] = EPP, **config: Any) -> None:
        self.folder, self._program = folder, program
        self._config: dict[str, Any] = {**CONFIG, **config}
        self._child: Child | None = None
        self.grpc = self.http = self.first_token = ""

    async def start(self) -> None:
        """Start; a second start listens on the same ports."""
        if self.grpc:
            self._config = {
                **self._config,
                "listen": {
                    **self._config["listen"],
                    "grpc": self.grpc,
                    "http": self.http,
                    "first_token": self.first_token,
                },
            }
        if CHOSEN:
            self._config["listen"] = {"transport": CHOSEN, **self._config["listen"]}
        config, ready = self.folder / "epp.yaml", self.folder / "ready.json"
        config.write_text(json.dumps(self._config))
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--config", str(config), "--ready-file", str(ready)]
        self._child = await Child("picker", arguments, self.folder, self._program).__aenter__()
        async with asyncio.timeout(20):
            while not ready.exists():
                self._child.check()
                await asyncio.sleep(0.02)
        addresses = json.loads(ready.read_text())
        self.grpc, self.http = addresses["grpc"], addresses["http"]
        self.first_token = addresses["first_token"]

    async def kill(self) -> None:
        """SIGKILL: no drain, no goodbye."""
        if self._child is not None:
            os.kill(self._child.pid, signal.SIGKILL)
            await self.stop()

    def hang(self) -> None:
        """Let the event loop stand still for good; of a picker whose program is `HANGING`."""
        os.kill(self.pid, signal.SIGUSR1)

    def freeze(self) -> None:
        """SIGSTOP: it hangs, its sockets stay."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        """Process id; only while it runs."""
        assert self._child is not None
        return self._child.pid

    async def ended(self) -> int:
        """Wait until it ends by itself, ten seconds at most; its status."""
        assert self._child is not None
        async with asyncio.timeout(10):
            return await self._child.wait()

    async def stop(self) -> None:
        """SIGTERM and wait."""
        child, self._child = self._child, None
        if child is not None:
            await child.__aexit__(None, None, None)

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "picker.log").read_text()

    async def metrics(self) -> str:
        """Its metrics page."""
        async with aiohttp.ClientSession() as http, http.get(f"http://{self.http}/metrics") as answer:
            return await answer.text()

    async def metric(self, metric_name: str, /, **labels: str) -> float:
        """One metric; 0 while it has no series."""
        try:
            return metric(await self.metrics(), metric_name, labels)
        except KeyError:
            return 0.0

    async def until_ready(self, status: int = 200) -> None:
        """Wait until the readiness page has a status; ten seconds at most."""
        async with asyncio.timeout(10), aiohttp.ClientSession() as http:
            while True:
                async with http.get(f"http://{self.http}/readyz") as answer:
                    if answer.status == status:
                        return
                await asyncio.sleep(0.05)

    async def until_metric(self, metric_name: str, wanted: Callable[[float], bool], /, **labels: str) -> None:
        """Wait until a metric has a value that is wanted; ten seconds at most."""
        value = float("nan")
        try:
            async with asyncio.timeout(10):
                while not wanted(value := await self.metric(metric_name, **labels)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{metric_name}{labels} stayed {value}\n{self.log()[-2000:]}") from None


class Serving:
    """Replicas, picker and Envoy, as an async context manager.

    Args:
        folder: holds everything on disk.
        replicas: one simulated replica each.
        variant: which Envoy configuration; Envoy follows the pool, but with `original-dst`.
        envoy: fields laid over the Envoy settings.
        program: see `PickerProcess`.
        config: sections laid over the picker's `CONFIG`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replicas: Sequence[SimConfig] = (quick_config("a"), quick_config("b"), quick_config("c")),
        variant: Variant = Variant.STANDALONE,
        envoy: dict[str, Any] | None = None,
        program: tuple[str, ...] = EPP,
        **config: Any,
    ) -> None:
        self._folder, self._variant, self._changes = folder, variant, envoy or {}
        self.replicas = [SimReplica(replica) for replica in replicas]
        self.picker = PickerProcess(folder, program=program, **config)
        self._exit = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> Self:
        try:
            for replica in self.replicas:
                await self._exit.enter_async_context(replica)
            self.write_pool([EndpointSpec(address=replica.address) for replica in self.replicas])
            self._exit.push_async_callback(self.picker.stop)
            await self.picker.start()
            host, _, port = self.picker.grpc.rpartition(":")
            settings = EnvoySettings(
                endpoints=tuple(
                    EndpointSpec(address=replica.address).endpoint() for replica in self.replicas
                ),
                variant=self._variant,
                eds_path="" if self._variant is Variant.ORIGINAL_DST else str(self._folder / "eds.json"),
                listener_port=0,
                admin_port=0,
                picker_host=host,
                picker_port=int(port),
                message_timeout_ms=2000,
                first_token_port=int(self.picker.first_token.rpartition(":")[2]),
            )
            self.envoy = await self._exit.enter_async_context(
                EnvoyProcess(replace(settings, **self._changes), folder=self._folder / "envoy")
            )
            self.url = self.envoy.listener_url
            self.http = await self._exit.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            for replica in self.replicas:
                await self.picker.until_metric(
                    "epp_endpoint_rtt_seconds", lambda value: value > 0, endpoint=replica.address
                )
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    def write_pool(self, specs: Sequence[EndpointSpec]) -> None:
        """Replace the endpoints file."""
        (self._folder / "endpoints.yaml").write_bytes(dump_pool(list(specs)))

    @asynccontextmanager
    async def answering(self, max_tokens: int) -> AsyncIterator[aiohttp.ClientResponse]:
        """A streamed answer that has begun to come."""
        hi = [{"role": "user", "content": "hi"}]
        body = {"model": MODEL, "messages": hi, "stream": True, "max_tokens": max_tokens}
        async with self.http.post(self.url + CHAT, json=body) as answer:
            await answer.content.readany()
            yield answer

    async def chat(self, text: str = "hello", **options: Any) -> tuple[int, Any]:
        """One chat request through Envoy; status and decoded body (bytes when it is not JSON)."""
        headers = options.pop("headers", {})
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **options}
        data = io.BytesIO(json.dumps(body).encode())
        headers = {"content-type": "application/json", **headers}
        async with self.http.post(self.url + CHAT, data=data, headers=headers) as answer:
            raw = await answer.read()
            try:
                return answer.status, json.loads(raw)
            except ValueError:
                return answer.status, raw
