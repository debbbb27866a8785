"""A picker that is told how requests went, a scripted replica and an Envoy between them."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pytest_asyncio

from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import Variant
from epp.request.access_log import ACCESS_LOG, AccessLogReceiver
from epp.request.first_token import FirstTokenReceiver
from epp.rpc.grpcio_server import GrpcioServer
from tests.kit.envoy import ScriptedUpstream, require_envoy, settings
from tests.kit.extproc_server import ExtProcServer
from tests.observe.entries import protobuf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest

    from epp.request.access_log import Attempt, Report


@dataclass
class Told:
    """What the receivers tell, in order, and a way to wait for it."""

    first_tokens: list[str] = field(default_factory=list)
    stored_ids: list[tuple[str, str]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _notes: set[asyncio.Task[None]] = field(default_factory=set)

    def first_token(self, decision_id: str) -> None:
        self.first_tokens.append(decision_id)
        self._wake()

    def stored(self, decision_id: str, response_id: str) -> None:
        self.stored_ids.append((decision_id, response_id))
        self._wake()

    def attempted(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._wake()

    def finished(self, report: Report) -> None:
        self.reports.append(report)
        self._wake()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(240), self.changed:
            await self.changed.wait_for(condition)

    async def report(self, decision_id: str) -> Report:
        await self.until(lambda: any(r.decision_id == decision_id for r in self.reports))
        return next(r for r in self.reports if r.decision_id == decision_id)


class ObservedPicker(ExtProcServer):
    """The kit's ext_proc server with our receivers beside it; every pick has an id of its own."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self.als = AccessLogReceiver(told)
        self.first_tokens = FirstTokenReceiver(told)
        self.first_token_port = 0
        self.ids: list[str] = []
        #: Further fields of its decisions' metadata.
        self.says: dict[str, str] = {}
        self._reports_server: grpc.aio.Server | None = None

    async def start(self) -> None:
        original = grpc.aio.server

        def with_reports(*args: Any, **options: Any) -> grpc.aio.Server:
            server = original(*args, **options)
            log = GrpcioServer(
                {ACCESS_LOG: self.als.serve}, max_receive_bytes=1 << 20, max_send_bytes=1 << 20
            )
            server.add_generic_rpc_handlers((log._handler(ACCESS_LOG),))
            return server

        grpc.aio.server = with_reports
        try:
            await super().start()
        finally:
            grpc.aio.server = original
        address = self.first_tokens.listen(f"127.0.0.1:{self.first_token_port}")
        self.first_token_port = int(address.rpartition(":")[2])

    async def stop(self) -> None:
        self.als.end_streams()
        await self.first_tokens.stop()
        await super().stop()

    def _picked(self, **modes: bool) -> Any:
        answer = super()._picked(**modes)
        if answer.dynamic_metadata is not None:
            self.ids.append(f"decision-{len(self.ids) + 1}")
            told = {"decision_id": self.ids[-1], **self.says}
            values = {name: protobuf.Value(string_value=value) for name, value in told.items()}
            ours = protobuf.Struct(fields=values)
            answer.dynamic_metadata.fields["epp"] = protobuf.Value(struct_value=ours)
        return answer


@dataclass
class Client:
    """One HTTP/1.1 exchange by hand, so that a test can leave in the middle of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str = ""

    @property
    def status(self) -> int:
        return int(self.head.split(" ", 2)[1])

    def header(self, name: str) -> str:
        lines = [line.partition(": ") for line in self.head.split("\r\n")[1:]]
        return ",".join(value for key, _, value in lines if key.lower() == name)

    async def read_head(self) -> None:
        self.head = (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def body(self) -> bytes:
        """The rest of the connection; requests ask Envoy to close it."""
        return await self.reader.read()

    def leave(self) -> None:
        self.writer.transport.abort()


@dataclass
class Rig:
    told: Told
    picker: ObservedPicker
    upstream: ScriptedUpstream
    envoy: EnvoyProcess
    variant: Variant
    script: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]]

    @contextlib.asynccontextmanager
    async def client(
        self, headers: str = "", path: str = "/v1/chat/completions", length: int = 2
    ) -> AsyncIterator[Client]:
        host, _, port = self.envoy.listener_url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"
                f"content-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{{}}".encode()
            )
            yield Client(reader, writer)
        finally:
            writer.transport.abort()

    def plays(self, script: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.script["now"] = script

    async def exchange(
        self, headers: str = "", path: str = "/v1/chat/completions"
    ) -> tuple[Client, bytes, Report]:
        """A whole exchange and the report on it."""
        async with self.client(headers, path) as client:
            await client.read_head()
            body = await client.body()
        return client, body, await self.told.report(self.picker.ids[-1])


@contextlib.asynccontextmanager
async def running(variant: Variant = Variant.STANDALONE, **changes: Any) -> AsyncIterator[Rig]:
    require_envoy()
    script: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {}

    async def play(_: str, writer: asyncio.StreamWriter) -> None:
        await script["now"](writer)

    async with AsyncExitStack() as stack:
        told = Told()
        picker = await stack.enter_async_context(ObservedPicker(told))
        upstream = await stack.enter_async_context(ScriptedUpstream(play))
        picker.destination = upstream.endpoint.address
        endpoints = changes.pop("endpoints", [upstream.endpoint])
        values = {
            "variant": variant,
            "message_timeout_ms": 5000,
            "report_interval_ms": 20,
            "first_token_port": picker.first_token_port,
        }
        chosen = settings(endpoints, picker.port, **(values | changes))
        envoy = await stack.enter_async_context(EnvoyProcess(chosen))
        yield Rig(told, picker, upstream, envoy, variant, script)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[Variant.STANDALONE, Variant.ORIGINAL_DST]
)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with running(request.param) as it:
        yield it
