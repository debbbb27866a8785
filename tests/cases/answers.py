"""Answers: what is taken for a first token, what for a success, and what teaches the hit ratio."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from tests.cases.engine import CaseEngine, Cases, Reply, answered, event, usage
from tests.kit.records import recorded
from tests.kit.replicas import MODEL
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

_PREFILL_S = 0.5
_CHUNK = {"id": "c", "object": "chat.completion.chunk", "model": MODEL}


def _delta(**delta: Any) -> bytes:
    return event({**_CHUNK, "choices": [{"index": 0, "delta": delta}]})


def _of_responses(prefill_s: float) -> Reply:
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    done = {**response, "status": "completed", "usage": {"input_tokens": 9, "output_tokens": 1}}
    return Reply.stream(
        event({"type": "response.created", "response": response}, "response.created"),
        event({"type": "response.in_progress", "response": response}, "response.in_progress"),
        prefill_s,
        event({"type": "response.output_text.delta", "delta": "good"}, "response.output_text.delta"),
        event({"type": "response.completed", "response": done}, "response.completed"),
    )


def _of_messages(prefill_s: float) -> Reply:
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "usage": {"input_tokens": 9, "output_tokens": 1},
    }
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "good"}}
    return Reply.stream(
        event({"type": "message_start", "message": message}, "message_start"),
        event({"type": "ping"}, "ping"),
        prefill_s,
        event(block, "content_block_start"),
        event(delta, "content_block_delta"),
        event({"type": "message_stop"}, "message_stop"),
    )


def _of_chat(prefill_s: float) -> Reply:
    return Reply.stream(
        _delta(role="assistant", content=""), prefill_s, _delta(content="good"), event("[DONE]")
    )


_APIS: dict[str, tuple[str, dict[str, Any], Callable[[float], Reply]]] = {
    "responses": ("/v1/responses", {"input": "hello"}, _of_responses),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9},
        _of_messages,
    ),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, _of_chat),
}


def first_tokens(api: str) -> Callable[[Path], Awaitable[float]]:
    """How much too early the first token of an API is told, in ms."""
    path, fields, reply = _APIS[api]

    async def measure(folder: Path) -> float:
        async with Cases(folder, [CaseEngine(reply=lambda *_: reply(_PREFILL_S))]) as fleet:
            await fleet.post({"model": MODEL, "stream": True, **fields}, path)
            outcomes: list[dict[str, Any]] = []

            def told() -> bool:
                outcomes[:] = [one for one in recorded(folder / "records") if one["kind"] == "outcome"]
                return bool(outcomes)

            await until(told)
            return max(0.0, _PREFILL_S * 1e3 - (outcomes[0]["ttft_ms"] or 0.0))

    return measure


async def pending(folder: Path) -> float:
    """The share of a prompt's tokens that counts as prefilled in the middle of its prefill, in percent."""
    engine = CaseEngine(reply=lambda *_: _of_responses(2.0))
    async with Cases(folder, [engine]) as fleet:
        body = {"model": MODEL, "stream": True, "input": "many words " * 4000}
        asked = asyncio.ensure_future(fleet.post(body, "/v1/responses"))
        await until(lambda: engine.asked)
        name = "epp_endpoint_pending_uncached_tokens"
        begun = time.monotonic()
        most = 0.0
        while time.monotonic() < begun + 1.0:
            now = await fleet.picker.metric(name, endpoint=engine.address)
            most = max(most, now)
            await asyncio.sleep(0.05)
        await asked
        return 100.0 if not most else 100.0 * (1.0 - now / most)


def errors(code: int) -> Callable[[Path], Awaitable[float]]:
    """How many of 90 clients get the error of an engine that answers each request with one, at once, in a 200."""

    def failed(*_: object) -> Reply:
        return Reply.stream(event({"error": {"message": "no", "type": "x", "code": code}}), event("[DONE]"))

    async def measure(folder: Path) -> float:
        good = CaseEngine(reply=lambda *_: _of_chat(0.4))
        async with Cases(folder, [CaseEngine(reply=failed), good]) as fleet:

            async def ask(number: int) -> tuple[int, str]:
                messages = [{"role": "user", "content": f"{number} " + "many words " * 720}]
                return await fleet.post({"model": MODEL, "stream": True, "messages": messages})

            answers = await fleet.each(90, 4, ask)
            return sum('"error"' in text for _, text in answers)

    return measure


async def hits(folder: Path) -> float:
    """The hit ratio lost by requests that no engine serves from its cache."""
    held = False

    def answer(path: str, fields: dict[str, Any]) -> Reply:
        nonlocal held
        cached, held = (4992 if held and path.startswith("/v1/chat") else 0), True
        if path.startswith("/v1/chat"):
            return Reply.of(answered(usage=usage(5000, cached)))
        return Reply.of({"choices": [{"text": "x"}], "usage": usage(5000, 0)})

    engine = CaseEngine(reply=answer)
    text = "some words of a prompt " * 1000
    async with Cases(folder, [engine]) as fleet:
        chat = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        for _ in range(6):
            await fleet.post(chat)
        before = await _hit_ratio(fleet, engine)
        scored = {
            "model": MODEL,
            "prompt": text,
            "max_tokens": 1,
            "echo": True,
            "logprobs": 1,
            "prompt_logprobs": 1,
        }
        for _ in range(40):
            await fleet.post(scored, "/v1/completions")
        return before - await _hit_ratio(fleet, engine)


async def _hit_ratio(fleet: Cases, engine: CaseEngine) -> float:
    await fleet.picker.until_metric("epp_requests_in_flight", lambda value: value == 0)
    await asyncio.sleep(0.5)  # reports follow the end of a request
    return await fleet.picker.metric("epp_endpoint_hit_ratio", endpoint=engine.address)
