"""An engine with a small cache that tells of it late: how near what is believed comes to what it holds."""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict
from random import Random
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from epp.feeds.kv_sequences import KvSequence
from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.kv_messages import read_batch
from epp.signals.datastore import Datastore
from epp.signals.engine_caches import EngineCaches, SentPrefix
from epp.types import Endpoint, RequestInfo

if TYPE_CHECKING:
    from epp.feeds.kv_sequences import Step

BLOCK = 16
#: How late events are, how long a prompt is computed, and the time from one request to the next.
DELAY_S, PREFILL_S, GAP_S = 0.05, 0.2, 0.1


class Engine:
    """Holds so many blocks, the least recently used going first, the end of a prompt before its start."""

    def __init__(self, blocks: int) -> None:
        self._room, self._held = blocks, OrderedDict[tuple[int, ...], int]()
        self._made, self.messages = 0, list[bytes]()

    def restart(self) -> None:
        self._held.clear()
        self.messages.clear()

    def ask(self, ids: list[int]) -> int:
        """Return the tokens that were cached; the rest is now."""
        ends = range(BLOCK, len(ids) + 1, BLOCK)
        names = [tuple(ids[:end]) for end in ends]
        hit = next((place for place, name in enumerate(names) if name not in self._held), len(names))
        for name in names[:hit]:
            self._held.move_to_end(name)
        removed = list[int]()
        for name in names[hit:]:
            while len(self._held) >= self._room:
                removed.append(self._held.popitem(last=False)[1])
            self._made += 1
            self._held[name] = self._made
        for name in reversed(names):
            self._held.move_to_end(name)
        events: list[list[object]] = [["BlockRemoved", removed]] if removed else []
        if stored := [self._held[name] for name in names[hit:]]:
            parent = self._held[names[hit - 1]] if hit else None
            events.append(["BlockStored", stored, parent, ids[hit * BLOCK : len(names) * BLOCK], BLOCK, None])
        self.messages.append(msgspec.msgpack.encode([0.0, events]))
        return hit * BLOCK


class Run:
    """Requests of conversations to one engine, a part of them past the picker."""

    def __init__(self, *, lost: float, replays: bool, restarts: int = 0) -> None:
        self._random, self._lost, self._restarts = Random(4), lost, restarts
        self._datastore = Datastore(PrefixIndex())
        self._datastore.apply([Endpoint("a:1")], 0.0)
        self.caches = EngineCaches(EngineBlocks(7), self._datastore.adapter_name)
        self._datastore.engine_caches = self.caches
        self.caches.listen(0)
        self._engine, self._sequence = Engine(300), KvSequence(replays)
        self._events: list[tuple[float, int, bytes]] = []
        self._settles: list[tuple[float, int, SentPrefix]] = []
        self.believed = self.true = self.both = 0.0
        self.trusted = 0

    def play(self, requests: int) -> None:
        conversations = [[self._random.randrange(5000) for _ in range(320)] for _ in range(12)]
        for number in range(requests):
            now_s = number * GAP_S
            if self._restarts and number % self._restarts == self._restarts - 1:
                self._engine.restart()
            self._hear(now_s)
            ids = self._random.choice(conversations)
            ids += [self._random.randrange(5000) for _ in range(64)]
            if len(ids) > 1600:
                del ids[320:]
            if self._random.random() < 0.3:
                self._send(ids, now_s)
            else:
                self._decide(ids, now_s)

    def _send(self, ids: list[int], now_s: float) -> int:
        cached = self._engine.ask(ids)
        if self._random.random() >= self._lost:
            number = len(self._engine.messages) - 1
            heapq.heappush(self._events, (now_s + DELAY_S, number, self._engine.messages[-1]))
        return cached

    def _decide(self, ids: list[int], now_s: float) -> None:
        blocks = self.caches.hashed("m", array("I", ids).tobytes(), "")
        request = RequestInfo(model="m", prompt_tokens=len(ids), engine_blocks=blocks)
        fused = self.caches.fuse(request, np.array([0]), np.array([0.0]), now_s)
        cached = self._send(ids, now_s)
        if fused is None:
            return
        said = float(fused.tokens[0])
        self.trusted += int(fused.sources[0] > 0)
        self.believed, self.true = self.believed + said, self.true + cached
        self.both += min(said, cached)
        sent = self.caches.sent(0, request, fused, 0, now_s)
        heapq.heappush(self._settles, (now_s + PREFILL_S, id(sent), sent))

    def _hear(self, now_s: float) -> None:
        while self._settles and self._settles[0][0] <= now_s:
            self.caches.settle(heapq.heappop(self._settles)[2], now_s)
        while self._events and self._events[0][0] <= now_s:
            _, number, data = heapq.heappop(self._events)
            self._do(self._sequence.live(number, data, now_s), now_s)

    def _do(self, steps: list[Step], now_s: float) -> None:
        for step in steps:
            if step.kind == "replay":
                for number in range(step.number, len(self._engine.messages)):
                    self._do(self._sequence.replayed(number, self._engine.messages[number], now_s), now_s)
                self._do(self._sequence.replayed(0, b"", now_s), now_s)
            elif step.kind == "anew":
                self.caches.began_anew(0, 0, now_s)
            elif step.kind == "lost":
                self.caches.missed(0, 0, step.number, now_s)
            else:
                self.caches.heard(0, 0, now_s, whole=step.whole)
                for event in read_batch(step.data).events:
                    for _ in self.caches.index.apply(0, 0, event):
                        pass

    @property
    def precision(self) -> float:
        return self.both / self.believed

    @property
    def recall(self) -> float:
        return self.both / self.true


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_with_a_replay_for_what_is_lost_the_truth_is_known(lost: float) -> None:
    run = Run(lost=lost, replays=True)
    run.play(500)
    print(f"\nlost {lost}: precision {run.precision:.4f}, recall {run.recall:.4f}")
    assert run.precision >= 0.96
    assert run.recall >= 0.98


def test_after_restarts_nothing_of_before_is_believed_for_long() -> None:
    run = Run(lost=0.0, replays=True, restarts=100)
    run.play(500)
    print(f"\nrestarts: precision {run.precision:.4f}, recall {run.recall:.4f}")
    assert run.precision >= 0.96
    assert run.recall >= 0.98


def test_where_a_tenth_is_lost_for_good_the_estimate_decides() -> None:
    run = Run(lost=0.1, replays=False)
    run.play(500)
    print(f"\ntrusted {run.trusted} of 500")
    assert run.trusted < 10
