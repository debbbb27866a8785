"""What pickers make of each other's messages, over a bus that tests hold in their hands."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import uvloop
from msgspec.structs import replace

from epp.cluster.answers import ALL_S
from epp.cluster.index_sync import ALONE_S, JOIN_S, JOURNAL, MAX_PEERS, SILENT_S, WHOLE_S, IndexSync
from epp.cluster.leading import TERM_STEP, Leading
from epp.cluster.messages import MAX_BLOCKS, MAX_FACTS, Group, IndexDelta, Lead, Message, decode, encode
from epp.cluster.nats_link import NatsLink
from epp.config.schema import Nats
from epp.signals.ledger import PENDING, RUNNING
from epp.signals.metrics_text import EngineSample
from epp.signals.paths import ConnectionTiming
from tests.kit.clock import ManualClock
from tests.kit.records import POOL, WALL_S, ask_of, picker_of, prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from epp.schedule.decision import Decision

GROUP = Group("pool", "gorgo", "key")


@dataclass
class Bus:
    """Pickers, their links, and messages on their way; `run` lets time pass."""

    clock: ManualClock = field(default_factory=ManualClock)
    links: dict[str, IndexSync] = field(default_factory=dict)
    pickers: dict[str, Any] = field(default_factory=dict)
    sent: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: What a message passes; False loses it.
    passes: Callable[[str, str], bool] = lambda *_: True
    _due: list[tuple[float, int, str]] = field(default_factory=list)

    def join(self, name: str, **options: Any) -> IndexSync:
        scheduler = self.pickers[name] = picker_of(prefix=name)

        def publish(to: str, data: bytes) -> None:
            self.sent.append((name, to, data))
            for other, link in self.links.items():
                if other != name and to in ("", other) and self.passes(name, other):
                    link.receive(data)

        def wake(in_s: float) -> None:
            heapq.heappush(self._due, (self.clock.mono_s() + in_s, len(self._due), name))

        group = options.pop("group", GROUP)
        link = IndexSync(scheduler.datastore, group, name, self.clock, publish=publish, wake=wake, **options)
        self.links[name] = link
        wake(0.0)
        return link

    def kill(self, name: str) -> None:
        del self.links[name]

    def run(self, seconds: float) -> None:
        end_s = self.clock.mono_s() + seconds
        whole = {name: self.clock.mono_s() + WHOLE_S for name in self.links}
        while (step_s := min([end_s, *whole.values(), *(due[0] for due in self._due[:1])])) < end_s:
            self.clock.advance(max(0.0, step_s - self.clock.mono_s()))
            names = [name for name, at_s in whole.items() if at_s <= step_s]
            whole |= dict.fromkeys(names, step_s + WHOLE_S)
            while self._due and self._due[0][0] <= step_s:
                names.append(heapq.heappop(self._due)[2])
            for name in names:
                if name in self.links:
                    self.links[name].flush()
        self.clock.advance(max(0.0, end_s - self.clock.mono_s()))

    def pick(self, name: str, seed: int, blocks: int = 40) -> Decision:
        decision: Decision = self.pickers[name].decide(ask_of(seed, blocks), self.clock.mono_s(), WALL_S)
        return decision

    def cached(self, name: str, seed: int, blocks: int = 40) -> list[float]:
        match = self.pickers[name].datastore.index.match(prompt_of(seed, blocks))
        return [float(tokens) for tokens in match.cached_tokens(np.arange(len(POOL)))]

    def in_flight_tokens(self, name: str, row: int) -> list[float]:
        values: list[float] = (
            self.pickers[name].datastore.in_flight_tokens(np.arange(len(POOL)))[row].tolist()
        )
        return values


@pytest.fixture
def bus() -> Bus:
    made = Bus()
    for name in ("a", "b", "c"):
        made.join(name)
    made.run(ALONE_S + WHOLE_S)
    return made


def test_a_burst_is_expected_to_reach_all_pickers(bus: Bus) -> None:
    first = bus.pick("a", 1).chosen
    assert bus.in_flight_tokens("a", RUNNING)[first] == 1.0, "one request is no burst"
    requests = Counter([first, *(bus.pick("a", 1).chosen for _ in range(7))])
    at, count = max(requests.items(), key=lambda item: item[1])
    assert bus.in_flight_tokens("a", RUNNING)[at] > count
    bus.run(0.2)
    bus.pick("a", 2)
    bus.run(0.2)
    assert sum(bus.in_flight_tokens("a", RUNNING)) == 9.0, "the others had none"


def test_promises_and_prefixes_of_one_are_seen_by_all(bus: Bus) -> None:
    decision = bus.pick("a", 1)
    at = decision.chosen
    bus.run(0.1)
    for name in "abc":
        assert bus.in_flight_tokens(name, RUNNING)[at] == 1.0
        assert bus.cached(name, 1)[at] == 2560.0
    longer = bus.pick("b", 1, blocks=60)
    assert longer.endpoint == decision.endpoint
    assert longer.snapshot.running_requests[at] == 1.0, "a decision sees what others promised"
    bus.pickers["a"].end(decision.id, "completed", bus.clock.mono_s())
    bus.run(0.1)
    assert [bus.in_flight_tokens(name, RUNNING)[at] for name in "abc"] == [1.0] * 3, "the longer one runs"
    assert [bus.cached(name, 1, 60)[at] for name in "abc"] == [3840.0] * 3
    assert bus.pickers["a"].datastore.ledger.running_requests[at] == 0.0, "its own share alone"


def test_a_large_promise_goes_at_once_and_small_ones_together(bus: Bus) -> None:
    bus.sent.clear()
    bus.pick("a", 1, blocks=40)  # 2,560 uncached tokens
    bus.run(0.02)
    assert [sender for sender, _, _ in bus.sent] == ["a"]
    bus.run(0.2)
    bus.sent.clear()
    for seed in range(2, 6):
        bus.pick("a", seed, blocks=10)
    bus.run(0.06)
    (message,) = (decode(data) for _, _, data in bus.sent)
    assert message is not None
    assert len(message.facts) == 4


def test_a_timer_that_is_due_at_once_is_asked_for_again() -> None:
    """Uvloop's handle of such a timer does not know when it fires."""

    async def wake() -> int:
        settings, datastore = Nats(url="nats://127.0.0.1:1"), picker_of(prefix="a").datastore
        options: dict[str, Any] = {"base": Path(), "source": "", "secrets": [b"s"], "decision": lambda _: b""}
        link = NatsLink(settings, GROUP, datastore, ManualClock(), **options)
        for in_s in (0.02, 0.0, 0.0, 0.0001):
            link._wake(in_s)
        await asyncio.sleep(0.005)
        return link.index_sync.counts.sent

    assert uvloop.run(wake()) == 1


def test_who_is_silent_or_leaves_counts_no_more(bus: Bus) -> None:
    at = bus.pick("a", 1).chosen
    also = bus.pick("b", 2)
    bus.run(0.1)
    bus.kill("a")
    bus.run(SILENT_S - 0.5)
    assert sum(bus.in_flight_tokens("c", RUNNING)) == 2.0
    bus.run(WHOLE_S + 1.0)
    assert sum(bus.in_flight_tokens("c", RUNNING)) == 1.0
    assert bus.links["c"].peers == 1
    bus.links["b"].leave()
    assert sum(bus.in_flight_tokens("c", RUNNING)) == 0.0
    assert bus.cached("c", 1)[at] == 2560.0, "prefixes stay: engines still have them"
    assert also.endpoint


class Tokens:
    """Hop tokens used at a picker, and told by others."""

    def __init__(self) -> None:
        self.on_use: Callable[[bytes, int], None] = lambda *_: None
        self.told: list[tuple[bytes, int]] = []

    def used(self, most: int) -> list[tuple[bytes, int]]:
        return self.told[:most]

    def hold(self, used: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        assert abs(now_ms - WALL_S * 1e3) < 1e9
        self.told += used


def test_used_hop_tokens_are_known_everywhere_within_a_batch_and_to_who_joins(bus: Bus) -> None:
    tokens = {name: Tokens() for name in "abcd"}
    for name in "abc":
        bus.links[name].share_tokens(tokens[name])
    uses = [(number.to_bytes(16), number) for number in range(3)]
    for use in uses:
        tokens["a"].on_use(*use)
    bus.run(0.06)
    assert tokens["b"].told == tokens["c"].told == uses
    tokens["a"].told += uses  # as Hops does itself
    bus.join("d").share_tokens(tokens["d"])
    bus.run(5.0)
    assert tokens["d"].told == uses


def test_what_is_lost_heals(bus: Bus) -> None:
    bus.passes = lambda sender, _: sender != "a"
    lost = [bus.pick("a", seed) for seed in range(5)]
    bus.run(0.2)
    assert sum(bus.in_flight_tokens("b", RUNNING)) == 0.0
    bus.passes = lambda *_: True
    bus.run(SILENT_S)
    assert sum(bus.in_flight_tokens("b", RUNNING)) == 5.0
    for seed, decision in enumerate(lost):
        assert bus.cached("b", seed)[decision.chosen] == 2560.0
    assert bus.links["b"].counts.lost > 0


def test_a_prefix_that_a_picker_has_no_more_is_sent_again_whole(bus: Bus) -> None:
    at = bus.pick("a", 1, blocks=40).chosen
    bus.run(0.1)
    bus.pickers["b"].datastore.index.forget(at)
    assert bus.pick("a", 1, blocks=41).chosen == at
    bus.run(0.2)
    assert bus.cached("b", 1, 41) == bus.cached("c", 1, 41) == bus.cached("a", 1, 41)


def test_after_a_long_silence_all_that_is_known_is_asked_for(bus: Bus) -> None:
    bus.passes = lambda *_: False
    picks = {seed: bus.pick("a", seed, blocks=2).chosen for seed in range(JOURNAL + 50)}
    for _ in range(20):
        bus.run(SILENT_S)
    bus.passes = lambda *_: True
    bus.run(15.0)
    known = sum(bus.cached("b", seed, 2)[at] > 0.0 for seed, at in picks.items())
    held = sum(bus.cached("a", seed, 2)[at] > 0.0 for seed, at in picks.items())
    assert known == held > JOURNAL


def test_a_joiner_gets_the_index_within_ten_seconds_and_says_until_when_it_has_not(bus: Bus) -> None:
    picks = {seed: bus.pick("a", seed, blocks=20 + seed % 7).chosen for seed in range(3 * MAX_FACTS)}
    bus.run(1.0)
    late = bus.join("d")
    assert not late.warm
    assert late.joining
    bus.run(10.0)
    assert late.warm
    assert not late.joining
    found = [bus.cached("d", seed, 20)[at] == bus.cached("a", seed, 20)[at] for seed, at in picks.items()]
    assert sum(found) >= 0.9 * len(found)
    # What is used last is kept longest there, too.
    held = [[*bus.pickers[name].datastore.index.prefixes(0)] for name in "ad"]
    assert [prefix.blocks[-1] for prefix in held[0]] == [prefix.blocks[-1] for prefix in held[1]]


def test_a_joiner_that_nobody_answers_waits_no_longer_than_a_while(bus: Bus) -> None:
    bus.passes = lambda sender, _: sender != "d"
    late = bus.join("d")
    bus.run(JOIN_S - WHOLE_S)
    assert late.peers
    assert late.joining
    bus.run(2 * WHOLE_S)
    assert not late.joining
    assert not late.warm


def test_a_joiner_starts_from_what_others_have_learned(bus: Bus) -> None:
    fleet = bus.pickers["a"].datastore
    for number in range(300):
        fleet.rates.observe_prefill(0, ended_s=float(number), requests=1.0, tokens=4000.0, ttft_ms=900.0)
        fleet.calibration.observe(1, 1000.0, 300.0)
        timing = ConnectionTiming(number % 3 > 0, 40.0, 90.0)
        fleet.paths.observe(0, 2, timing, rtt_ms=30.0, body_bytes=70_000)
    bus.join("d")
    bus.run(5.0)
    found = bus.pickers["d"].datastore
    for slot in range(len(POOL)):
        assert found.rates.of(slot) == pytest.approx(fleet.rates.of(slot))
    assert found.calibration.hit_ratio[:3] == pytest.approx(fleet.calibration.hit_ratio[:3])
    assert found.calibration.hit_ratio[1] < 0.5
    columns = {name: np.zeros((3, len(POOL))) for name in ("a", "d")}
    for name, rows in columns.items():
        bus.pickers[name].datastore.paths.fill(rows, slice(0, len(POOL)), np.full(len(POOL), 30.0), 1.0)
    assert columns["d"].tolist() == columns["a"].tolist()
    assert columns["d"][1, 0] == 40.0


@pytest.mark.parametrize(
    "nonsense",
    [
        {"requests": (1.0,)},
        {"colds": (math.nan,) * 7},
        {"colds": (5.0,) * 7},
        {"rounds": (-1.0,) * 7},
        {"body_bytes": math.inf},
    ],
)
def test_nonsense_about_a_path_is_not_adopted(bus: Bus, nonsense: dict[str, Any]) -> None:
    paths = bus.pickers["a"].datastore.paths
    paths.observe(0, 2, ConnectionTiming(True, 40.0, 90.0), rtt_ms=30.0, body_bytes=70_000)
    ((name, sound),) = paths.learned.items()
    more = sound._replace(counts=(1000, 10))
    paths.adopt({name: more._replace(**nonsense), "unknown": more})
    assert paths.learned == {name: sound}
    paths.adopt({name: more})
    assert paths.learned == {name: more}


def test_the_first_is_warm_when_nobody_is_there() -> None:
    bus = Bus()
    link = bus.join("a")
    bus.run(ALONE_S - 0.5)
    assert not link.warm
    bus.run(WHOLE_S + 0.6)
    assert link.warm


def test_who_is_ejected_or_asks_to_be_left_alone_is_so_everywhere_at_once(bus: Bus) -> None:
    now_s, fleets = bus.clock.mono_s(), {name: picker.datastore for name, picker in bus.pickers.items()}
    for _ in range(3):
        fleets["a"].health.failure(0, "probe", now_s)
    assert fleets["a"].retry_after.pause(1, 1.0, "id", now_s)
    bus.run(0.03)
    for name in "bc":
        eligible = fleets[name].health.standing(bus.clock.mono_s()).healthy
        assert eligible is not None
        assert eligible[:3].tolist() == [False, True, True]
        assert fleets[name].retry_after.until_s(bus.clock.mono_s()) == fleets["a"].retry_after.until_s(now_s)
    bus.run(6.0)
    assert {fleet.health.standing(bus.clock.mono_s()).healthy is None for fleet in fleets.values()} == {True}


def test_a_restarted_engine_has_nothing_anywhere(bus: Bus) -> None:
    now_s, seed = bus.clock.mono_s(), 1
    for name in "ab":
        for slot in range(len(POOL)):
            bus.pickers[name].datastore.engine.update(slot, EngineSample(process_start_time_s=100.0), now_s)
    at = bus.pick("a", seed).chosen
    bus.run(0.1)
    assert bus.cached("b", seed)[at] > 0.0
    again = EngineSample(process_start_time_s=200.0)
    assert bus.pickers["a"].datastore.engine.update(at, again, now_s)
    bus.pickers["a"].datastore.restart(POOL[at].address, now_s)
    bus.pick("b", seed)  # b has not heard of it
    bus.run(0.1)
    assert bus.cached("a", seed)[at] == 0.0, "a fact of the process before says nothing"
    while bus.pick("a", seed := seed + 1).chosen != at:
        bus.run(0.1)
    bus.run(0.1)
    assert bus.cached("b", 1)[at] == 0.0, "a fact of the newer process says that the older one has gone"
    assert bus.cached("b", seed)[at] > 0.0
    assert not bus.pickers["b"].datastore.engine.update(at, again, now_s), (
        "its own scrape brings no second restart"
    )


def test_who_stores_a_response_is_known_everywhere_at_once(bus: Bus) -> None:
    def holders(key: int) -> list[int | None]:
        now_s = bus.clock.mono_s()
        return [picker.datastore.stored.slot(key, now_s) for picker in bus.pickers.values()]

    store = bus.pickers["a"].datastore.stored.store
    store(2, 7, bus.clock.mono_s())
    bus.run(0.02)
    assert holders(7) == [2, 2, 2]
    bus.passes = lambda sender, _: sender != "a"
    store(1, 8, bus.clock.mono_s())
    bus.run(0.2)
    bus.passes = lambda *_: True
    bus.run(SILENT_S)
    assert holders(8) == [1, 1, 1], "a lost message is asked for"
    bus.sent.clear()
    for key in range(100, 100 + 3 * MAX_BLOCKS):
        store(0, key, bus.clock.mono_s())
    bus.run(1.0)
    bus.join("d")
    bus.run(10.0)
    assert holders(7) == [2] * 4
    assert all(holders(key) == [0] * 4 for key in range(100, 100 + 3 * MAX_BLOCKS))
    assert max(len(data) for _, _, data in bus.sent) < 64_000


def test_the_next_process_stores_nothing_of_the_one_before(bus: Bus) -> None:
    now_s, fleets = bus.clock.mono_s(), {name: picker.datastore for name, picker in bus.pickers.items()}
    for name, started_s in (("a", 100.0), ("b", 200.0)):
        fleets[name].engine.update(0, EngineSample(process_start_time_s=started_s), now_s)
    fleets["a"].stored.store(0, 7, now_s)
    bus.run(0.1)
    assert fleets["b"].stored.slot(7, now_s) is None
    fleets["b"].stored.store(0, 8, now_s)
    bus.run(0.1)
    assert (fleets["a"].stored.slot(7, now_s), fleets["a"].stored.slot(8, now_s)) == (None, 0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _: b"\xff" * 100, "format"),
        (lambda message: b"epp\x02" + encode(message)[4:], "format"),
        (lambda message: encode(message)[:-7], "unreadable"),
        (lambda message: encode(replace(message, group=Group("other", "gorgo", "key"))), "another pool"),
        (lambda message: encode(replace(message, group=Group("pool", "llm-d", "key"))), "another policy"),
        (
            lambda message: encode(replace(message, group=Group("pool", "gorgo", "k"))),
            "another key or block size",
        ),
        (lambda message: encode(replace(message, load={"x": (float("nan"),) * 5})), "unreadable"),
        (lambda message: encode(with_fact(message, stored=b"odd")), "unreadable"),
        (lambda message: encode(with_fact(message, known=b"short", blocks=b"odd")), "unreadable"),
        (lambda message: encode(with_fact(message, block_tokens=1e-300)), "unreadable"),
        (lambda message: encode(with_fact(message, blocks=bytes(8 * MAX_BLOCKS + 8))), "unreadable"),
        (lambda message: encode(replace(message, facts=message.facts * (MAX_FACTS + 1))), "unreadable"),
        (lambda message: encode(replace(message, origin="x" * 301)), "unreadable"),
        (lambda message: encode(replace(message, sequence=2**63)), "unreadable"),
        (lambda message: encode(replace(message, lead=Lead(2**64 - 1, "x", 0.0))), "unreadable"),
    ],
)
def test_nonsense_harms_nobody(bus: Bus, spoil: Callable[[Message], bytes], reason: str) -> None:
    bus.pick("a", 1)
    bus.run(0.1)
    told = next(found for _, _, data in reversed(bus.sent) if (found := decode(data)) and found.facts)
    before = bus.in_flight_tokens("b", RUNNING), bus.in_flight_tokens("b", PENDING)
    bus.links["b"].receive(spoil(replace(told, sequence=told.sequence + 1)))
    assert bus.links["b"].counts.ignored[reason] == 1
    assert (bus.in_flight_tokens("b", RUNNING), bus.in_flight_tokens("b", PENDING)) == before
    bus.pick("a", 2)
    bus.run(WHOLE_S + 0.1)
    assert sum(bus.in_flight_tokens("b", RUNNING)) == 2.0


def with_fact(message: Message, **fields: Any) -> Message:
    """A message whose fact no picker would make."""
    told = {name: getattr(message.facts[0], name) for name in IndexDelta.__struct_fields__} | fields
    return replace(message, facts=[tuple(told.values())])


def test_a_peer_that_asks_thousands_of_times_is_given_all_once(bus: Bus) -> None:
    for seed in range(3 * MAX_FACTS):
        bus.pick("a", seed, blocks=20)
    bus.run(1.0)
    link, wanted = bus.links["a"], [*bus.links["a"].everything()]
    bus.sent.clear()
    for number in range(5000):
        link.receive(encode(Message(GROUP, "x", -1, ask=-1)))
        link.receive(encode(Message(GROUP, f"y{number % 4}", -1, wants=wanted[:MAX_FACTS])))
    for _ in range(4):
        link.flush()
    assert len(bus.sent) <= 4 + 1, "a piece a turn, and what is due each second"
    bus.run(2 * ALONE_S)
    told = [decode(data) for _, to, data in bus.sent if to == "x"]
    assert sum(message.last for message in told if message) == 1
    assert sum(len(message.facts) for message in told if message) == len(wanted)
    link.receive(encode(Message(GROUP, "x", -1, ask=-1)))
    bus.run(ALL_S)
    assert sum(to == "x" for _, to, _ in bus.sent) == 2 * len(told), "after a while it may ask again"


def test_a_term_that_cannot_be_is_ignored_and_the_rest_is_taken() -> None:
    bus = Bus()
    for name in "ab":
        bus.join(name, leading=Leading(name, 0.0))
    bus.run(1.0)
    link = bus.links["a"]
    link.receive(encode(Message(GROUP, "b", 90, lead=Lead(TERM_STEP + 1, "b", WALL_S))))
    assert link._leading is not None
    assert link._leading.term == 0
    assert link.counts.ignored["a term too high"] == 1
    assert link.peers == 1
    link.receive(encode(Message(GROUP, "b", 91, lead=Lead(TERM_STEP, "b", WALL_S))))
    assert link._leading.term == TERM_STEP


def test_endpoints_that_the_pool_does_not_have_take_no_memory(bus: Bus) -> None:
    for sequence in range(100, 200):
        load = {f"{sequence}.{number}:1": (1.0,) * 5 for number in range(100)}
        bus.links["a"].receive(
            encode(Message(GROUP, "b", sequence, load=load | {POOL[0].address: (1.0,) * 5}))
        )
    held = bus.pickers["a"].datastore.peer_load._gauges["b"]
    assert set(held) == {POOL[0].address}


def test_more_peers_than_anybody_has_are_not_listened_to(bus: Bus) -> None:
    for number in range(2 * MAX_PEERS):
        bus.links["a"].receive(encode(Message(GROUP, f"x{number}", 0)))
    assert bus.links["a"].peers == MAX_PEERS
    assert bus.links["a"].counts.ignored["too many peers"] > 0
    bus.run(3 * SILENT_S)
    assert bus.links["a"].peers == 2


def test_a_message_does_not_grow_with_a_prompt(bus: Bus) -> None:
    bus.sent.clear()
    at = bus.pick("a", 1, blocks=7000).chosen
    bus.run(1.0)
    assert max(len(data) for _, _, data in bus.sent) < 600_000
    assert bus.cached("b", 1, 7000)[at] == bus.cached("a", 1, 7000)[at] > 0.0
