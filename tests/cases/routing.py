"""Routing: refusals beside idle engines, engines' own names of their queues, two `epp up` at once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tests.cases.engine import CaseEngine, Cases, Reply, answered
from tests.kit.records import recorded
from tests.kit.replicas import MODEL
from tests.kit.up import Up
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


def refusals(status: int) -> Callable[[Path], Awaitable[float]]:
    """How many of 24 clients get an engine's refusal while the other one has room."""
    error = {"error": {"message": "busy", "type": "overloaded", "code": status}}

    async def measure(folder: Path) -> float:
        idle = Reply([0.2, json.dumps(answered()).encode()])
        engines = [CaseEngine(reply=lambda *_: Reply.of(error, status)), CaseEngine(reply=lambda *_: idle)]
        async with Cases(folder, engines) as fleet:

            async def ask(number: int) -> tuple[int, str]:
                return await fleet.post(
                    {"model": MODEL, "messages": [{"role": "user", "content": str(number)}]}
                )

            return sum(got == status for got, _ in await fleet.each(24, 3, ask))

    return measure


#: A page of metrics by its path; each engine says that three requests wait and four run.
_PAGES = {
    "vllm": {
        "/metrics": 'vllm:num_requests_waiting{model_name="m"} 3\nvllm:num_requests_running{model_name="m"} 4\n'
    },
    "vllm by a collector": {"/metrics": "vllm_num_requests_waiting 3\nvllm_num_requests_running 4\n"},
    "vllm, quoted": {
        "/metrics": '{"vllm:num_requests_waiting", model_name="m"} 3\n{"vllm:num_requests_running", model_name="m"} 4\n'
    },
    "Ray Serve": {"/metrics": "ray_vllm_num_requests_waiting 3\nray_vllm_num_requests_running 4\n"},
    "SGLang": {"/metrics": "sglang:num_queue_reqs 3\nsglang:num_running_reqs 4\n"},
    "SGLang by a collector": {"/metrics": "sglang_num_queue_reqs 3\nsglang_num_running_reqs 4\n"},
    "TensorRT-LLM": {
        "/metrics": "[]",
        "/prometheus/metrics": "trtllm_num_requests_waiting 3\ntrtllm_num_requests_running 4\n",
    },
    "TGI": {"/metrics": "tgi_queue_size 3\ntgi_batch_current_size 4\n"},
    "LMDeploy": {"/metrics": "lmdeploy:num_requests_waiting 3\nlmdeploy:num_requests_running 4\n"},
}


async def kills(folder: Path) -> float:
    """How many requests fail that begin while one of three engines is gone, which each is in turn, 20 times.

    Those that it was just reading are lost with it, and not counted.
    """
    engines = [CaseEngine() for _ in range(3)]
    async with Cases(folder, engines) as fleet:
        gone, over, failed = asyncio.Event(), asyncio.Event(), 0

        async def client(number: int) -> None:
            nonlocal failed
            while not over.is_set():
                begun = gone.is_set()
                said = f"{number} {len(engines[0].asked)}"
                status, _ = await fleet.post(
                    {"model": MODEL, "messages": [{"role": "user", "content": said}]}
                )
                failed += begun and status != 200

        clients = [asyncio.ensure_future(client(number)) for number in range(8)]
        for number in range(20):
            await asyncio.sleep(1.0)
            engine = engines[number % 3]
            await engine.__aexit__()
            gone.set()
            await asyncio.sleep(0.4)
            gone.clear()
            await engine.__aenter__()
        over.set()
        await asyncio.gather(*clients)
        return failed


async def engine_metrics(folder: Path) -> float:
    """How many engines' queues are not read."""
    engines = [CaseEngine(metrics=pages) for pages in _PAGES.values()]
    async with Cases(folder, engines) as fleet:
        await asyncio.sleep(3.0)  # some scrapes
        await fleet.post({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})

        def decisions() -> list[dict[str, object]]:
            return [one for one in recorded(folder / "records") if one["kind"] == "decision"]

        await until(decisions)
        decision: dict[str, object] = decisions()[-1]
        unknown, signals = decision["unknown"], decision["signals"]
        assert isinstance(unknown, dict)
        assert isinstance(signals, dict)
        found = 0
        for index in range(len(engines)):
            known = all(index not in unknown.get(name, ()) for name in ("engine_waiting", "engine_running"))
            found += known and (signals["engine_waiting"][index], signals["engine_running"][index]) == (3, 4)
        return len(engines) - found


async def two_ups(folder: Path) -> float:
    """How many of two `epp up` die that are started at once, five times over."""
    died = 0
    async with CaseEngine(reply=lambda *_: Reply.of(answered()), listed=["m"]) as engine:
        words = ["up", f"http://{engine.address}", "--listen", "127.0.0.1:0"]
        for number in range(5):
            folders = [folder / f"{number}-{name}" for name in "ab"]
            for each in folders:
                each.mkdir()
            ups = [Up("up", words, each) for each in folders]
            async with ups[0], ups[1]:
                ready = await asyncio.gather(*(up.ready() for up in ups), return_exceptions=True)
                died += sum(isinstance(one, BaseException) for one in ready)
    return died
