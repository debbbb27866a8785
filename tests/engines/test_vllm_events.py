"""KV events of two real vLLM replicas with small caches: precision and recall with and without; ``make test-vllm``."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.engines.test_vllm import FEW_BLOCKS, Engines, VllmServing, print_hits
from tests.kit.engine_process import post, precision_and_recall
from tests.kit.envoy import require_envoy
from tests.kit.ports import free_ports
from tests.kit.vllm import MODEL, environment, write_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.kit.engine_process import Seen
    from tests.kit.vllm import Vllm

pytestmark = pytest.mark.timeout(1500)


async def test_events_tell_what_a_small_cache_holds(tmp_path: Path) -> None:
    """A third of the requests goes past the picker, straight to an engine."""
    require_envoy()
    engines = Engines(environment(), tmp_path)
    write_model(tmp_path / "model")
    ports = [(free_ports(), free_ports(2)) for _ in range(2)]
    flags = [
        (*FEW_BLOCKS, "--kv-events-config", json.dumps({
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{publishes}",
            "replay_endpoint": f"tcp://*:{publishes + 1}",
        }))
        for _, publishes in ports
    ]  # fmt: skip
    pair = [engines.make(port, *more) for (port, _), more in zip(ports, flags, strict=True)]
    publishers = {
        engine.address: (f"tcp://127.0.0.1:{publishes}", f"tcp://127.0.0.1:{publishes + 1}")
        for engine, (_, publishes) in zip(pair, ports, strict=True)
    }
    found: dict[bool, list[Seen]] = {}
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(engine) for engine in pair))
        for events in (False, True):
            folder = tmp_path / f"events-{events}"
            folder.mkdir()
            kv_events = {"enabled": events}
            async with VllmServing(folder, *pair, publishers=publishers, kv_events=kv_events) as serving:
                found[events] = await _with_pressure(serving, pair, f"{events} events, ")
    for events, requests in found.items():
        print_hits(f"a small cache, events {'on' if events else 'off'}", requests)
    assert min(precision_and_recall(found[True])) >= 0.9


async def _with_pressure(serving: VllmServing, pair: Sequence[Vllm], salt: str) -> list[Seen]:
    """Ask what overflows the caches twice; one of three requests goes straight to an engine."""
    random, prompts = Random(0), [f"{salt}{number} of forty. " * 110 for number in range(40)]
    asked = [*prompts, *random.choices(prompts, [1 / rank for rank in range(1, 41)], k=80)]
    ours = 0
    async with aiohttp.ClientSession() as session:
        for text in asked:
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
            if random.random() < 1 / 3:
                url = f"http://{random.choice(pair).address}/v1/chat/completions"
                async with session.post(url, json=body) as answer:
                    assert answer.status == 200
            else:
                await post(serving, "/v1/chat/completions", body)
                ours += 1
    return await serving.requests(ours)
