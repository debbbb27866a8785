"""One connection asked again and again: framings, limits, servers that leave."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from epp.feeds.keep_alive import KeepAlive
from tests.kit.waiting import HANGS_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x=1\r\nhe\r\n3\r\nllo\r\n0\r\nt: 1\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\n\r\nhello"


@asynccontextmanager
async def server(*answers: bytes, leave_after: int = 1000) -> AsyncIterator[tuple[KeepAlive, list[bytes]]]:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(leave_after):
            try:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            answer = answers[min(len(asked), len(answers)) - 1]
            writer.write(answer)
            await writer.drain()
            if answer == TO_THE_END:
                break
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    client = KeepAlive(address, tls=None, server_name=None)
    try:
        yield client, asked
    finally:
        client.close()
        listening.close()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED])
async def test_answers_of_every_framing_leave_the_connection_open(answer: bytes) -> None:
    async with server(answer) as (client, asked):
        for _ in range(3):
            found = await client.get("/metrics", {"authorization": "Bearer x"}, HANGS_S)
            assert (found.status, found.body) == (200, b"hello")
            assert found.took_s > 0.0
    assert client.opened == 1
    assert asked[0].startswith(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Bearer x\r\n" in asked[0]


async def test_an_answer_to_the_connections_end_and_the_next_one() -> None:
    async with server(TO_THE_END) as (client, _):
        assert (await client.get("/", {}, HANGS_S)).body == b"hello"
        assert (await client.get("/", {}, HANGS_S)).body == b"hello"
    assert client.opened == 2


async def test_what_follows_an_answer_unasked_is_no_answer_to_the_next_request() -> None:
    behind = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nho"
    async with server(LENGTH + behind, LENGTH) as (client, _):
        for _ in range(2):
            assert (await client.get("/", {}, HANGS_S)).body == b"hello"
    assert client.opened == 2


async def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    async with server(LENGTH, leave_after=1) as (client, _):
        for _ in range(3):
            assert (await client.get("/", {}, HANGS_S)).body == b"hello"
            await asyncio.sleep(0.02)
    assert client.opened == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n65\r\n" + b"x" * 101, ValueError),
        (b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 70_000, ValueError),
        (b"SSH-2.0-x\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", TimeoutError),
    ],
)
async def test_what_is_no_answer_raises_and_the_next_request_starts_anew(
    answer: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.feeds.keep_alive.MAX_BODY_BYTES", 100)
    async with server(answer, LENGTH) as (client, _):
        with pytest.raises(error):
            await client.get("/", {}, 1.0 if error is TimeoutError else HANGS_S)
        assert (await client.get("/", {}, HANGS_S)).body == b"hello"
    assert client.opened == 2


async def test_who_gives_up_gets_no_answer_of_the_request_before() -> None:
    first, second = (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number for number in (1, 2))
    async with server(first, second) as (client, asked):
        given_up = asyncio.ensure_future(client.get("/", {}, HANGS_S))
        while not asked:
            await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert (await client.get("/", {}, HANGS_S)).body == b"2"
