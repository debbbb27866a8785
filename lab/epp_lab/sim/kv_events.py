"""What simulated engines publish of their KV caches, and how a picker hears it: late, and not all of it.

Owns the publishing and the way there. Messages are vLLM's, in msgpack; the picker decodes, orders and trusts
them by the objects that it serves with. Token ids are invented: each block's are its hash, over and over.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from epp.feeds.kv_sequences import KvSequence
from epp.feeds.kv_streams import KvNews, KvStream, KvStreams
from epp.keyed_uniform import keyed_uniform
from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.signals.engine_caches import EngineCaches
from epp_lab.sim.loop import Rank
from epp_lab.sim.pickers import VirtualClock
from epp_lab.sim.prompts import token_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from epp.signals.datastore import Datastore
    from epp_lab.sim.kv_cache import Change
    from epp_lab.sim.loop import Loop
    from epp_lab.sim.scenario import EventOptions

#: Messages that an engine keeps to send again (vLLM's default).
_KEPT = 10_000
_ATTENTION, _STATES = 0, 1
_ENCODE = msgspec.msgpack.Encoder().encode


class KvPublisher:
    """One engine's messages.

    Args:
        block_tokens: of each block.
        parents: the block before, by block.

    Attributes:
        changes: of its cache, not published yet.
        listeners: hear of each message: its number, and what it holds.
    """

    def __init__(self, block_tokens: int, parents: Mapping[int, int]) -> None:
        self._block_tokens, self._parents = block_tokens, parents
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._number = 0
        self.changes: list[Change] = []
        self.listeners: list[Callable[[int, bytes], None]] = []

    def begin_anew(self) -> None:
        """Be another process."""
        self._kept.clear()
        self.changes.clear()
        self._number = 0

    def publish(self) -> None:
        """Publish what has changed, in one message."""
        events = list(self._events())
        self.changes.clear()
        if events:
            message = self._number, _ENCODE([0.0, events, 0])
            self._kept.append(message)
            self._number += 1
            for listener in self.listeners:
                listener(*message)

    def again(self, first: int) -> list[tuple[int, bytes]]:
        """Return the messages from a number on, as far as they are kept."""
        return [message for message in self._kept if message[0] >= first]

    def _events(self) -> Iterator[dict[str, object]]:
        """Put changes together: removals, and blocks that follow each other."""
        run, before, last = list[int](), (0, ""), 0
        for kind, named, tokens in self.changes:
            what = (_STATES if tokens else _ATTENTION), kind
            # Of a state within a block is told what lies before that block.
            block = self._parents.get(named, 0) if tokens % self._block_tokens else named
            goes_on = kind == "removed" or (kind == "stored" and self._parents.get(block) == last)
            if run and not (goes_on and what == before):
                yield self._event(*before, run)
                run = []
            if block:
                run.append(block)
            before, last = what, block
        if run:
            yield self._event(*before, run)

    def _event(self, group: int, kind: str, blocks: list[int]) -> dict[str, object]:
        if kind == "cleared":
            return {"type": "AllBlocksCleared"}
        event = {"block_hashes": blocks, "medium": "GPU", "group_idx": group}
        if kind == "removed":
            return {"type": "BlockRemoved", **event}
        spec = "mamba" if group == _STATES else "full_attention"
        ids = token_ids(blocks, self._block_tokens).ravel().tolist()
        parent, size = self._parents.get(blocks[0]), self._block_tokens
        told = {"parent_block_hash": parent, "token_ids": ids, "block_size": size, "kv_cache_spec_kind": spec}
        return {"type": "BlockStored", **event, **told}


class EventFeed(KvStreams):
    """One picker hears all engines.

    Args:
        publishers: of engines, by address.
        datastore: the picker's.
        options: how messages travel.
        loop: virtual time.
        seed: of the messages that are lost.
    """

    def __init__(
        self,
        publishers: Mapping[str, KvPublisher],
        datastore: Datastore,
        options: EventOptions,
        loop: Loop,
        seed: int,
    ) -> None:
        super().__init__()
        self._publishers, self._options, self._loop, self._seed = publishers, options, loop, seed
        caches = datastore.engine_caches = EngineCaches(EngineBlocks(seed), datastore.adapter_name)
        self._news = KvNews(self, datastore, caches, VirtualClock(loop))
        for address, publisher in publishers.items():
            stream = KvStream(address, 0, KvSequence(options.replays))
            publisher.listeners.append(partial(self._sent, stream))

        def follow() -> None:
            for slot, endpoint in datastore.members:
                if endpoint.address in publishers:
                    caches.listen(slot)

        datastore.on_pool["kv events"] = follow

    def ask(self, stream: KvStream, number: int) -> None:
        """Ask an engine to send its messages from one on again."""
        self._later(self._answer, stream, number)

    def _answer(self, stream: KvStream, number: int) -> None:
        again = self._publishers[stream.address].again(number)
        self._later(self._hear, stream, [*again, (0, b"")], self.replayed)

    def _sent(self, stream: KvStream, number: int, data: bytes) -> None:
        key = f"{stream.address} {self._loop.now_ms} {number}"
        if keyed_uniform(self._seed, key, "lost event") >= self._options.loss:
            self._later(self._hear, stream, [(number, data)], self.live)

    def _later(self, action: Callable[..., None], *args: object) -> None:
        self._loop.at(self._loop.now_ms + self._options.delay_ms, Rank.SIGNAL, action, *args)

    def _hear(
        self, stream: KvStream, messages: Iterable[tuple[int, bytes]], take: Callable[..., None]
    ) -> None:
        now_s = self._loop.now_ms / 1e3
        self.take(stream, stream.sequence.expire(now_s))
        for number, data in messages:
            take(stream, number, data, now_s)
        self._news.apply()
