"""What engines say inside their answers, through a real Envoy: by its filter, and by the picker in full duplex."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from epp.envoy.settings import Variant
from tests.kit.scripted import Gateway, Upstream
from tests.observe import answers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.scripted import Script

BOTH = pytest.mark.parametrize("variant", [Variant.STANDALONE, Variant.FULL_DUPLEX])
ROLE = answers.event({"model": "m", "choices": [{"delta": {"role": "assistant", "content": ""}}]})
FAILED = answers.event(
    {"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}}
)
#: Envoy's own passive checks see statuses alone; the pool has two, so that one is left.
CLIENTS, REQUESTS = 4, 60


def says(*pieces: bytes, after_s: float = 0.0, until: asyncio.Event | None = None) -> Script:
    """A stream whose pieces but the first wait for a time or an event."""

    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(pieces[0]))
        await (asyncio.sleep(after_s) if until is None else until.wait())
        writer.write(b"".join(map(answers.chunk, pieces[1:])) + answers.chunk(b""))

    return play


@BOTH
async def test_an_engine_that_fails_in_no_time_draws_no_load(tmp_path: Path, variant: Variant) -> None:
    working = Upstream(says(ROLE, answers.token("a"), answers.DONE, after_s=0.02))
    async with Gateway(tmp_path, says(FAILED, answers.DONE), working, variant=variant) as gateway:
        failing = gateway.upstream

        async def client() -> int:
            return sum([b"boom" in (await gateway.ask()).body for _ in range(REQUESTS // CLIENTS)])

        errors = sum(await asyncio.gather(*(client() for _ in range(CLIENTS))))
        # Five failures eject it, those that were on their way come on top, and one more each trial.
        assert 5 <= errors <= 5 + 3 * CLIENTS
        outcomes = {"endpoint": failing.address, "cause": "failed-answer", "status": "2xx"}
        await gateway.picker.until_metric("epp_outcomes_total", lambda count: count == errors, **outcomes)
        assert await gateway.picker.metric(
            "epp_endpoint_events_total", endpoint=failing.address, event="ejected"
        )


@BOTH
async def test_a_chunk_without_content_is_no_first_token(tmp_path: Path, variant: Variant) -> None:
    prefilled = asyncio.Event()
    script = says(ROLE, answers.token("a"), answers.DONE, until=prefilled)
    async with Gateway(tmp_path, script, variant=variant) as gateway:
        where = {"endpoint": gateway.upstream.address}
        reader, writer = await gateway.connect()
        writer.write(_long_request())
        await reader.readuntil(b'"assistant"')
        assert await gateway.picker.metric("epp_endpoint_pending_uncached_tokens", **where) > 1000
        prefilled.set()
        await reader.readuntil(b"[DONE]")
        await gateway.picker.until_metric(
            "epp_endpoint_pending_uncached_tokens", lambda left: left == 0, **where
        )
        writer.close()


def _long_request() -> bytes:
    messages = [{"role": "user", "content": "many words " * 2000}]
    body = json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@BOTH
async def test_an_engine_without_the_model_says_so_in_the_record(tmp_path: Path, variant: Variant) -> None:
    error: dict[str, Any] = {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}
    body = json.dumps({"error": error}).encode()

    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (
            f"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)

    async with Gateway(tmp_path, play, variant=variant) as gateway:
        assert (await gateway.ask()).status == 404
        assert (await gateway.outcome())["failure"] == {"status": 404, "code": "model_not_found"}
