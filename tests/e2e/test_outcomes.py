"""However a request ends, one outcome of it is on record, with what can be known: picker, Envoy, raw replicas."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.process import EnvoyProcess
from epp.envoy.settings import EnvoySettings
from tests.kit.envoy import ScriptedUpstream
from tests.kit.picker import PickerProcess
from tests.kit.records import recorded
from tests.observe import answers
from tests.observe.conftest import Client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.observe.answers import Script

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 400}], "stream": True})
NO_PROBES: dict[str, Any] = {"probe": {"interval_s": 0}, "scrape": {"interval_s": 0}}


class Deployment:
    """One picker, one Envoy and replicas that play scripts; the first of them is preferred."""

    def __init__(self, folder: Path, *, dead_first: bool = False) -> None:
        self._folder, self._dead_first = folder, dead_first
        self._exit = AsyncExitStack()
        self.script: Script = answers.whole(b"{}")
        self.picker = PickerProcess(folder, **NO_PROBES)

    async def __aenter__(self) -> Self:
        async def play(_: str, writer: asyncio.StreamWriter) -> None:
            await self.script(writer)

        self.upstream = await self._exit.enter_async_context(ScriptedUpstream(play))
        addresses = [self.upstream.endpoint.address]
        if self._dead_first:
            addresses.insert(0, "127.0.0.1:1")
        specs = [
            EndpointSpec(address=address, rtt_ms=1.0 + 50.0 * at) for at, address in enumerate(addresses)
        ]
        (self._folder / "endpoints.yaml").write_bytes(dump_pool(specs))
        self._exit.push_async_callback(self.picker.stop)
        await self.picker.start()
        host, _, port = self.picker.grpc.rpartition(":")
        settings = EnvoySettings(
            endpoints=tuple(spec.endpoint() for spec in specs), listener_port=0, admin_port=0,
            picker_host=host, picker_port=int(port), message_timeout_ms=5000, report_interval_ms=20,
            first_token_port=int(self.picker.first_token.rpartition(":")[2]),
        )  # fmt: skip
        envoy = EnvoyProcess(settings, folder=self._folder / "envoy")
        self.envoy = await self._exit.enter_async_context(envoy)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def ask(self) -> Client:
        host, _, port = self.envoy.listener_url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\naccept-encoding: gzip\r\n"
            f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n{BODY}".encode()
        )
        return Client(reader, writer)

    async def whole(self, script: Script) -> Client:
        self.script = script
        client = await self.ask()
        await client.read_head()
        await client.body()
        client.leave()
        return client

    async def outcomes(self, count: int) -> list[dict[str, Any]]:
        """That many outcomes from the records, in the order in which they were told."""
        found: list[dict[str, Any]] = []
        records = self._folder / "records"
        async with asyncio.timeout(15):
            while len(found) < count:
                await asyncio.sleep(0.05)
                found = [record for record in recorded(records) if record["kind"] == "outcome"]
        return found


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
            client = await deployment.whole(script)
            outcome = (await deployment.outcomes(number))[-1]
            assert outcome["id"] == client.header("x-epp-decision-id")
            for fact, value in expected.items():
                seen = outcome[fact]
                assert seen is not None if value is ... else seen == value, (fact, outcome)
            known = {fact for fact in outcome["sources"] if outcome[fact] is None}
            assert not known, "what has a source is known"
            assert outcome["served"] == outcome["endpoint"] == deployment.upstream.endpoint.address
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
        await writer.drain()
        await asyncio.Event().wait()

    async with Deployment(tmp_path) as deployment:
        deployment.script = silent
        client = await deployment.ask()
        await asyncio.wait_for(asked.wait(), 10)
        client.leave()
        (before,) = await deployment.outcomes(1)
        assert (before["cause"], before["ttft_ms"], before["itl_ms"]) == ("client-gone", None, None)
        deployment.script = never_ends
        client = await deployment.ask()
        await client.read_head()
        await client.reader.readuntil(b"\n\n")
        client.leave()
        after = (await deployment.outcomes(2))[-1]
        assert (after["cause"], after["status"], after["cached_tokens"]) == ("client-gone", 200, None)
        assert 0.0 < after["ttft_ms"] <= after["e2e_ms"]
        assert after["sources"]["ttft_ms"] == "envoy"
        assert await deployment.picker.metric("llm_d_epp_inflight_requests") == 0


async def test_a_retry_is_told_with_both_endpoints(tmp_path: Path) -> None:
    async with Deployment(tmp_path, dead_first=True) as deployment:
        await deployment.whole(answers.stream(answers.token("a"), answers.usage(), answers.DONE))
        (outcome,) = await deployment.outcomes(1)
        assert outcome["cause"] == "retried-elsewhere"
        assert outcome["endpoint"] == "127.0.0.1:1"
        assert outcome["served"] == deployment.upstream.endpoint.address
        assert (outcome["attempts"], outcome["cached_tokens"]) == (2, 1024)
