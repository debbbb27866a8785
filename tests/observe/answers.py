"""Answers that a scripted upstream gives: heads, chunks, events and whole scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    Script = Callable[[asyncio.StreamWriter], Awaitable[None]]

STREAM = "content-type: text/event-stream; charset=utf-8\r\n"
JSON = "content-type: application/json\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 1200,
    "total_tokens": 1205,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1024},
}


def head(headers: str = STREAM, status: str = "200 OK") -> bytes:
    """The head of a chunked answer."""
    return f"HTTP/1.1 {status}\r\n{headers}transfer-encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """One HTTP/1.1 chunk; the empty one ends the answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}], "usage": None})


def usage(fields: object = None) -> bytes:
    return event({"choices": [], "usage": USAGE if fields is None else fields})


def stream(*pieces: bytes, headers: str = STREAM) -> Script:
    """Each piece in a packet of its own, and so in a chunk of its own behind Envoy."""
    return whole(b"".join(pieces), headers, pieces)


def whole(body: bytes, headers: str = JSON, pieces: tuple[bytes, ...] = (), status: str = "200 OK") -> Script:
    """An answer that is complete at once, or in pieces."""

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(head(headers, status))
        for piece in pieces or (body,):
            writer.write(chunk(piece))
            await writer.drain()
        writer.write(chunk(b""))

    return play
