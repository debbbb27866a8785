"""Simulated replicas for tests: fast engines, plain names, and what is asked of them most."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from epp_lab.sim.engine_class import L40S_X2
from epp_lab.sim.http import SimConfig, SimReplica
from tests.kit.waiting import HANGS_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    import aiohttp

MODEL = "sim-model"
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"

# An engine that answers within milliseconds and still queues, batches and evicts like the real one.
QUICK = replace(
    L40S_X2,
    name="quick",
    frontend_ms=1.0,
    frontend_ms_per_token=0.0,
    prefill_base_ms=1.0,
    prefill_ms_per_token=0.001,
    decode_curve=((1, 0.5), (64, 2.0)),
)


# A replica whose answers last until somebody leaves or time is up.
SLOW = replace(QUICK, decode_curve=((1, 50.0),))


def quick_config(name: str = "quick", **changes: Any) -> SimConfig:
    """A replica that answers at once; ``changes`` are fields of `SimConfig`."""
    return replace(SimConfig(name=name, engine_class=QUICK, models=(MODEL,), answer_tokens=16), **changes)


@contextlib.asynccontextmanager
async def running_fleet(configs: Sequence[SimConfig]) -> AsyncIterator[list[SimReplica]]:
    """Start one replica for each configuration and stop them all at the end."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SimReplica(config)) for config in configs]


@contextlib.contextmanager
def replicas_in_thread(*configs: SimConfig) -> Iterator[list[str]]:
    """Run replicas in a thread of their own, for commands that own their event loop; their URLs."""
    ready, urls = threading.Event(), list[str]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with running_fleet(configs) as fleet:
            urls.extend(replica.url for replica in fleet)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(HANGS_S)
        yield urls
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HANGS_S)
        loop.close()


def chat_body(*turns: str, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """A chat request: user and assistant turns in alternation, the user first."""
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": turn} for index, turn in enumerate(turns)
    ]
    return {"model": MODEL, "messages": messages, "stream": stream, **fields}


def metric(text: str, name: str, labels: Mapping[str, str] | None = None) -> float:
    """The sum of the samples of a Prometheus exposition that have a name and labels.

    Raises:
        KeyError: there are none.
    """
    samples = []
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        found, _, found_labels = head.partition("{")
        if found == name and all(f'{key}="{want}"' in found_labels for key, want in (labels or {}).items()):
            samples.append(float(value))
    if not samples:
        raise KeyError(name)
    return sum(samples)


async def post(
    http: aiohttp.ClientSession, replica: SimReplica, body: object, path: str = CHAT
) -> tuple[int, Any]:
    async with http.post(replica.url + path, json=body) as response:
        return response.status, await response.json()
