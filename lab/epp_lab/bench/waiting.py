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
from statistics import median
from typing import TYPE_CHECKING, Any

from epp.config.schema import Prefix
from epp.errors import EppError
from epp.extproc.body_budget import BodyBudget
from epp.extproc.types import Destination, HttpRequest
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.schedule.admission import OBJECTIVE_HEADERS
from epp.schedule.waiting import at_once
from epp_lab.bench.recorded import Mode, bodies, conversation
from epp_lab.bench.rig import HEADERS, rig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

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
    with rig(ENDPOINTS, queue=_QUEUE) as empty, rig(ENDPOINTS, queue=_QUEUE) as full:
        _occupy(empty, _BUSY)
        _occupy(full, _FULL)
        body = bodies(_TOKENS, 0)[1]
        messages = [message for step in conversation(Mode.CONSTANT, body) for message in step.messages]
        tracemalloc.start()
        waiting = [_wait(full, messages) for _ in range(WAITING)]
        await asyncio.sleep(0)
        held_bytes = tracemalloc.get_traced_memory()[0] / WAITING
        tracemalloc.stop()
        blocks = len(body) // Prefix().block_bytes
        found.add("waiting/held", "bytes", held_bytes - len(body) - _BLOCK_BYTES * blocks)
        _occupy(full, _BUSY)
        for number in range(rounds):
            begun = number * DECISIONS + 1
            requests = [
                HttpRequest("POST", HEADERS[":path"], _HIGH, bodies(_TOKENS, begun + at)[1])
                for at in range(DECISIONS)
            ]
            gc.collect()
            gc.disable()
            spent_ms = [[await _decision_ms(app, one) for app in (empty, full)] for one in requests]
            gc.enable()
            alone_ms, beside_ms = map(median, zip(*spent_ms, strict=True))
            found.add("waiting/decision beside none", "ms", alone_ms)
            found.add(f"waiting/decision beside {WAITING:,}", "ms", beside_ms)
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


def _wait(app: App, messages: Sequence[bytes]) -> asyncio.Task[Any]:
    """Let a request wait, as a stream of Envoy's brings it."""
    exchange = app._grpc._new_exchange(BodyBudget().share())  # noqa: SLF001
    for message in messages:
        answer = exchange.take(ProcessingRequest.FromString(message))
    if isinstance(answer, tuple):
        raise EppError(f"a request did not wait: {answer}")
    return asyncio.ensure_future(answer)


async def _decision_ms(app: App, request: HttpRequest) -> float:
    begun_s = time.thread_time()
    pick = at_once(app.director.direct(request, since_s=time.monotonic()))
    if not isinstance(pick, Destination):
        raise EppError(f"a request was refused: {pick}")
    app.director.outcomes.first_token(pick.decision_id)
    await asyncio.sleep(0)  # a look at the queue
    app.director.outcomes.stream_ended(pick.decision_id, "completed")
    await asyncio.sleep(0)
    return (time.thread_time() - begun_s) * 1e3
