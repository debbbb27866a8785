"""Listen to what engines publish of their KV caches over ZeroMQ, beside the event loop.

A thread receives and decodes; the loop applies what it hands over (`epp.feeds.kv_streams`). Owns the sockets.
Needs pyzmq, which nothing imports where no events are read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING

import zmq

from epp.config.address import split_address
from epp.errors import UnreadableError
from epp.feeds.kv_sequences import KvSequence
from epp.feeds.kv_streams import KvNews, KvStream, KvStreams
from epp.prefix_cache.kv_messages import read_batch
from epp.types import split_rank

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from epp.clock import Clock
    from epp.config.schema import KvEvents
    from epp.signals.datastore import Datastore
    from epp.signals.engine_caches import EngineCaches

log = logging.getLogger(__name__)

#: Sockets of the thread: ZeroMQ's own bound is 1,023.
_MAX_SOCKETS = 65_535
#: How soon a change of the pool is noticed, and messages in the queue of one socket.
_POLL_MS, _MAX_QUEUED = 50, 100_000
#: Bytes of the longest message: that of a million tokens has 6 MB.
_MAX_BYTES = 64 << 20
_HEARTBEAT_MS, _DEAD_MS = 5_000, 15_000
#: How often is looked for replays that failed.
_EXPIRE_S = 1.0
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Feed:
    """Where one KV cache is told of.

    Attributes:
        address: of the endpoint.
        rank: data-parallel rank.
        url: where it publishes; empty where it comes to the central socket.
        replay_url: where it is asked to send again, empty for nowhere.
    """

    address: str
    rank: int
    url: str
    replay_url: str


@dataclass(slots=True)
class _Source:
    feed: Feed
    stream: KvStream
    socket: zmq.Socket[bytes] | None = None
    replay: zmq.Socket[bytes] | None = None


class KvReceiver(KvStreams):
    """The thread's part.

    Args:
        settings: the central socket and topics.
        clock: the time.
    """

    def __init__(self, settings: KvEvents, clock: Clock) -> None:
        super().__init__()
        self._settings, self._clock = settings, clock
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._poller = zmq.Poller()
        self._wanted: frozenset[Feed] = frozenset()
        self._stop = Event()
        self._sources: dict[Feed, _Source] = {}
        self._by_socket: dict[zmq.Socket[bytes], _Source] = {}
        self._by_name: dict[tuple[str, int], _Source] = {}

    def listen(self) -> None:
        """Open the central socket.

        Raises:
            OSError: it cannot be opened, or its address not be bound.
        """
        if self._settings.listen:
            try:
                central = self._open(zmq.SUB)
                central.bind(self._settings.listen)
            except zmq.ZMQError as error:
                raise OSError(error.errno, str(error)) from error
            self._poller.register(central, zmq.POLLIN)

    def want(self, feeds: frozenset[Feed]) -> None:
        """Listen to these from soon on."""
        self._wanted = feeds

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def run(self, wake: Callable[[], object]) -> None:
        """Receive until stopped; ``wake`` is called when something waits in ``news``."""
        expires_s = 0.0
        try:
            while not self._stop.is_set():
                if self._wanted != self._sources.keys():
                    self._follow(self._wanted)
                for socket, _ in self._poller.poll(_POLL_MS):
                    self._receive(socket)
                if (now_s := self._clock.mono_s()) >= expires_s:
                    expires_s = now_s + _EXPIRE_S
                    for source in self._sources.values():
                        self.take(source.stream, source.stream.sequence.expire(now_s))
                if self.news and not self.woken:
                    self.woken = True
                    wake()
        finally:
            self._context.destroy(linger=0)

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.RCVHWM, _MAX_QUEUED),
            (zmq.MAXMSGSIZE, _MAX_BYTES),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _DEAD_MS),
        ):
            socket.setsockopt(option, value)
        for topic in (self._settings.topics or [""]) if kind == zmq.SUB else ():
            socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        return socket

    def _follow(self, wanted: frozenset[Feed]) -> None:
        for feed in self._sources.keys() - wanted:
            source = self._sources.pop(feed)
            self._by_name.pop(_told_as(feed.address, feed.rank), None)
            self._close(source.socket)
            self._close(source.replay)
        for feed in wanted - self._sources.keys():
            sequence = KvSequence(replays=bool(feed.replay_url))
            source = _Source(feed, KvStream(feed.address, feed.rank, sequence))
            self._sources[feed] = self._by_name[_told_as(feed.address, feed.rank)] = source
            if feed.url:
                source.socket = self._connect(source, zmq.SUB, feed.url)

    def _connect(self, source: _Source, kind: int, url: str) -> zmq.Socket[bytes] | None:
        socket = None
        try:
            socket = self._open(kind)
            socket.connect(url)
        except zmq.ZMQError as error:
            log.warning("kv_events: cannot connect to %s: %s", url, error)
            self._close(socket)
            return None
        self._by_socket[socket] = source
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _close(self, socket: zmq.Socket[bytes] | None) -> None:
        if socket is not None:
            if self._by_socket.pop(socket, None) is not None:
                self._poller.unregister(socket)
            socket.close(linger=0)

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """Take what waits at a socket; others get their turn after a hundred messages."""
        for _ in range(100):
            if socket.closed:
                return
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            source = self._by_socket.get(socket)
            # Topic, number, batch; of a replay an empty frame before them, or in the topic's place.
            if len(frames) not in (3, 4) or len(frames[-2]) != _NUMBER_BYTES:
                self.results["unreadable"] += 1
            elif source is not None and socket is source.replay:
                self._take_replayed(source, *frames[-2:])
            else:
                self._take(source, frames[0], *frames[-2:])

    def _take(self, source: _Source | None, topic: bytes, number: bytes, data: bytes) -> None:
        if source is None:  # at the central socket: kv@ADDRESS@MODEL
            name = topic.decode("utf-8", "replace").split("@")
            try:
                rank = read_batch(data).rank
            except UnreadableError:
                self.results["unreadable"] += 1
                return
            source = self._by_name.get((name[1] if len(name) > 1 else "", rank))
            if source is None:
                self.results["unknown-endpoint"] += 1
                return
        self.live(source.stream, int.from_bytes(number), data, self._clock.mono_s())

    def _take_replayed(self, source: _Source, number: bytes, data: bytes) -> None:
        self.replayed(source.stream, int.from_bytes(number), data, self._clock.mono_s())
        if not source.stream.sequence.replaying:
            self._close(source.replay)
            source.replay = None

    def ask(self, stream: KvStream, number: int) -> None:
        """Ask an engine to send its messages from one on again."""
        source = self._by_name[_told_as(stream.address, stream.rank)]
        self._close(source.replay)
        source.replay = self._connect(source, zmq.DEALER, source.feed.replay_url)
        if source.replay is not None:
            source.replay.send_multipart([b"", number.to_bytes(_NUMBER_BYTES)], zmq.NOBLOCK)


class KvEventFeed:
    """The loop's part: whom to listen to, and when to apply what they said.

    Args:
        settings: of the configuration.
        datastore: the pool.
        caches: take what is told.
        clock: the time.

    Attributes:
        results: messages by one of `RESULTS`.
        refused: blocks that were not taken, by reason.
        blocks: blocks stored, removed, and kept as they had been stored twice.
    """

    def __init__(self, settings: KvEvents, datastore: Datastore, caches: EngineCaches, clock: Clock) -> None:
        self._settings, self._datastore, self._caches, self._clock = settings, datastore, caches, clock
        self._receiver = KvReceiver(settings, clock)
        self.results, self.refused = self._receiver.results, caches.index.refused
        self.blocks = caches.index.counts
        self._news = KvNews(self._receiver, datastore, caches, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        datastore.on_pool["kv events"] = self.follow

    def endpoints(self) -> list[tuple[str, str, int]]:
        """List who is listened to: address, why its events are not believed, blocks that it holds."""
        problems, held = self._caches.problems(self._clock.mono_s()), self._caches.index.held
        return [
            (self._datastore.address_of(slot) or "", problem, held(slot))
            for slot, problem in problems.items()
        ]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to listen.

        Raises:
            OSError: the central socket cannot be opened.
        """
        self._loop = loop
        self._receiver.listen()
        Thread(target=self._run, name="kv events", daemon=True).start()
        self.follow()

    def stop(self) -> None:
        """Listen no more; the thread ends by itself."""
        self._receiver.stop()

    def follow(self) -> None:
        """Listen to the engines of the pool."""
        feeds = set[Feed]()
        for slot, endpoint in self._datastore.members:
            if self._datastore.is_peer(slot):
                continue
            address, own = split_rank(endpoint.address)
            host, _ = split_address(address)
            url = endpoint.kv_events or self._settings.address
            replay = endpoint.kv_replay or self._settings.replay_address
            if not (url or self._settings.listen):
                continue
            ranks = (int(own),) if own else range(self._settings.ranks)
            self._caches.listen(slot, len(ranks))
            for rank in ranks:
                urls = (_of_rank(text, host, rank) for text in (url, replay))
                feeds.add(Feed(endpoint.address, rank, *urls))
        self._receiver.want(frozenset(feeds))

    def _run(self) -> None:
        """Receive, in the thread."""
        try:
            self._receiver.run(lambda: self._call(self.apply))
        except Exception:
            log.exception("kv_events: receiving has failed; estimates count until the picker starts again")
            self._call(self._give_up)

    def _call(self, what: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _give_up(self) -> None:
        """Forget what was told: nothing will be heard any more."""
        self._news.clear()
        for slot in self._caches.problems(self._clock.mono_s()):
            self._caches.forget(slot)
        self.follow()
        self.apply()

    def apply(self) -> None:
        """Apply what has come, for one turn; the rest after whatever else the loop has to do."""
        if self._news.apply() and self._loop is not None:
            self._loop.call_soon(self.apply)


def _told_as(address: str, rank: int) -> tuple[str, int]:
    """Return by what messages at the central socket name a KV cache."""
    return split_rank(address)[0], rank


def _of_rank(template: str, host: str, rank: int) -> str:
    """Fill in a template: the endpoint's host, and the rank's port, which follows that of the rank before."""
    if not template:
        return ""
    named = template.replace("{host}", f"[{host}]" if ":" in host else host)
    head, _, port = named.rpartition(":")
    return f"{head}:{int(port) + rank}"
