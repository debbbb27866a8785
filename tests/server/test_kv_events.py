"""Events of engines over real sockets, until a decision knows them."""

from __future__ import annotations

import asyncio
import errno
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from epp.config.schema import KvEvents
from epp.metrics.metrics import Metrics
from epp.metrics.table import TABLE
from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.prefix_cache.index import PrefixIndex
from epp.server.process import SystemClock
from epp.signals.datastore import Datastore
from epp.signals.engine_caches import EngineCaches
from epp.types import Endpoint, RequestInfo
from tests.kit.ports import free_ports
from tests.kit.replicas import metric
from tests.kit.waiting import until

zmq = pytest.importorskip("zmq")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HASHES, IDS = [11, 12, 13, 14], list(range(64))


def stored(first: int, end: int) -> list[Any]:
    parent = HASHES[first - 1] if first else None
    ids = IDS[16 * first : 16 * end]
    return ["BlockStored", HASHES[first:end], parent, ids, 16, None, "GPU", None]


class Engine:
    """Publishes as vLLM does, and sends again what it is asked for."""

    def __init__(self, connect: str = "", topic: str = "kv@e@m") -> None:
        self._context, self._topic = zmq.Context(), topic.encode()
        self.socket = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        if connect:
            self.socket.connect(connect)
        self.port = 0 if connect else self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.number, self._sent = 0, list[bytes]()

    async def heard(self) -> None:
        """Wait until somebody listens."""
        await until(lambda: bool(self.socket.poll(0)))
        self.socket.recv()

    def publish(self, *events: list[Any], lost: bool = False) -> None:
        data = msgspec.msgpack.encode([1.0, list(events), 0])
        self._sent.append(data)
        if not lost:
            self.socket.send_multipart([self._topic, self.number.to_bytes(8), data])
        self.number += 1

    async def answer_replay(self, *topic: bytes) -> int:
        await until(lambda: bool(self._router.poll(0)))
        who, _, first = self._router.recv_multipart()
        start = int.from_bytes(first)
        for number in range(start, len(self._sent)):
            self._router.send_multipart([who, b"", *topic, number.to_bytes(8), self._sent[number]])
        self._router.send_multipart([who, b"", *topic, (2**64 - 1).to_bytes(8), b""])
        return start

    def close(self) -> None:
        self._context.destroy(linger=0)


class Bench:
    def __init__(self, settings: KvEvents, name: str = "127.0.0.1:8000", **endpoint: Any) -> None:
        from epp.feeds.kv_events import KvEventFeed  # noqa: PLC0415  # needs pyzmq

        self.datastore = Datastore(PrefixIndex())
        self.caches = EngineCaches(EngineBlocks(7), self.datastore.adapter_name)
        self.datastore.engine_caches = self.caches
        self.feed = KvEventFeed(settings, self.datastore, self.caches, SystemClock())
        self.datastore.apply([Endpoint(name, **endpoint)], 0.0)
        self.feed.start(asyncio.get_running_loop())

    def cached(self) -> float:
        """Tokens of the prompt that count, where the estimate is 5."""
        chains = self.caches.hashed("m", array("I", IDS).tobytes(), "")
        request = RequestInfo(model="m", prompt_tokens=64, engine_blocks=chains)
        fused = self.caches.fuse(request, np.array([0]), np.array([5.0]), SystemClock.mono_s())
        return 5.0 if fused is None else float(fused.tokens[0])


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    yield made
    made.close()


@pytest.fixture
async def bench(engine: Engine) -> AsyncIterator[Bench]:
    made = Bench(KvEvents(enabled=True, address=f"tcp://{{host}}:{engine.port}"))
    await engine.heard()
    yield made
    made.feed.stop()


async def test_what_an_engine_stores_counts_in_place_of_the_estimate(engine: Engine, bench: Bench) -> None:
    engine.publish(stored(0, 3))
    await until(lambda: bench.cached() == 48)
    engine.publish(["BlockRemoved", [12], "GPU"])
    await until(lambda: bench.cached() == 16)
    engine.publish(["AllBlocksCleared"])
    await until(lambda: bench.cached() == 0)
    assert bench.feed.results["taken"] == 3


async def test_a_gap_without_replay_lets_the_estimate_count(engine: Engine, bench: Bench) -> None:
    engine.publish(stored(0, 2))
    await until(lambda: bench.cached() == 32)
    engine.publish(stored(2, 3), lost=True)
    engine.publish(["BlockRemoved", [99], "GPU"])
    await until(lambda: bench.cached() == 5)
    assert bench.feed.results["lost"] == 1


async def test_numbers_that_begin_anew_let_cache_and_estimate_be_forgotten(
    engine: Engine, bench: Bench
) -> None:
    engine.publish(stored(0, 4))
    engine.publish(["BlockRemoved", [99], "GPU"])
    await until(lambda: bench.cached() == 64)
    bench.datastore.index.insert(0, RequestInfo(prompt_tokens=10, blocks=[1], block_tokens=10.0))
    engine.number = 0
    engine.publish(stored(0, 1))
    await until(lambda: bench.cached() == 16)
    assert bench.datastore.index.tokens(0) == 0


async def test_an_event_that_cannot_be_read_lets_the_estimate_add_to_events(
    engine: Engine, bench: Bench
) -> None:
    engine.publish(stored(0, 1), ["BlockRemoved", [11], "GPU"])
    await until(lambda: bench.feed.results["taken"] == 1 and bench.cached() == 0)
    engine.publish(["BlockStored", [11], None, [], 0, None, "CPU", None])
    await until(lambda: bench.cached() == 5)


async def test_counts_of_messages_and_blocks_are_shown(engine: Engine, bench: Bench) -> None:
    engine.publish(stored(0, 2), stored(0, 2), ["BlockRemoved", [11], "GPU"], ["BlockRemoved", [11], "GPU"])
    await until(lambda: bench.feed.results["taken"] == 1 and bench.feed.blocks["removed"])
    metrics = Metrics(TABLE)
    metrics.show("kv events", bench.feed)
    text = "".join(metrics.pieces())
    shown = {
        name: metric(text, f"llm_d_epp_kv_cache_{name}")
        for name in ("index_admissions_total", "index_evictions_total", "events_active_subscribers")
    }
    assert shown == {"index_admissions_total": 2, "index_evictions_total": 1, "events_active_subscribers": 1}
    for what in ("forwarded", "suppressed"):
        assert metric(text, f"llm_d_epp_kv_cache_events_dedup_removed_hashes_{what}_total") == 1
    where = {"endpoint": "127.0.0.1:8000"}
    assert metric(text, "epp_kv_event_messages_total", {"result": "taken"}) == 1
    assert metric(text, "epp_kv_event_blocks", where) == 1
    assert metric(text, "epp_kv_events_believed", where) == 1
    engine.publish(stored(3, 4))  # the block before was never told of
    await until(lambda: bench.feed.refused["unknown-parent"])
    text = "".join(metrics.pieces())
    assert metric(text, "epp_kv_event_refused_blocks_total", {"reason": "unknown-parent"}) == 1


async def test_a_cleared_cache_is_known_whole_again(engine: Engine, bench: Bench) -> None:
    engine.publish(stored(0, 1))
    engine.publish(stored(3, 4))  # the block before was never told of
    engine.publish(["BlockRemoved", [11], "GPU"])
    await until(lambda: bench.feed.results["taken"] == 3 and bench.cached() == 5)
    engine.publish(["AllBlocksCleared"])
    await until(lambda: bench.cached() == 0)


async def test_when_receiving_fails_nothing_that_was_told_counts_any_more(
    engine: Engine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.publish(stored(0, 2))
    await until(lambda: bench.cached() == 32)

    def fail(_feeds: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(bench.feed._receiver, "_follow", fail)
    bench.datastore.apply([Endpoint("127.0.0.1:8000"), Endpoint("127.0.0.1:8001")], 1.0)
    await until(lambda: bench.cached() == 5)
    assert {problem for _, problem, _ in bench.feed.endpoints()} == {"unheard"}


async def test_where_a_socket_cannot_be_opened_the_others_are_heard(
    engine: Engine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[int]()

    def refuse(_context: object, kind: int) -> None:
        refused.append(kind)
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(zmq.Context, "socket", refuse)
    bench.datastore.apply([Endpoint("127.0.0.1:8000"), Endpoint("127.0.0.1:8001")], 1.0)
    await until(lambda: refused)
    engine.publish(stored(0, 1))
    await until(lambda: bench.cached() == 16)


async def test_what_is_no_message_is_counted(engine: Engine, bench: Bench) -> None:
    engine.socket.send_multipart([b"kv", b"1"])
    engine.socket.send_multipart([b"kv", bytes(8), b"\xc1"])
    await until(lambda: bench.feed.results["unreadable"] == 2)


@pytest.mark.parametrize("topic", [(), (b"kv@e@m",)], ids=["before vLLM 0.32", "since"])
async def test_a_gap_is_filled_by_a_replay(engine: Engine, topic: tuple[bytes, ...]) -> None:
    replay = f"tcp://{{host}}:{engine.replay_port}"
    bench = Bench(KvEvents(enabled=True, address=f"tcp://{{host}}:{engine.port}", replay_address=replay))
    try:
        await engine.heard()
        engine.publish(stored(0, 1))
        engine.publish(stored(1, 2), lost=True)
        engine.publish(stored(2, 3))
        assert await engine.answer_replay(*topic) == 1
        await until(lambda: bench.cached() == 48)
        assert bench.feed.results["lost"] == 0
    finally:
        bench.feed.stop()


async def assert_heard(engine: Engine, bench: Bench) -> None:
    try:
        await engine.heard()
        engine.publish(stored(0, 1))
        await until(lambda: bench.cached() == 16)
    finally:
        bench.feed.stop()


async def test_an_endpoint_states_where_its_engine_publishes(engine: Engine) -> None:
    await assert_heard(engine, Bench(KvEvents(enabled=True), kv_events=f"tcp://127.0.0.1:{engine.port}"))


async def test_a_rank_is_heard_at_the_port_as_many_after_the_first(engine: Engine) -> None:
    settings = KvEvents(enabled=True, address=f"tcp://{{host}}:{engine.port - 1}")
    await assert_heard(engine, Bench(settings, "127.0.0.1:8000@1"))


async def test_engines_connect_to_a_central_socket_and_name_themselves_by_topic() -> None:
    url = f"tcp://127.0.0.1:{free_ports()}"
    bench = Bench(KvEvents(enabled=True, listen=url, topics=["kv@"]))
    known, stranger = Engine(url, "kv@127.0.0.1:8000@m"), Engine(url, "kv@10.0.0.9:1@m")
    try:
        await known.heard()
        await stranger.heard()
        known.publish(stored(0, 1))
        stranger.publish(stored(0, 2))
        await until(lambda: bench.cached() == 16)
        await until(lambda: bench.feed.results["unknown-endpoint"] == 1)
    finally:
        bench.feed.stop()
        known.close()
        stranger.close()


class Slow(SystemClock):
    """A millisecond passes whenever somebody looks."""

    looks = 0

    @classmethod
    def mono_s(cls) -> float:
        cls.looks += 1
        return cls.looks / 1000


async def test_a_long_message_is_applied_in_several_turns(
    engine: Engine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.feed._news, "_clock", Slow())
    blocks, turns = 2000, 0
    apply = bench.feed.apply

    def counted() -> None:
        nonlocal turns
        turns += 1
        apply()

    monkeypatch.setattr(bench.feed, "apply", counted)
    engine.publish(["BlockStored", list(range(blocks)), None, list(range(16 * blocks)), 16, None])
    await until(lambda: bench.caches.index.blocks == blocks)
    assert turns > 3


async def test_the_rest_of_a_batch_is_not_taken_for_an_endpoint_that_has_gone(
    engine: Engine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.feed._news, "_clock", Slow())
    apply = bench.feed.apply

    turns = 0

    def leave_between() -> None:
        nonlocal turns
        turns += 1
        apply()
        if bench.caches.index.blocks:
            bench.datastore.apply([Endpoint("127.0.0.1:8001")], 1.0)

    monkeypatch.setattr(bench.feed, "apply", leave_between)
    long = ["BlockStored", list(range(2000)), None, list(range(16 * 2000)), 16, None]
    engine.publish(long, stored(0, 1))
    await until(lambda: turns > 1 and not bench.feed._receiver.woken)
    assert bench.caches.index.blocks == 0
