"""The load generator against a small server on a real socket."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from epp_lab.compare.load import LoadOptions, RequestResult, run_load
from epp_lab.compare.trace import TraceRequest
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TinyServer:
    """Streams a fixed answer in chunks cut without regard to events; notes what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.sessions: list[str] = []
        self.base_url = ""
        self.running = self.most_running = self.cancelled = 0
        self.release = asyncio.Event()
        self.release.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.sessions.append(request.headers.get("x-session-id", ""))
        kind = body["messages"][0]["content"] if body["model"] == "by-content" else body["model"]
        if kind == "busy":
            return web.Response(status=503, text="no room")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream",
                "x-served-by": "10.0.0.1:80",
                "x-epp-decision-id": "d7",
            }
        )
        try:
            await response.prepare(request)
            await self.release.wait()
            stream = self.stream(len(self.bodies), cut_off=kind == "cut")
            for at in range(0, len(stream), 37):
                await response.write(stream[at : at + 37])
                await asyncio.sleep(0)
            if kind == "cut" and request.transport is not None:
                request.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return response

    @staticmethod
    def stream(number: int, *, cut_off: bool) -> bytes:
        def event(body: dict[str, Any]) -> bytes:
            return b"data: " + json.dumps(body).encode() + b"\n\n"

        words = ["said ", f'"{number}" ', "times"]
        out = b"".join(event({"choices": [{"delta": {"content": word}}]}) for word in words)
        if cut_off:
            return out[:-20]
        details = {
            "prompt_tokens": 40,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 16},
        }
        return out + event({"choices": [], "usage": details}) + b"data: [DONE]\n\n"


@asynccontextmanager
async def serving() -> AsyncIterator[TinyServer]:
    server = TinyServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def ask(at_ms: float = 0.0, session: str = "s", after: int | None = None, **more: Any) -> TraceRequest:
    fields: dict[str, Any] = {"prompt_tokens": 40, "block_ids": (1, 2, 3), "turn_starts": (8,)} | more
    return TraceRequest(
        at_ms=at_ms, session=session, user="u", output_tokens=3, block_tokens=16, after=after, **fields
    )


async def test_a_request_is_measured_and_described() -> None:
    async with serving() as server:
        seen: list[RequestResult] = []
        results = await run_load([ask()], LoadOptions(server.base_url, "m"), on_result=seen.append)
    (result,) = results
    assert seen == results
    assert result.ok
    assert (result.status, result.served_by, result.decision_id) == (200, "10.0.0.1:80", "d7")
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (40, 3, 16)
    assert result.ttft_ms is not None
    assert result.itl_ms is not None
    assert 0 <= result.slip_ms <= result.ttft_ms <= result.e2e_ms
    assert result.itl_ms == pytest.approx((result.e2e_ms - result.ttft_ms) / 2)
    (body,) = server.bodies
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 3, True)
    assert body["stream_options"] == {"include_usage": True}
    assert [m["role"] for m in body["messages"]] == ["system", "user"]


async def test_a_follower_comes_after_the_answer_and_contains_it() -> None:
    trace = [ask(), ask(0.0, after=0, think_ms=5.0, prompt_tokens=80, turn_starts=(8, 40, 44))]
    async with serving() as server:
        first, second = await run_load(trace, LoadOptions(server.base_url, "m"))
    assert second.intended_ms >= first.intended_ms + first.e2e_ms + 5.0
    before, after = (body["messages"] for body in server.bodies)
    assert after[:2] == before
    assert after[2] == {"role": "assistant", "content": 'said "1" times'}
    assert after[3]["role"] == "user"


async def test_an_answer_cut_off_is_an_error() -> None:
    async with serving() as server:
        (result,) = await run_load([ask()], LoadOptions(server.base_url, "cut"))
    assert not result.ok
    assert result.status == 200


async def test_waiting_for_a_slot_counts_as_latency() -> None:
    async with serving() as server:
        trace = [ask(session=f"s{i}") for i in range(6)]
        results = await run_load(trace, LoadOptions(server.base_url, "m", max_in_flight=2))
    assert server.most_running <= 2
    assert len(results) == 6
    # All were due at once: the last one waited for those before it, and its latency says so.
    assert max(r.slip_ms for r in results) >= min(r.e2e_ms for r in results)
    assert all(r.e2e_ms >= r.slip_ms for r in results)


async def test_roots_do_not_wait_for_answers() -> None:
    async with serving() as server:
        server.release.clear()
        trace = [ask(session=f"s{i}", at_ms=float(i)) for i in range(20)]
        run = asyncio.create_task(run_load(trace, LoadOptions(server.base_url, "m")))
        await until(lambda: server.running == 20)
        server.release.set()
        assert all(r.ok for r in await run)
    assert sorted(server.sessions) == sorted(f"s{i}" for i in range(20))


async def test_cancelling_closes_the_connections() -> None:
    async with serving() as server:
        server.release.clear()
        trace = [ask(session=f"s{i}") for i in range(5)]
        run = asyncio.create_task(run_load(trace, LoadOptions(server.base_url, "m")))
        await until(lambda: server.running == 5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await until(lambda: server.running == 0)
        assert server.cancelled == 5
