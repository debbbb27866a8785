"""An upstream that plays scripts, behind the real picker and a real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from epp.envoy.settings import Variant
from tests.kit.picker import Serving
from tests.kit.records import recorded
from tests.kit.replicas import CHAT, chat_body
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_chunked(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A chunked body and its trailers."""
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if not size:
            break
        body += (await reader.readexactly(size + 2))[:-2]
    trailers = b""
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        trailers += line
    return bytes(body), trailers


async def read_body(head: bytes, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A body as its head announces it, and trailers."""
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if fields.get(b"transfer-encoding") == b"chunked":
        return await read_chunked(reader)
    return await reader.readexactly(int(fields.get(b"content-length", b"0"))), b""


@dataclass
class Upstream:
    """Plays a script for each request, once its body is read (or, if ``early``, once its head is).

    Attributes:
        script: given reader and writer; what it writes is the answer.
        early: answer before the body is read.
        bodies, trailers: of the requests, in order.
    """

    script: Script
    early: bool = False
    bodies: list[bytes] = field(default_factory=list)
    trailers: list[bytes] = field(default_factory=list)
    address: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                if self.early:
                    await self.script(reader, writer)
                body, trailers = await read_body(head, reader)
                self.bodies.append(body)
                self.trailers.append(trailers)
                if not self.early:
                    await self.script(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()


@dataclass
class Reply:
    """What a client got; ``cut`` when the body did not come to its announced end."""

    status: int
    head: str
    body: bytes
    trailers: bytes
    cut: bool


class Gateway(Serving):
    """Upstream, which is never probed, picker and Envoy.

    Args:
        folder: holds everything on disk.
        script: what the upstream answers.
        others: further upstreams.
        options: see `Serving`; Envoy's variant is full duplex.
    """

    def __init__(self, folder: Path, script: Script, *others: Upstream, **options: Any) -> None:
        self.upstream = Upstream(script)
        quiet = {"scrape": {"interval_s": 0}, "probe": {"interval_s": 0}, "variant": Variant.FULL_DUPLEX}
        super().__init__(folder, upstreams=[self.upstream, *others], **(quiet | options))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to Envoy."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return await asyncio.open_connection(host, int(port), limit=1 << 20)

    async def ask(
        self, body: bytes | None = None, *, trailers: bytes = b"", method: str = "POST", path: str = ""
    ) -> Reply:
        """One request on a connection of its own."""
        reader, writer = await self.connect()
        try:
            writer.write(request(body, trailers=trailers, method=method, path=path))
            return await read_reply(reader)
        finally:
            writer.transport.abort()

    def outcomes(self) -> list[dict[str, Any]]:
        """The outcomes on file."""
        return [record for record in recorded(self.folder / "records") if record["kind"] == "outcome"]

    async def outcome(self, count: int = 1) -> dict[str, Any]:
        """The newest outcome, once there are so many."""
        await until(lambda: len(self.outcomes()) >= count)
        return self.outcomes()[-1]


def request(
    body: bytes | None = None, *, trailers: bytes = b"", method: str = "POST", path: str = ""
) -> bytes:
    """A chat request; with ``trailers`` it is chunked; ``body`` None is a small prompt, GET has none."""
    head = f"{method} {path or CHAT} HTTP/1.1\r\nhost: test\r\n".encode()
    if method == "GET":
        return head + b"\r\n"
    data = json.dumps(chat_body("hello", stream=True)).encode() if body is None else body
    head += b"content-type: application/json\r\n"
    if trailers or not data:
        chunks = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(data) + data


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The answer to a request."""
    async with asyncio.timeout(240):
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        try:
            body, trailers = await read_body(head, reader)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            partial = getattr(error, "partial", b"")
            return Reply(status, head.decode(), partial, b"", cut=True)
    return Reply(status, head.decode(), body, trailers, cut=False)
