"""Requests that wait in the picker, behind a real Envoy, for an engine that is busy with long prompts."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import ClientTimeout
from msgspec.structs import replace

from epp.request.queueing import TTFT_SLO_HEADER
from tests.kit.engines import Engine, EngineServing
from tests.kit.replicas import CHAT, chat_body
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp import ClientResponse, web

    from epp.config.pool import EndpointSpec

#: Four of these take any engine seconds: there is no room beside them.
LONG = "a word or two " * 5_000
SIZE = "llm_d_epp_flow_control_queue_size"
REASON = "x-llm-d-request-dropped-reason"


@dataclass
class Busy(Engine):
    """An engine that answers nothing until it is told to."""

    free: asyncio.Event = field(default_factory=asyncio.Event)
    read: dict[int, Any] = field(default_factory=dict)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            await self.heard(request)
            await self.free.wait()
        return await super().serve(request)

    async def heard(self, request: web.Request) -> Any:
        if id(request) not in self.read:
            self.read[id(request)] = await super().heard(request)
        return self.read[id(request)]


@asynccontextmanager
async def full(folder: Path, **queue: float) -> AsyncIterator[tuple[EngineServing, Busy]]:
    """A picker with a queue, and one engine that has long prompts to read."""
    engine = Busy()
    section = {"enabled": True, "ttl_s": 60.0, **queue}
    envoy = {"queue_wait_s": 60.0}
    async with EngineServing(folder, [engine], queue=section, envoy=envoy, drain_s=60) as serving:
        long = [asyncio.ensure_future(serving.chat(f"{n} {LONG}")) for n in range(4)]
        await until(lambda: len(engine.asked) == 4)
        try:
            yield serving, engine
        finally:
            engine.free.set()
            await asyncio.gather(*long)


async def waits(serving: EngineServing, count: int = 1) -> None:
    await serving.picker.until_metric(SIZE, lambda value: value == count)


async def asked(serving: EngineServing, **headers: str) -> ClientResponse:
    async with serving.http.post(serving.url + CHAT, json=chat_body("hi"), headers=headers) as answer:
        await answer.read()
        return answer


async def test_a_request_waits_until_the_engine_has_answered_what_is_before_it(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, engine):
        second = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        assert len(engine.asked) == 4
        engine.free.set()
        assert (await second)[0] == 200
        await waits(serving, 0)
        assert await serving.picker.metric("epp_queue_seconds_count") == 1


async def test_who_waits_too_long_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with full(tmp_path, ttl_s=1.0) as (serving, _):
        answer = await asked(serving)
        assert answer.status == 429
        assert answer.headers["retry-after"] in {"1", "2"}
        assert answer.headers[REASON] == "rejected-ttl-expired"


async def test_who_cannot_be_answered_in_time_is_told_at_once(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, _):
        answer = await asked(serving, **{TTFT_SLO_HEADER: "50"})
        assert (answer.status, answer.headers[REASON]) == (429, "rejected-ttl-expired")


async def test_a_full_queue_takes_no_more(tmp_path: Path) -> None:
    async with full(tmp_path, max_requests=1) as (serving, engine):
        first = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        answer = await asked(serving)
        assert (answer.status, answer.headers[REASON]) == (429, "rejected-saturated")
        engine.free.set()
        assert (await first)[0] == 200


async def test_a_client_that_leaves_waits_no_more(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, _):
        leaving = asyncio.ensure_future(
            serving.http.post(serving.url + CHAT, json=chat_body("hi"), timeout=ClientTimeout(300))
        )
        await waits(serving)
        leaving.cancel()
        await waits(serving, 0)


async def test_a_picker_that_drains_lets_go_what_waits(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, engine):
        second = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        serving.picker.signal(signal.SIGTERM)
        engine.free.set()
        assert (await second)[0] == 200


async def test_what_waits_in_a_picker_that_is_killed_goes_on_by_envoys_fallback(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, engine):
        second = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        await serving.picker.kill()
        engine.free.set()
        assert (await second)[0] == 200


class _Small(EngineServing):
    """Engines whose KV caches keep one long context."""

    def specs(self) -> list[EndpointSpec]:
        return [replace(spec, kv_capacity_tokens=400_000) for spec in super().specs()]


async def test_an_agent_whose_context_has_no_place_is_held_and_others_are_not(tmp_path: Path) -> None:
    engine, context = Busy(), "a word or two " * 100_000
    engine.free.set()
    section = {"enabled": True, "programs": {"enabled": True, "longest_hold_s": 600.0}}
    async with _Small(tmp_path, [engine], queue=section, envoy={"queue_wait_s": 600.0}) as serving:
        picker = serving.picker
        assert (await serving.chat(context, headers={"x-session-id": "first"}))[0] == 200
        second = asyncio.ensure_future(serving.chat(f"2 {context}", headers={"x-session-id": "second"}))
        await picker.until_metric("epp_program_held", lambda value: value == 1)
        assert (await serving.chat("hello"))[0] == 200
        assert await picker.metric("epp_programs_active") == 1
        second.cancel()
        await picker.until_metric("epp_program_held", lambda value: value == 0)
