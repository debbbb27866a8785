"""Turn engines' messages of their KV caches into news, and apply these for a short turn at a time.

Without sockets, threads or sleep: whoever receives gives messages to `KvStreams`, and whoever runs the event
loop lets `KvNews` apply what is waiting. One may run beside the other.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.errors import UnreadableError
from epp.logs import REPEATED
from epp.prefix_cache.kv_messages import Cleared, read_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.clock import Clock
    from epp.feeds.kv_sequences import KvSequence, Step
    from epp.prefix_cache.kv_messages import Batch
    from epp.signals.datastore import Datastore
    from epp.signals.engine_caches import EngineCaches

log = logging.getLogger(__name__)

#: What became of messages: applied, not come, come by a replay, not decodable, of nobody in the pool, more
#: than could be applied in time.
RESULTS = ("taken", "lost", "replayed", "unreadable", "unknown-endpoint", "dropped")
#: Longest turn on the event loop, but for the slice in which it ends.
_TURN_S = 0.002
#: Batches that wait for the event loop; more are dropped, as lost ones.
_MAX_WAITING = 10_000

#: Endpoint, rank, and what came: a batch, with whether all is known with it; how many messages were lost;
#: None for another process.
_News = tuple[str, int, "tuple[Batch, bool] | int | None"]


@dataclass(slots=True)
class KvStream:
    """The messages of one KV cache."""

    address: str
    rank: int
    sequence: KvSequence
    dropped: int = 0


class KvStreams:
    """Decode messages in their order.

    Attributes:
        news: what is to be applied.
        woken: whether the loop was told, and has not taken all since.
        results: messages by one of `RESULTS`.
    """

    def __init__(self) -> None:
        self.news: deque[_News] = deque()
        self.woken = False
        self.results = dict.fromkeys(RESULTS, 0)

    def ask(self, stream: KvStream, number: int) -> None:
        """Ask an engine to send its messages from one on again."""
        raise NotImplementedError

    def live(self, stream: KvStream, number: int, data: bytes, now_s: float) -> None:
        """Take a message as it was published."""
        self.take(stream, stream.sequence.live(number, data, now_s))

    def replayed(self, stream: KvStream, number: int, data: bytes, now_s: float) -> None:
        """Take a message of a replay; an empty one is its end."""
        self.results["replayed"] += bool(data)
        self.take(stream, stream.sequence.replayed(number, data, now_s))

    def take(self, stream: KvStream, steps: list[Step]) -> None:
        """Do what a sequence says."""
        for step in steps:
            if step.kind == "replay":
                self.ask(stream, step.number)
            elif step.kind == "anew":
                self._put(stream, None)
            elif step.kind == "lost":
                self.results["lost"] += step.number
                self._put(stream, step.number)
            else:
                self._decode(stream, step)

    def _decode(self, stream: KvStream, step: Step) -> None:
        try:
            batch = read_batch(step.data)
        except UnreadableError:
            self.results["unreadable"] += 1
            self._put(stream, 1)
            return
        self.results["unreadable"] += batch.unread
        if len(self.news) >= _MAX_WAITING:
            self.results["dropped"] += 1
            stream.dropped += 1
            return
        if stream.dropped:
            self._put(stream, stream.dropped)
            stream.dropped = 0
        self.results["taken"] += 1
        self._put(stream, (batch, step.whole))

    def _put(self, stream: KvStream, what: tuple[Batch, bool] | int | None) -> None:
        self.news.append((stream.address, stream.rank, what))


class KvNews:
    """Apply what has come.

    Args:
        streams: where it comes from.
        datastore: the pool.
        caches: take what is told.
        clock: the time.
    """

    def __init__(self, streams: KvStreams, datastore: Datastore, caches: EngineCaches, clock: Clock) -> None:
        self._streams, self._datastore, self._caches, self._clock = streams, datastore, caches, clock
        self._applying: Iterator[str] = iter(())

    def clear(self) -> None:
        """Drop what waits."""
        self._streams.news.clear()
        self._applying = iter(())

    def apply(self) -> bool:
        """Apply what waits, for one turn; True where something is left."""
        until_s, streams = self._clock.mono_s() + _TURN_S, self._streams
        while self._clock.mono_s() < until_s:
            if next(self._applying, None) is not None:
                continue
            if streams.news:
                self._applying = self._take(*streams.news.popleft())
            elif not self._caches.index.tidy():
                streams.woken = False
                return False
        return True

    def _take(self, address: str, rank: int, what: tuple[Batch, bool] | int | None) -> Iterator[str]:
        """Apply one piece of news, pausing between slices."""
        now_s, slot, caches = self._clock.mono_s(), self._datastore.slot_of(address), self._caches
        if slot is None:
            return
        if what is None:
            if caches.began_anew(slot, rank, now_s):
                log.warning("endpoint %s restarted, as its events begin anew", address, extra=REPEATED)
                self._datastore.restart(address, now_s)
        elif isinstance(what, int):
            caches.missed(slot, rank, what, now_s)
        else:
            batch, whole = what
            caches.heard(slot, rank, now_s, whole=whole)
            if batch.unread:
                caches.refused(slot, rank)
            for event in batch.events:
                if self._datastore.slot_of(address) != slot:  # it went in a pause
                    return
                for why in caches.index.apply(slot, rank, event):
                    if why:
                        caches.refused(slot, rank)
                    yield why
                if isinstance(event, Cleared):
                    caches.heard(slot, rank, now_s, whole=not batch.unread)
