"""A peer on a real socket whose every frame is written by hand, and the picker that it speaks to."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from epp.pb.ext_proc_pb2 import ProcessingResponse
from epp.request.ext_proc import EXT_PROC
from epp.rpc.http2 import frames
from epp.rpc.http2.status import Status
from epp.types import Endpoint
from tests.kit.apps import app_of
from tests.kit.http2 import Client, Fields, Frame, message
from tests.kit.waiting import until

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from google.protobuf.message import Message

    from epp.clock import Clock
    from epp.server.app import App

PROCESS = f"/{EXT_PROC}/Process".encode()
_HEAD_BYTES = 9


@dataclass
class Told:
    """What one stream was told.

    Attributes:
        data: of its DATA frames.
        fields: of its HEADERS frames, the last ones winning.
        reset: the code of its RST_STREAM.
    """

    data: bytearray = field(default_factory=bytearray)
    fields: dict[bytes, bytes] = field(default_factory=dict)
    reset: int | None = None

    @property
    def replies(self) -> list[ProcessingResponse]:
        """The whole messages."""
        found, at = [], 0
        while at < len(self.data):
            end = at + 5 + int.from_bytes(self.data[at + 1 : at + 5], "big")
            found.append(ProcessingResponse.FromString(bytes(self.data[at + 5 : end])))
            at = end
        return found

    @property
    def status(self) -> tuple[Status, str] | None:
        """The call's end, if it has come."""
        code = self.fields.get(b"grpc-status")
        words = unquote(self.fields.get(b"grpc-message", b"").decode())
        return None if code is None else (Status(int(code)), words)


class RawPeer:
    """One connection.

    Attributes:
        client: makes frames.
        told: by stream.
        goaway: the code of the last GOAWAY.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.client = Client()
        self.told: dict[int, Told] = {}
        self.goaway: int | None = None
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def connect(
        cls, address: str, *, source: str = "", tls: ssl.SSLContext | None = None, **settings: int
    ) -> Self:
        """Connect, from an address of one's own where it is named, and greet, with windows that need no care."""
        host, _, port = address.rpartition(":")
        local = (source, 0) if source else None
        peer = cls(*await asyncio.open_connection(host, int(port), local_addr=local, ssl=tls))
        peer.write(peer.client.hello(**{"initial_window_size": 1 << 30, **settings}))
        peer.write(frames.window_update(0, 1 << 30))
        return peer

    def write(self, data: bytes) -> None:
        """Write frames, or what is none."""
        self._writer.write(data)

    def open(self, number: int, path: bytes = PROCESS, extra: Fields = ()) -> None:
        """Begin a call."""
        fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"e"))
        self.write(self.client.headers(number, (*fields, (b"content-type", b"application/grpc"), *extra)))

    def say(self, number: int, *messages: Message) -> None:
        """Whole messages."""
        for told in messages:
            self.pour(number, message(told.SerializeToString()))

    def pour(self, number: int, data: bytes) -> None:
        """Any bytes of a stream, in frames."""
        for at in range(0, len(data), 1 << 17):
            self.write(self.client.data(number, data[at : at + (1 << 17)]))

    def reset(self, number: int) -> None:
        """Give a stream up."""
        self.write(frames.rst_stream(number, frames.ErrorCode.CANCEL))

    async def round_trip(self) -> None:
        """Until all that was written has been read and answered."""
        await self._writer.drain()
        before = self._pongs
        self.write(frames.frame(frames.PING, 0, 0, b"12345678"))
        await until(lambda: self._pongs > before or self._listening.done())

    def ended(self) -> bool:
        """Whether the other side has hung up."""
        return self._listening.done()

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    _pongs = 0

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(_HEAD_BYTES)
                high, low, kind, flags, number = frames.HEAD.unpack(head)
                payload = await self._reader.readexactly(high << 16 | low)
                self._hear(Frame(kind, flags, number, payload))

    def _hear(self, frame: Frame) -> None:
        told = self.told.setdefault(frame.number, Told())
        if frame.kind == frames.DATA:
            told.data += frame.payload
        elif frame.kind == frames.HEADERS:
            told.fields |= self.client.fields(frame)
        elif frame.kind == frames.RST_STREAM:
            told.reset = frame.code
        elif frame.kind == frames.GOAWAY:
            self.goaway = frame.code
        elif frame.kind == frames.PING and frame.flags & frames.ACK:
            self._pongs += 1


@dataclass
class Serving:
    """A picker with two endpoints that listens."""

    app: App
    address: str
    _peers: list[RawPeer] = field(default_factory=list)

    @classmethod
    async def start(cls, folder: Path, clock: Clock | None = None, **config: Any) -> Serving:
        """Listen on a free port, with these sections of the configuration."""
        config["listen"] = {"grpc": "127.0.0.1:0", **config.get("listen", {})}
        config["pool"] = {"warmup_s": 0}
        app = app_of(folder, clock, **config)
        app.scheduler.set_pool([Endpoint("10.0.0.1:8000"), Endpoint("10.0.0.2:8000")], 0.0)
        return cls(app, await app._grpc.start())

    async def connect(self, **settings: Any) -> RawPeer:
        """Connect a peer, which hangs up at the latest when this stops."""
        self._peers.append(await RawPeer.connect(self.address, **settings))
        return self._peers[-1]

    async def stop(self) -> None:
        """Cut what is open."""
        for peer in self._peers:
            await peer.close()
        await self.app._grpc.stop(0)

    async def metric(self, name: str) -> float:
        """A sample of the metrics page, labels included in the name; 0 where there is none."""
        page = (await self.app.metrics.page()).decode()
        found = re.search(f"^{re.escape(name)} (.+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0
