"""The peers that behave: `python -m tests.attacks.probe KIND ADDRESS SOURCE [tls]`, a call every `EVERY_S`.

`pick` holds one ext_proc stream a call on one connection, which it replaces now and then as a restarted Envoy
does; `ready` asks for /readyz; `chat` sends chat requests through an Envoy. Calls begin when they are due,
however many wait. Each that is over is a line of JSON on standard output: its number, when it began (on the
monotonic clock, which all processes share), how long it took in ms, and what failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import uvloop

from epp.extproc.modes import BodyMode
from tests.kit import certificates
from tests.kit.conversation import request_body, request_headers, with_modes
from tests.kit.rawpeer import RawPeer
from tests.kit.replicas import CHAT, chat_body

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from tests.kit.http2 import Frame

EVERY_S = 0.02
#: Whoever has waited so long was not served.
LIMIT_S = 30.0
#: A connection is replaced after so many calls.
_CALLS = 64
_BODY = json.dumps(chat_body("hello " * 50, max_tokens=2)).encode()


class FailedError(Exception):
    """A call that was not served."""


class Connection(RawPeer):
    """An Envoy's, for several calls at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._numbers, self._heard = itertools.count(1, 2), asyncio.Event()
        super().__init__(reader, writer)
        self._listening.add_done_callback(lambda _: self._wake())

    async def pick(self) -> None:
        """Headers, their reply, the body, its reply with a destination, the end."""
        number = next(self._numbers)
        self.open(number)
        self.say(number, with_modes(request_headers(), BodyMode.BUFFERED))
        await self._replies(number, 1)
        self.say(number, request_body(_BODY, end=True))
        reply = await self._replies(number, 2)
        if "envoy.lb" not in reply.dynamic_metadata.fields:
            raise FailedError(f"no pick: {reply}")
        self.write(self.client.data(number, b"", end=True))
        del self.told[number]

    def usable(self) -> bool:
        """Whether it takes further calls."""
        return self.goaway is None and not self.ended()

    async def _replies(self, number: int, count: int) -> Any:
        while True:
            told = self.told.get(number)
            if told is not None and len(told.replies) >= count:
                return told.replies[-1]
            if self.ended() or (told is not None and (told.status or told.reset is not None)):
                raise FailedError(f"ended: {told.status or told.reset if told else 'connection'}")
            await self._heard.wait()

    def _hear(self, frame: Frame) -> None:
        super()._hear(frame)
        self._wake()

    def _wake(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()


class Proxy:
    """Makes calls on one connection after the other."""

    def __init__(self, address: str, source: str, tls: ssl.SSLContext | None) -> None:
        self._address, self._source, self._tls = address, source, tls
        self._connection: asyncio.Task[Connection] | None = None
        self._calls = 0

    async def call(self) -> None:
        """One pick."""
        task, self._calls = self._connection, self._calls + 1
        if task is None or self._calls % _CALLS == 0 or (task.done() and not _usable(task)):
            if task is not None:
                asyncio.get_running_loop().call_later(LIMIT_S, _close, task)
            connecting = Connection.connect(self._address, source=self._source, tls=self._tls)
            task = self._connection = asyncio.ensure_future(connecting)
        await (await asyncio.shield(task)).pick()


def _usable(task: asyncio.Task[Connection]) -> bool:
    return task.exception() is None and task.result().usable()


def _close(task: asyncio.Task[Connection]) -> None:
    task.cancel()
    if task.done() and task.exception() is None:
        asyncio.ensure_future(task.result().close())  # noqa: RUF006  # it does not wait


class Http:
    """Asks for /readyz as a kubelet does, each time on a new connection, or for chats as a client of Envoy."""

    def __init__(self, url: str, source: str, body: bytes | None = None) -> None:
        self._url, self._body, self._wanted = url, body, b"choices" if body else b"ok"
        connector = aiohttp.TCPConnector(limit=0, force_close=body is None, local_addr=(source, 0))
        self._http = aiohttp.ClientSession(connector=connector, headers={"content-type": "application/json"})

    async def call(self) -> None:
        """One request."""
        method = "POST" if self._body else "GET"
        async with self._http.request(method, self._url, data=self._body) as answer:
            text = await answer.read()
            if answer.status != 200 or self._wanted not in text:
                raise FailedError(f"{answer.status} {text[:80]!r}")


async def _timed(number: int, call: Callable[[], Awaitable[None]]) -> None:
    begun_s, problem = time.monotonic(), ""
    try:
        async with asyncio.timeout(LIMIT_S):
            await call()
    except TimeoutError:
        problem = f"not answered within {LIMIT_S:.0f} s"
    except Exception as error:  # noqa: BLE001  # uvloop raises RuntimeError on a connection that is gone
        problem = f"{type(error).__name__} {error}"
    print(json.dumps([number, begun_s, (time.monotonic() - begun_s) * 1e3, problem]), flush=True)


async def _run(kind: str, address: str, source: str, tls: ssl.SSLContext | None) -> None:
    caller: Proxy | Http = Proxy(address, source, tls)
    if kind != "pick":
        path, body = (CHAT, _BODY) if kind == "chat" else ("/readyz", None)
        caller = Http(f"http://{address}{path}", source, body)
    due_s, under_way = time.monotonic(), set()
    for number in itertools.count():
        task = asyncio.ensure_future(_timed(number, caller.call))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        due_s += EVERY_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    KIND, ADDRESS, SOURCE, *FLAGS = sys.argv[1:]
    uvloop.run(_run(KIND, ADDRESS, SOURCE, certificates.trusting() if "tls" in FLAGS else None))
