"""However a request ends, one outcome of it is on record, with what can be known: picker, Envoy, raw replicas."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

from epp.config.pool import EndpointSpec
from epp.envoy.settings import Variant
from tests.kit.scripted import Gateway, request
from tests.observe import answers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.scripted import Reply
    from tests.observe.answers import Script

DEAD = "127.0.0.1:1"


class Deployment(Gateway):
    """One picker, one Envoy that reports, and a replica that plays scripts."""

    def __init__(self, folder: Path) -> None:
        self.script: Script = answers.whole(b"{}")
        super().__init__(
            folder,
            lambda _, writer: self.script(writer),
            variant=Variant.STANDALONE,
            envoy={"report_interval_ms": 20},
        )

    async def whole(self, script: Script) -> Reply:
        self.script = script
        return await self.ask()


class AfterADeadOne(Deployment):
    """Its replica comes after one that is preferred and dead."""

    def specs(self) -> list[EndpointSpec]:
        return [
            EndpointSpec(address=DEAD, rtt_ms=1.0),
            EndpointSpec(address=self.upstream.address, rtt_ms=51.0),
        ]


async def test_answers_that_end_well_or_badly(tmp_path: Path) -> None:
    last = answers.usage() + answers.DONE
    packed = gzip.compress(json.dumps({"usage": answers.USAGE}).encode())

    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(answers.token("a")))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def empty(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    cases: list[tuple[Script, dict[str, Any]]] = [
        (
            answers.stream(answers.token("a"), last[:40], last[40:]),
            {"cause": "completed", "status": 200, "cached_tokens": 1024, "prompt_tokens": 1200},
        ),
        (
            answers.whole(json.dumps({"usage": answers.USAGE}).encode()),
            {"cause": "completed", "status": 200, "completion_tokens": 5, "itl_ms": None},
        ),
        (
            answers.whole(packed, answers.JSON + "content-encoding: gzip\r\n"),
            {"cause": "completed", "status": 200, "cached_tokens": None, "prompt_tokens": None},
        ),
        (
            answers.stream(answers.token("a"), answers.DONE),
            {"cause": "completed", "status": 200, "cached_tokens": None, "completion_tokens": None},
        ),
        (broken, {"cause": "upstream-reset", "status": 200, "chunks": None, "e2e_ms": ...}),
        (empty, {"cause": "completed", "status": 204, "ttft_ms": None, "response_bytes": 0}),
        (
            answers.whole(b'{"error": {}}', status="400 Bad Request"),
            {"cause": "completed", "status": 400, "ttft_ms": None},
        ),
        (
            answers.whole(b'{"error": {}}', status="500 Internal Server Error"),
            {"cause": "completed", "status": 500, "ttft_ms": None},
        ),
    ]
    async with Deployment(tmp_path) as deployment:
        for number, (script, expected) in enumerate(cases, 1):
            reply = await deployment.whole(script)
            outcome = await deployment.outcome(number)
            assert f"x-epp-decision-id: {outcome['id']}\r\n" in reply.head
            for fact, value in expected.items():
                seen = outcome[fact]
                assert seen is not None if value is ... else seen == value, (fact, outcome)
            known = {fact for fact in outcome["sources"] if outcome[fact] is None}
            assert not known, "what has a source is known"
            assert outcome["served"] == outcome["endpoint"] == deployment.upstream.address
        assert await deployment.picker.metric("epp_compressed_answers_total") == 1
        assert await deployment.picker.metric("epp_requests_in_flight") == 0
        assert await deployment.picker.metric("llm_d_epp_inflight_requests") == 0


async def test_clients_that_leave(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def silent(_: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async def never_ends(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head() + answers.chunk(answers.token("a")))
        await asyncio.Event().wait()

    async with Deployment(tmp_path) as deployment:
        deployment.script = silent
        _, writer = await deployment.connect()
        writer.write(request())
        await asyncio.wait_for(asked.wait(), 240)
        writer.transport.abort()
        before = await deployment.outcome()
        assert (before["cause"], before["ttft_ms"], before["itl_ms"]) == ("client-gone", None, None)
        deployment.script = never_ends
        reader, writer = await deployment.connect()
        writer.write(request())
        await reader.readuntil(b'"content": "a"')
        writer.transport.abort()
        after = await deployment.outcome(2)
        assert (after["cause"], after["status"], after["cached_tokens"]) == ("client-gone", 200, None)
        assert 0.0 < after["ttft_ms"] <= after["e2e_ms"]
        assert after["sources"]["ttft_ms"] == "envoy"
        assert await deployment.picker.metric("llm_d_epp_inflight_requests") == 0


async def test_a_retry_is_told_with_both_endpoints(tmp_path: Path) -> None:
    async with AfterADeadOne(tmp_path) as deployment:
        await deployment.whole(answers.stream(answers.token("a"), answers.usage(), answers.DONE))
        outcome = await deployment.outcome()
        assert (outcome["cause"], outcome["endpoint"]) == ("retried-elsewhere", DEAD)
        assert outcome["served"] == deployment.upstream.address
        assert (outcome["attempts"], outcome["cached_tokens"]) == (2, 1024)
