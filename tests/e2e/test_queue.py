"""Requests that wait in the picker, behind a real Envoy, for an engine that is busy with long prompts."""

from __future__ import annotations

import asyncio
import io
import re
import signal
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientTimeout
from msgspec.structs import replace
from rich.console import Console

from epp.envoy.settings import Variant
from epp.ops.top import drawn
from epp.request.queueing import FAIRNESS_HEADER, TTFT_SLO_HEADER
from epp.schedule.admission import OBJECTIVE_HEADERS
from tests.kit.browser import chromium
from tests.kit.engines import Answered, Engine, EngineServing
from tests.kit.events import pictures
from tests.kit.replicas import CHAT, chat_body
from tests.kit.waiting import until
from tests.server.test_workers import by_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp import ClientResponse, web

    from epp.config.pool import EndpointSpec

#: Four of these take any engine seconds: there is no room beside them.
LONG = "a word or two " * 5_000
FLOW_CONTROL = "llm_d_epp_flow_control"
SIZE = f"{FLOW_CONTROL}_queue_size"
ENDS = f"{FLOW_CONTROL}_requests_total"
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
async def full(
    folder: Path, *, variant: Variant = Variant.STANDALONE, drain_s: float = 60.0, **queue: float
) -> AsyncIterator[tuple[EngineServing, Busy]]:
    """A picker with a queue, and one engine that has long prompts to read."""
    engine = Busy()
    options: dict[str, Any] = {
        "queue": {"enabled": True, "ttl_s": 60.0, **queue},
        "envoy": {"queue_wait_s": 60.0},
        "variant": variant,
        "drain_s": drain_s,
        "saturation": {"stale_after_s": 1.0},
    }
    async with EngineServing(folder, [engine], **options) as serving:
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
        assert await serving.picker.metric(f"{FLOW_CONTROL}_dispatch_cycle_duration_seconds_count") > 0
        # The engine has no metrics.
        stale = f"{FLOW_CONTROL}_stale_endpoints"
        assert await serving.picker.metric(stale, detector="utilization-detector") == 1


async def test_the_page_shows_who_waits_for_what_and_explains_why_it_was_let_go(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, engine), chromium(tmp_path) as page:
        await page.open(f"http://{serving.picker.http}/ui")
        await page.until("document.getElementById('state')?.textContent === 'live'")
        assert await page.look("document.getElementById('waiting').hidden"), "nothing has waited yet"
        waiting = [
            asyncio.ensure_future(serving.chat(f"hello {number}", headers={FAIRNESS_HEADER: "team-a"}))
            for number in range(2)
        ]
        await waits(serving, 2)
        assert await serving.picker.metric(SIZE, fairness_id="team-a", priority="0") == 2
        await page.until("document.querySelector('#queue td:nth-child(3)')?.textContent === '2'")
        shown = await page.look("document.querySelector('#queue tr').innerText")
        assert shown.startswith("team-a")
        what = f"({engine.address}|any engine)"  # where the pool is read anew while they wait: any
        assert re.search(rf"{what} \(2\)$", shown)
        for width in (400, 1280, 2200):
            sizes = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **sizes)
            root = "document.documentElement"
            assert await page.look(f"{root}.scrollWidth === {root}.clientWidth"), f"it scrolls at {width} px"
        async with pictures(serving.picker.http) as heard:
            printed = Console(width=160, file=io.StringIO(), record=True)
            printed.print(drawn(await anext(heard), Counter(), 160, 50))
            assert re.search(f"team-a {what}", printed.export_text())
        engine.free.set()
        assert [(await each)[0] for each in waiting] == [200, 200]
        await page.until("document.getElementById('queue').children.length === 0")
        url = f"http://{serving.picker.http}/decisions/newest"
        async with serving.http.get(url, params={"explained": ""}) as answer:
            why = (await answer.json())["words"][1]
        told = rf"waited \d+\.\d s for {what}, let go because (its|an) engine (joined or )?had room; then "
        assert re.match(told, why), why
        duration = "llm_d_epp_flow_control_request_queue_duration_seconds_count"
        assert await serving.picker.metric(duration, fairness_id="team-a", outcome="Dispatched") == 2
        assert await serving.picker.metric(duration, fairness_id="default-flow", outcome="Dispatched") == 4


async def test_who_waits_too_long_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with full(tmp_path, ttl_s=1.0) as (serving, _):
        answer = await asked(serving)
        assert answer.status == 429
        assert answer.headers["retry-after"] in {"1", "2"}
        assert answer.headers[REASON] == "rejected-ttl-expired"
        assert await serving.picker.metric("epp_refusals_total", rule="queue-ttl") == 1
        assert await serving.picker.metric(ENDS, outcome="EvictedTTL", priority="0") == 1
        async with pictures(serving.picker.http) as heard:
            assert [row[2] for row in (await anext(heard))["failures"]] == ["refused with 429: queue-ttl"]


async def test_who_cannot_be_answered_in_time_is_told_at_once(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, _):
        answer = await asked(serving, **{TTFT_SLO_HEADER: "50"})
        assert (answer.status, answer.headers[REASON]) == (429, "rejected-ttl-expired")


async def test_a_full_queue_takes_no_more(tmp_path: Path) -> None:
    async with full(tmp_path, max_requests=1, total_requests=4, total_bytes=1e6) as (serving, engine):
        used = f"{FLOW_CONTROL}_capacity_utilization_requests"
        assert await serving.picker.metric(used, priority="0") == 0
        first = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        answer = await asked(serving)
        assert (answer.status, answer.headers[REASON]) == (429, "rejected-saturated")
        assert await serving.picker.metric(ENDS, outcome="RejectedCapacity") == 1
        assert await serving.picker.metric(used, priority="0") == 1
        assert 0 < await serving.picker.metric(f"{FLOW_CONTROL}_capacity_utilization_bytes") < 1
        assert await serving.picker.metric(f"{FLOW_CONTROL}_global_capacity_utilization_requests") == 0.25
        assert 0 < await serving.picker.metric(f"{FLOW_CONTROL}_global_capacity_utilization_bytes") < 1
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
        assert await serving.picker.metric(ENDS, outcome="EvictedContextCancelled") == 1


async def test_a_picker_that_drains_lets_go_what_waits(tmp_path: Path) -> None:
    async with full(tmp_path) as (serving, engine):
        second = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        serving.picker.signal(signal.SIGTERM)
        engine.free.set()
        assert (await second)[0] == 200


async def test_what_still_waits_near_the_end_of_a_drain_is_refused(tmp_path: Path) -> None:
    async with full(tmp_path, drain_s=3.0) as (serving, _):
        second = asyncio.ensure_future(asked(serving))
        await waits(serving)
        serving.picker.signal(signal.SIGTERM)
        answer = await second
        assert (answer.status, answer.headers[REASON]) == (503, "rejected-shutting-down")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_what_waits_in_a_picker_that_dies_or_freezes_goes_on_by_envoys_fallback(
    tmp_path: Path, how: signal.Signals
) -> None:
    async with full(tmp_path) as (serving, engine):
        second = asyncio.ensure_future(serving.chat("hello"))
        await waits(serving)
        serving.picker.signal(how)
        await until(lambda: len(engine.asked) == 5)
        engine.free.set()
        assert (await second)[0] == 200
        if how is signal.SIGSTOP:
            serving.picker.signal(signal.SIGCONT)


async def test_a_newcomer_lets_those_go_first_who_wait_at_another_worker(tmp_path: Path) -> None:
    words = b'{"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": 1}}'
    busy, idle = Busy(models=["big"]), Engine(models=["small"], answer=lambda _: Answered([words]))
    queue = {"enabled": True, "ttl_s": 300.0, "priorities": {"high": 1}}
    async with EngineServing(
        tmp_path,
        [busy, idle],
        queue=queue,
        envoy={"queue_wait_s": 300.0},
        options=("--workers", "2"),
        concurrency=4,
    ) as serving:
        high: dict[str, Any] = {"model": "big", "headers": {OBJECTIVE_HEADERS[0]: "high"}}
        long = [asyncio.ensure_future(serving.chat(f"{n} {LONG}", **high)) for n in range(4)]
        await until(lambda: len(busy.asked) == 4)
        waiting = asyncio.ensure_future(serving.chat("hello", **high))
        await waits(serving)
        (where,) = +(await by_worker(serving, SIZE))
        before = await by_worker(serving, "epp_queue_seconds_count")

        async def one_waited_elsewhere() -> bool:
            newcomers = [
                serving.chat(f"hi {n}", model="small") for n in range(8)
            ]  # connections of both workers
            assert [status for status, _ in await asyncio.gather(*newcomers)] == [200] * 8
            ended = await by_worker(serving, "epp_queue_seconds_count")
            return ended[1 - where] > before[1 - where]

        await until(one_waited_elsewhere)
        busy.free.set()
        assert [status for status, _ in await asyncio.gather(waiting, *long)] == [200] * 5
        await waits(serving, 0)


async def test_in_full_duplex_nothing_waits_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with full(tmp_path, variant=Variant.FULL_DUPLEX) as (serving, engine):
        second = asyncio.ensure_future(serving.chat("hello"))
        await until(lambda: len(engine.asked) == 5)
        await waits(serving, 0)
        engine.free.set()
        assert (await second)[0] == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_what_waits_in_full_duplex_in_a_picker_that_dies_or_freezes_may_come_again(
    tmp_path: Path, how: signal.Signals
) -> None:
    async with full(tmp_path, variant=Variant.FULL_DUPLEX, full_duplex=True) as (serving, engine):
        second = asyncio.ensure_future(asked(serving))
        await waits(serving)
        serving.picker.signal(how)
        answer = await second
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert len(engine.asked) == 4
        if how is signal.SIGSTOP:
            serving.picker.signal(signal.SIGCONT)


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
