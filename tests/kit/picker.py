"""A real picker process behind a real Envoy, for tests that prove what users see when things fail."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import aiohttp

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.child import EPP, Child
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings, Variant
from epp_lab.sim.http import SimReplica
from tests.kit.forked import Forked
from tests.kit.ports import free_ports
from tests.kit.replicas import CHAT, MODEL, RESPONSES, chat_body, metric, quick_config
from tests.kit.transports import CHOSEN
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from epp_lab.sim.http import SimConfig

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
        options: further words of its command line.
        config: sections laid over `CONFIG`.
    """

    def __init__(
        self, folder: Path, *, program: tuple[str, ...] = EPP, options: Sequence[str] = (), **config: Any
    ) -> None:
        self.folder = folder
        self.config: dict[str, Any] = {**CONFIG, **config}
        words = [
            "serve",
            "--config",
            str(folder / "epp.yaml"),
            "--ready-file",
            str(folder / "ready.json"),
            *options,
        ]
        self._child: Child | Forked = (
            Forked("picker", words, folder) if program is EPP else Child("picker", words, folder, program)
        )
        self.grpc = self.http = self.first_token = ""

    async def start(self) -> None:
        """Start; a second start listens on the same ports."""
        listen = {
            name: f"127.0.0.1:{free_ports()}" if where == "127.0.0.1:0" else where
            for name, where in self.config["listen"].items()
        }
        if self.grpc:
            listen = {**listen, "grpc": self.grpc, "http": self.http, "first_token": self.first_token}
        if CHOSEN:
            listen = {"transport": CHOSEN, **listen}
        ready = self.folder / "ready.json"
        (self.folder / "epp.yaml").write_text(json.dumps({**self.config, "listen": listen}))
        ready.unlink(missing_ok=True)
        await self._child.__aenter__()
        async with asyncio.timeout(240):
            await self._child.until(ready.exists)
        addresses = json.loads(ready.read_text())
        self.grpc, self.http = addresses["grpc"], addresses["http"]
        self.first_token = addresses["first_token"]

    def envoy_settings(self, specs: Sequence[EndpointSpec], **fields: Any) -> EnvoySettings:
        """An Envoy before it and these endpoints, on ports that the system chooses."""
        host, _, port = self.grpc.rpartition(":")
        told: dict[str, Any] = {
            "listener_port": 0,
            "admin_port": 0,
            "picker_host": host,
            "picker_port": int(port),
            "message_timeout_ms": 5000,
            "first_token_port": int(self.first_token.rpartition(":")[2]),
        }
        return EnvoySettings(endpoints=tuple(spec.endpoint() for spec in specs), **(told | fields))

    async def kill(self) -> None:
        """SIGKILL: no drain, no goodbye."""
        self._child.kill()
        await self.stop()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        """Process id; only while it runs."""
        return self._child.pid

    async def ended(self) -> int:
        """Wait until it ends by itself, ten seconds at most; its status."""
        async with asyncio.timeout(240):
            return await self._child.wait()

    async def stop(self) -> None:
        """SIGTERM and wait."""
        await self._child.__aexit__()

    def log(self) -> str:
        """What it has logged."""
        return self._child.log()

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

    async def ready(self) -> bool:
        """Whether it wants requests."""
        async with aiohttp.ClientSession() as http, http.get(f"http://{self.http}/readyz") as answer:
            return answer.status == 200

    async def until_metric(self, metric_name: str, wanted: Callable[[float], bool], /, **labels: str) -> None:
        """Wait until a metric has a value that is wanted."""
        value = float("nan")

        async def has() -> bool:
            nonlocal value
            return wanted(value := await self.metric(metric_name, **labels))

        try:
            await until(has)
        except TimeoutError:
            raise AssertionError(f"{metric_name}{labels} stayed {value}\n{self.log()[-2000:]}") from None


class Upstream(Protocol):
    """A server that Envoy sends requests to."""

    @property
    def address(self) -> str: ...

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *_: object) -> None: ...


class Serving:
    """Upstreams, picker and Envoy, as an async context manager.

    Args:
        folder: holds everything on disk.
        replicas: one simulated replica each.
        upstreams: what serves in their place.
        variant: which Envoy configuration; Envoy follows the pool, but with `original-dst`.
        envoy: fields laid over the Envoy settings.
        program: see `PickerProcess`.
        options: likewise.
        concurrency: worker threads of Envoy.
        config: sections laid over the picker's `CONFIG`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        replicas: Sequence[SimConfig] = (quick_config("a"), quick_config("b"), quick_config("c")),
        upstreams: Sequence[Upstream] = (),
        variant: Variant = Variant.STANDALONE,
        envoy: Mapping[str, Any] | None = None,
        program: tuple[str, ...] = EPP,
        options: Sequence[str] = (),
        concurrency: int = 1,
        **config: Any,
    ) -> None:
        self.variant, self._concurrency = variant, concurrency
        eds_path = "" if variant is Variant.ORIGINAL_DST else str(folder / "eds.json")
        self.folder, self._changes = folder, {"variant": variant, "eds_path": eds_path, **(envoy or {})}
        self.replicas = [
            SimReplica(replace(each, port=each.port or free_ports())) for each in replicas if not upstreams
        ]
        self._upstreams = upstreams or self.replicas
        self.picker = PickerProcess(folder, program=program, options=options, **config)
        self._exit = AsyncExitStack()
        self.url = ""

    def specs(self) -> list[EndpointSpec]:
        """The pool."""
        return [EndpointSpec(address=upstream.address) for upstream in self._upstreams]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for upstream in self._upstreams:
                await stack.enter_async_context(upstream)
            self.write_pool(self.specs())
            stack.push_async_callback(self.picker.stop)
            await self.picker.start()
            settings = self.picker.envoy_settings(self.specs(), **self._changes)
            envoy = EnvoyProcess(settings, folder=self.folder / "envoy", concurrency=self._concurrency)
            self.envoy = await stack.enter_async_context(envoy)
            self.url = self.envoy.listener_url
            self.http = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            await self.until_probed()
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def until_probed(self) -> None:
        """Wait for a good probe of each endpoint."""
        for endpoint in (each for spec in self.specs() for each in spec.endpoints()):
            if self.picker.config["probe"]["interval_s"]:
                await self.picker.until_metric(
                    "epp_endpoint_rtt_seconds", lambda value: value > 0, endpoint=endpoint.address
                )

    def write_pool(self, specs: Sequence[EndpointSpec]) -> None:
        """Replace the endpoints file."""
        (self.folder / "endpoints.yaml").write_bytes(dump_pool(list(specs)))

    @asynccontextmanager
    async def answering(self, max_tokens: int) -> AsyncIterator[aiohttp.ClientResponse]:
        """A streamed answer that has begun to come."""
        body = chat_body("hi", stream=True, max_tokens=max_tokens)
        async with self.http.post(self.url + CHAT, json=body) as answer:
            await answer.content.readline()  # what came with it is left to be read
            yield answer

    async def chat(self, text: str = "hello", **options: Any) -> tuple[int, Any]:
        """One chat request through Envoy; status and decoded body (bytes when it is not JSON)."""
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        data = io.BytesIO(json.dumps(chat_body(text, **{"max_tokens": 4, **options})).encode())
        async with self.http.post(self.url + CHAT, data=data, headers=headers) as answer:
            raw = await answer.read()
            try:
                return answer.status, json.loads(raw)
            except ValueError:
                return answer.status, raw

    async def respond(self, text: str = "hello", **fields: Any) -> tuple[int, str]:
        """One request for a stored response through Envoy; status and the response's id."""
        body = {"model": MODEL, "input": text, "max_output_tokens": 4, **fields}
        before = await self.picker.metric("epp_outcomes_total")
        async with self.http.post(self.url + RESPONSES, json=body) as answer:
            found = re.search(r'"id": ?"(resp_[^"]+)"', await answer.text())
        # The picker hears of an answer after the client, and may have predicted its end before.
        await self.picker.until_metric("epp_outcomes_total", lambda value: value > before)
        return answer.status, found[1] if found else ""

    async def streamed(self, text: str, max_tokens: int) -> bool:
        """Whether a streamed answer comes to its end."""
        status, answer = await self.chat(text, stream=True, max_tokens=max_tokens)
        return status == 200 and bytes(answer).rstrip().endswith(b"data: [DONE]")

    @asynccontextmanager
    async def under_load(self, clients: int = 20) -> AsyncIterator[Counter[int]]:
        """Clients that always have one request under way each; the statuses that they see."""
        stop, seen = asyncio.Event(), Counter[int]()

        async def keep_asking() -> None:
            while not stop.is_set():
                status, _ = await self.chat(f"question {seen.total()} " * 20)
                seen[status] += 1

        tasks = [asyncio.ensure_future(keep_asking()) for _ in range(clients)]
        yield seen
        stop.set()
        await asyncio.gather(*tasks)


async def until_seen(seen: Counter[int], more: int) -> None:
    """Wait until so many further requests were answered."""
    target = seen.total() + more
    await until(lambda: seen.total() >= target)
