"""Requests that wait: what each of them holds, and what 10,000 of them add to the decisions of others.

They wait for engines that are busy for their priority alone: requests of a higher one find room. Those are
decided by two pickers in turns, of which one has no request that waits. A decision is all CPU from the body
to the end, with the looks at the queue that its first token and its end cause. What a request holds is what
Python allocates from its ext_proc messages on, without its body and 16 bytes a block.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Coroutine
from statistics import median
from typing import TYPE_CHECKING, Any

from epp.config.schema import Prefix
from epp.extproc.body_budget import BodyBudget
from epp.extproc.types import Destination, HttpRequest
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.schedule.admission import OBJECTIVE_HEADERS
from epp.schedule.waiting import at_once
from epp_lab.bench.recorded import Mode, bodies, conversation
from epp_lab.bench.rig import HEADERS, rig

if TYPE_CHECKING:
    import argparse

    from epp.server.app import App
    from epp_lab.bench.figures import Figures

WAITING, ENDPOINTS, DECISIONS = 10_000, 100, 200
#: Tokens of prompts, and bytes that a block may take beside the goal.
_TOKENS, _BLOCK_BYTES = 1_000, 16
#: Tokens that each engine has to read: too many for any request, and for none but those of high priority.
_FULL, _BUSY = 1_000_000, 2_000
_HIGH = {**HEADERS, OBJECTIVE_HEADERS[0]: "high"}
_QUEUE = {"enabled": True, "ttl_s": 3600, "max_requests": WAITING, "priorities": {"high": 1}}


async def measure(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Let requests wait at one of two pickers, and let both decide others in turns."""
    body = bodies(_TOKENS, 0)[1]
    with rig(ENDPOINTS, queue=_QUEUE) as empty, rig(ENDPOINTS, queue=_QUEUE) as full:
        _occupy(full, _FULL)
        tracemalloc.start()
        waiting = [_wait(full, body) for _ in range(WAITING)]
        await asyncio.sleep(0)
        held_bytes = tracemalloc.get_traced_memory()[0] / WAITING - len(body)
        tracemalloc.stop()
        found.add("waiting/held", "bytes", held_bytes - _BLOCK_BYTES * (len(body) // Prefix().block_bytes))
        for app in (empty, full):
            _occupy(app, _BUSY)
        for number in range(rounds):
            seeds = range(number * DECISIONS + 1, (number + 1) * DECISIONS + 1)
            gc.collect()
            gc.disable()
            spent_ms = [[await _decision_ms(app, seed) for app in (empty, full)] for seed in seeds]
            gc.enable()
            alone_ms, beside_ms = map(median, zip(*spent_ms, strict=True))
            found.add("waiting/decision beside none", "ms", alone_ms)
            found.add("waiting/added to a decision", "ms", beside_ms - alone_ms)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _occupy(app: App, tokens: int) -> None:
    """Let each engine have so many tokens to read."""
    ledger = app.scheduler.datastore.ledger
    for slot, endpoint in app.scheduler.datastore.members:
        ledger.end(endpoint.address)
        ledger.reserve(endpoint.address, slot, tokens, tokens, time.monotonic(), sequences=4)


def _wait(app: App, body: bytes) -> asyncio.Task[Any]:
    """Let a request wait, as a stream of Envoy's brings it."""
    exchange, answer = app._grpc._new_exchange(BodyBudget().share()), None  # noqa: SLF001
    for step in conversation(Mode.CONSTANT, body):
        answer = exchange.take(ProcessingRequest.FromString(step.messages[0]))
    assert isinstance(answer, Coroutine)  # noqa: S101
    return asyncio.ensure_future(answer)


async def _decision_ms(app: App, seed: int) -> float:
    """Decide a request of high priority, and report on it; CPU milliseconds."""
    asked = HttpRequest("POST", HEADERS[":path"], _HIGH, bodies(_TOKENS, seed)[1])
    begun_s = time.thread_time()
    pick = at_once(app.director.direct(asked, since_s=time.monotonic()))
    assert isinstance(pick, Destination)  # noqa: S101
    app.director.outcomes.first_token(pick.decision_id)
    await asyncio.sleep(0)  # a look at the queue
    app.director.outcomes.stream_ended(pick.decision_id, "completed")
    await asyncio.sleep(0)
    return (time.thread_time() - begun_s) * 1e3
