"""The listener for first tokens: what it takes, what it refuses, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import stat
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import uvloop

from epp.config.address import split_address
from epp.request.first_token import MAX_HEAD_BYTES, FirstTokenReceiver
from tests.kit.waiting import HANGS_S
from tests.observe.conftest import Told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
MISSING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def call(decision_id: str) -> bytes:
    return f"POST /first-token/{decision_id} HTTP/1.1\r\nhost: picker\r\ncontent-length: 0\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[FirstTokenReceiver, Told]]:
    sink = Told()
    receiver = FirstTokenReceiver(sink)
    receiver.listen("127.0.0.1:0")
    try:
        yield receiver, sink
    finally:
        await receiver.stop()


async def talk(receiver: FirstTokenReceiver, *pieces: bytes, answer_bytes: int) -> bytes:
    reader, writer = await asyncio.open_connection(*split_address(receiver.address))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await asyncio.wait_for(reader.readexactly(answer_bytes), HANGS_S)
    finally:
        writer.transport.abort()


async def test_calls_on_one_connection_are_answered_in_order() -> None:
    async with listening() as (receiver, sink):
        data = call("a-1") + call("b-2") + b"GET /first-token/c HTTP/1.1\r\n\r\n" + call("d")
        assert await talk(receiver, data, answer_bytes=3 * len(OK) + len(MISSING)) == OK + OK + MISSING + OK
        assert sink.first_tokens == ["a-1", "b-2", "d"]
        assert (receiver.received, receiver.malformed) == (3, 1)


async def test_stored_responses_are_told_by_the_same_calls() -> None:
    async with listening() as (receiver, sink):
        data = call("a").replace(b"first-token/a", b"stored/d-1/resp_2")
        wrong = call("a").replace(b"first-token/a", b"stored/d-1")
        assert await talk(receiver, data + wrong, answer_bytes=len(OK) + len(MISSING)) == OK + MISSING
        assert (sink.stored_ids, sink.first_tokens) == ([("d-1", "resp_2")], [])


async def test_a_failed_answer_is_told_at_once_with_what_it_says() -> None:
    said = quote(json.dumps({"error": {"message": "full", "code": 503}}))
    calls = [
        call("a").replace(b"first-token/a", path.encode())
        for path in (
            f"failed/d-1/10.0.0.1:8000/200/{said}",
            "failed/d-2//500/",
            "failed/d-3//200/%7b%7d",
            "failed/d",
        )
    ]
    async with listening() as (receiver, sink):
        data, answers = b"".join(calls), 3 * OK + MISSING
        assert await talk(receiver, data, answer_bytes=len(answers)) == answers
        told = [(one.decision_id, one.served, one.status, one.retry_after) for one in sink.attempts]
        assert told == [("d-1", "10.0.0.1:8000", 503, "1"), ("d-2", "", 500, "")]


async def test_a_call_may_come_in_any_pieces() -> None:
    async with listening() as (receiver, sink):
        data = call("a") + call("b")
        for at in range(0, len(data), 7):
            assert await talk(receiver, data[:at], data[at:], answer_bytes=2 * len(OK)) == OK + OK
        await talk(receiver, *(bytes([byte]) for byte in data), answer_bytes=2 * len(OK))
        assert set(sink.first_tokens) == {"a", "b"}
        assert receiver.malformed == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"POST /first-token/a HTTP/1.1\r\ncontent-length: 5\r\n\r\n",
        b"POST /first-token/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /first-token/a HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1),
    ],
)
async def test_what_is_no_such_talk_is_cut(request_bytes: bytes) -> None:
    async with listening() as (receiver, sink):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await talk(receiver, request_bytes, answer_bytes=1)
        assert receiver.malformed == 1
        assert sink.first_tokens == []


async def test_stop_closes_connections_and_the_port() -> None:
    receiver = FirstTokenReceiver(Told())
    receiver.listen("127.0.0.1:0")
    reader, writer = await asyncio.open_connection(*split_address(receiver.address))
    writer.write(call("a"))
    await reader.readexactly(len(OK))
    await receiver.stop()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), HANGS_S) == b""
    writer.transport.abort()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection(*split_address(receiver.address))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_unix_socket(tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    run(over_unix(tmp_path))


async def over_unix(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))  # what a process that died leaves there
    sink = Told()
    receiver = FirstTokenReceiver(sink)
    receiver.listen(f"unix:{tmp_path / 's'}")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
    writer.write(call("a"))
    assert await reader.readexactly(len(OK)) == OK
    assert sink.first_tokens == ["a"]
    writer.transport.abort()
    await receiver.stop()
