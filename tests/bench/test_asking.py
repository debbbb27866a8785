"""The bench's client: what it calls a first token and an end, and what it refuses, however bytes are cut."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from epp.errors import EppError
from epp.lab.bench.asking import ask
from epp.lab.bench.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def playing(pieces: Sequence[bytes]) -> AsyncIterator[str]:
    """A server that reads a request's head and writes these pieces, one behind the other, and hangs up."""

    served: list[asyncio.Future[None]] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.get_running_loop().create_future())
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)  # so that each is read alone
            writer.close()
            await writer.wait_closed()
        served[-1].set_result(None)

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*served)


async def test_an_answer_of_the_upstream_is_read_to_its_end() -> None:
    async with Upstream(3) as upstream:
        assert await ask(upstream.address, b"x" * 100_000) > 0.0
        assert await ask(upstream.address, b"{}") > 0.0


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"4\r\nword\r\n0\r\n\r\n"],
        [HEAD[:5], HEAD[5:] + b"4\r\nwo", b"rd\r\n", b"4\r\nmore\r\n0", b"\r", b"\n\r", b"\n"],
    ],
    ids=["whole", "cut"],
)
async def test_an_end_is_seen_however_it_is_cut(pieces: list[bytes]) -> None:
    async with playing(pieces) as address:
        assert await ask(address, b"{}") > 0.0


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"HTTP/1.1 503 Service Unavailable\r\n\r\n"], "503"),
        ([b"HTT", b"P/1.1 404 Not Found\r\n\r\n"], "404"),
        ([HEAD + b"4\r\nword\r\n"], "broke off"),
        ([], "broke off"),
    ],
    ids=["refused", "refused in pieces", "no end", "nothing"],
)
async def test_what_is_no_whole_answer_is_refused(pieces: list[bytes], words: str) -> None:
    async with playing(pieces) as address:
        with pytest.raises(EppError, match=words):
            await ask(address, b"{}")
