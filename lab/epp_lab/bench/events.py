"""What engines' KV events cost: receiving and applying them, looking prompts up, memory.

Sixteen engines, published by a process beside this one, each store and evict 1,000 blocks/s in 20 messages/s;
evictions come as vLLM tells of them, each by itself. CPU is all of this process's, by block, taken for the
blocks of a second. Prompts are of 20,000 tokens, which every engine holds, or none.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
import tracemalloc
from array import array
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from epp.config.schema import KvEvents
from epp.errors import EppError
from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.kv_messages import Stored
from epp.server.process import SystemClock
from epp.signals.datastore import Datastore
from epp.signals.engine_caches import EngineCaches
from epp.types import Endpoint, RequestInfo

if TYPE_CHECKING:
    import argparse
    from multiprocessing.connection import Connection

    from epp_lab.bench.figures import Figures

ENGINES, MESSAGES_PER_S, BLOCKS, BLOCK_TOKENS = 16, 20, 50, 16
#: Messages whose blocks an engine holds before it evicts.
_HELD, _SECONDS, _CONNECT_S, _LATE_S = 20, 10, 1.0, 300.0
_PROMPT_TOKENS, _LOOKUPS, _MEMORY_BLOCKS = 20_000, 20, 100_000


def _messages(engine: int) -> list[list[bytes]]:
    chance = random.Random(engine)  # noqa: S311  # no secrets
    names = [[chance.getrandbits(64) for _ in range(BLOCKS)] for _ in range(_SECONDS * MESSAGES_PER_S)]
    found = []
    for number, stored in enumerate(names):
        removed = names[number - _HELD] if number >= _HELD else []
        ids = [chance.randrange(1 << 17) for _ in range(BLOCKS * BLOCK_TOKENS)]
        told = {"block_hashes": stored, "parent_block_hash": None, "token_ids": ids, "medium": "GPU"}
        events: list[dict[str, object]] = [
            {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"} for name in removed
        ]
        events.append({"type": "BlockStored", **told, "block_size": BLOCK_TOKENS})
        found.append([b"kv", number.to_bytes(8), msgspec.msgpack.encode([0.0, events, 0])])
    return found


def _publish(pipe: Connection) -> None:
    """Publish at their rates, as a process of its own; the ports go into the pipe."""
    import zmq  # noqa: PLC0415  # an extra

    context, loads = zmq.Context(), [_messages(engine) for engine in range(ENGINES)]
    sockets = [context.socket(zmq.PUB) for _ in loads]
    pipe.send([socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets])
    begin_s = time.monotonic() + _CONNECT_S
    for number in range(_SECONDS * MESSAGES_PER_S):
        time.sleep(max(begin_s + number / MESSAGES_PER_S - time.monotonic(), 0.0))
        for socket, load in zip(sockets, loads, strict=True):
            socket.send_multipart(load[number])
    pipe.recv()  # until all has been received


async def measure(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure what events cost."""
    for _round in range(rounds):
        found.add("events/16 engines of 1,000 blocks a second", "% core", 100 * await _share())
    found.add("events/bytes a block", "B", _block_bytes())
    _look_up(found, rounds)


async def _share() -> float:
    """Receive all messages; return the part of a core that a second's would take."""
    from epp.feeds.kv_events import KvEventFeed  # noqa: PLC0415  # needs pyzmq

    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    engines = context.Process(target=_publish, args=(theirs,), daemon=True)
    engines.start()
    ports = await asyncio.to_thread(ours.recv)
    datastore = Datastore(PrefixIndex())
    caches = datastore.engine_caches = EngineCaches(EngineBlocks(7), datastore.adapter_name)
    feed = KvEventFeed(KvEvents(enabled=True), datastore, caches, SystemClock())
    pool = [Endpoint(f"127.0.0.1:{port}", kv_events=f"tcp://127.0.0.1:{port}") for port in ports]
    datastore.apply(pool, 0.0)
    feed.start(asyncio.get_running_loop())
    begun_s, messages, until_s = 0.0, ENGINES * MESSAGES_PER_S * _SECONDS, time.monotonic() + _LATE_S
    while (taken := feed.results["taken"]) < messages:
        if not begun_s and taken:
            begun_s, first = time.process_time(), taken
        if time.monotonic() > until_s:
            raise EppError(f"of {messages} messages of KV events {taken} came")
        await asyncio.sleep(0.05)
    spent_s = time.process_time() - begun_s
    feed.stop()
    ours.send(None)
    engines.join()
    return spent_s / (messages - first) * ENGINES * MESSAGES_PER_S


def _block_bytes() -> float:
    chance = random.Random(5)  # noqa: S311  # no secrets
    index = EngineBlocks(7)
    tokens = array("I", (chance.randrange(1 << 17) for _ in range(BLOCK_TOKENS * _MEMORY_BLOCKS))).tobytes()
    tracemalloc.start()
    names = [chance.getrandbits(64) for _ in range(_MEMORY_BLOCKS)]
    for _ in index.apply(0, 0, Stored(names, None, tokens, BLOCK_TOKENS)):
        pass
    del names
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / _MEMORY_BLOCKS


def _look_up(found: Figures, rounds: int) -> None:
    caches = EngineCaches(EngineBlocks(7), lambda *_: "")
    ids = array("I", range(_PROMPT_TOKENS)).tobytes()
    names = list(range(1, _PROMPT_TOKENS // BLOCK_TOKENS + 1))
    slots = np.arange(ENGINES)
    for slot in slots.tolist():
        caches.listen(slot)
        caches.heard(slot, 0, 0.0, whole=True)
        for _ in caches.index.apply(slot, 0, Stored(names, None, ids, BLOCK_TOKENS)):
            pass
    for what, tokens in (("held by all", ids), ("held by none", ids[4:] + ids[:4])):
        for _ in range(rounds * _LOOKUPS):
            begun_s = time.thread_time()
            blocks = caches.hashed("m", tokens, "")
            request = RequestInfo(prompt_tokens=_PROMPT_TOKENS, engine_blocks=blocks)
            if (fused := caches.fuse(request, slots, np.zeros(ENGINES), 0.0)) is not None:
                sent = caches.sent(0, request, fused, 0, 0.0)
                spent_ms = (time.thread_time() - begun_s) * 1e3
                found.add(f"events/prompt of 20k tokens {what}", "ms CPU", spent_ms)
                if sent.credit is not None:
                    caches.index.settle(sent.credit)
