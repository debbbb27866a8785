"""Two regions that tell each other of themselves, in virtual time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from epp.policies.local_first import LocalFirst
from epp.regions.remote import STALE_S, RemoteRegions, peer_endpoint
from epp.regions.summary import EVERY_S, LEAST_S, Summaries, encode
from epp.schedule.decision import rerun
from epp.signals.metrics_text import EngineSample
from epp.types import Endpoint
from tests.kit.records import ask_of, picker_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.schedule.decision import Decision
    from epp.types import RequestInfo

ADDRESS = {"a": "127.0.0.1:9100", "b": "127.0.0.1:9101"}
ONE_WAY_S = 0.01


class Region:
    """A picker of two engines, and one other region."""

    def __init__(self, name: str, prices: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.name, self.other = name, "b" if name == "a" else "a"
        engines = [Endpoint(f"{name}{number}:1", region=name) for number in (1, 2)]
        self.scheduler = picker_of("local-first", prefix=name, pool=[])
        self.scheduler.replace_policy(LocalFirst(margin=0.0))
        peers = {self.other: ADDRESS[self.other]}
        self.remote = RemoteRegions(
            self.scheduler.datastore, region=name, key_id="k", peers=peers, prices=prices, ms_per_unit=1000.0
        )
        self.scheduler.set_pool([*engines, peer_endpoint(self.other, ADDRESS[self.other])], 0.0)
        self.scheduler.datastore.assume_rtt(ADDRESS[self.other], 2e3 * ONE_WAY_S)
        for engine in engines:
            self.scheduler.datastore.assume_rtt(engine.address, 0.5)
        self.start()

    def start(self) -> None:
        self.said = Summaries(
            self.scheduler.datastore, region=self.name, origin=f"{self.name}{id(self)}", key_id="k"
        )

    def scrape(self, now_s: float, *, running: float, waiting: float) -> None:
        for slot, endpoint in self.scheduler.datastore.members:
            if endpoint.region == self.name:
                self.scheduler.datastore.engine.update(
                    slot, EngineSample("", running, waiting, 0.5, 1000), now_s
                )

    def pick(self, now_s: float, request: RequestInfo) -> Decision:
        return self.scheduler.decide(request, now_s, now_s)


class World:
    """Both regions, and the path of their summaries."""

    def __init__(self, prices: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.a, self.b = Region("a", prices), Region("b")
        self.now_s, self.clock_s, self.cut = 100.0, 5.0, False
        self.kept_back: list[bytes] = []
        self.sent: list[bytes] = []
        self.pass_s(2 * EVERY_S)

    def pass_s(self, length_s: float) -> None:
        """Let time pass; what b says comes to a."""
        end_s = self.now_s + length_s
        while self.now_s < end_s - 1e-9:
            self.now_s += LEAST_S
            message = self.b.said.make(self.now_s, self.now_s + self.clock_s)
            if message is not None:
                self.sent.append(message)
                if self.cut:
                    self.kept_back.append(message)
                else:
                    self.a.remote.hear(message, self.now_s + ONE_WAY_S)

    def row(self, decision: Decision) -> dict[str, float]:
        """What a's decision saw of b."""
        at = decision.snapshot.endpoints.index(ADDRESS["b"])
        return {
            **decision.snapshot.at(at)._asdict(),
            **{k: float(v[at]) for k, v in decision.snapshot.extra.items()},
        }


def test_a_peer_is_what_its_engines_are_on_average() -> None:
    world = World()
    for number in range(6):
        world.b.pick(world.now_s, ask_of(number))
    world.b.scrape(world.now_s, running=4.0, waiting=0.0)
    world.b.scrape(world.now_s, running=8.0, waiting=2.0)
    world.b.scrape(world.now_s, running=5.0, waiting=0.0)
    world.pass_s(LEAST_S)
    seen = world.row(world.a.pick(world.now_s + 0.1, ask_of(3)))
    assert seen["running_requests"] == 3.0
    assert seen["pending_uncached_tokens"] == 3 * 40 * 64
    assert (seen["engine_running"], seen["engine_waiting"], seen["engine_used_tokens"]) == (5.0, 0.0, 500.0)
    assert seen["cached_tokens"] == 40 * 64, "by its sketch"
    assert seen["room"] == 2 * 2 * 8.0 - 6.0, "twice as many as ran while others waited"
    assert seen["peer"] == 1.0


def test_own_forwards_count_until_a_summary_has_them() -> None:
    world = World()
    world.b.scrape(world.now_s, running=4.0, waiting=1.0)
    world.b.scrape(world.now_s, running=4.0, waiting=0.0)
    world.a.scrape(world.now_s, running=4.0, waiting=1.0)  # no room
    world.pass_s(EVERY_S)
    request = ask_of(1)
    world.b.pick(world.now_s, request)  # b holds its prefix
    world.pass_s(LEAST_S)
    first, second = (world.a.pick(world.now_s + 0.03 + at, request) for at in (0.0, 0.02))
    assert first.endpoint == second.endpoint == ADDRESS["b"]
    assert [world.row(each)["running_requests"] for each in (first, second)] == [0.5, 1.0]
    assert [world.row(each)["room"] for each in (first, second)] == [15.0, 14.0]
    for _ in (first, second):
        world.b.pick(world.now_s + 0.06, request)
    world.pass_s(3 * LEAST_S)
    assert world.row(world.a.pick(world.now_s, request))["running_requests"] == 1.5, "not twice"


def test_a_summary_ages_into_unknown_and_local_service_goes_on() -> None:
    world = World()
    world.a.scrape(world.now_s, running=4.0, waiting=1.0)
    world.b.pick(world.now_s, ask_of(1))
    world.pass_s(LEAST_S)
    assert world.a.pick(world.now_s, ask_of(1)).endpoint == ADDRESS["b"]
    world.cut = True
    world.pass_s(STALE_S + EVERY_S)
    away = world.a.pick(world.now_s, ask_of(1))
    assert away.endpoint.startswith("a")
    assert away.excluded["summary"] == (ADDRESS["b"],)
    bound = world.a.pick(world.now_s, ask_of(2, regions=frozenset({"b"})))
    assert bound.endpoint == ADDRESS["b"], "where no other may serve, the unknown does"
    for message in world.kept_back:  # what was kept back says nothing of now
        world.a.remote.hear(message, world.now_s + 60.0)
    assert list(world.a.remote.unknown(world.now_s + 60.0)), "late is as old as it is"
    world.cut = False
    world.pass_s(EVERY_S)
    assert not list(world.a.remote.unknown(world.now_s))


def test_a_peer_that_sets_its_clock_back_is_known_again() -> None:
    world = World()
    world.clock_s -= 100.0
    world.pass_s(20.0)
    assert list(world.a.remote.unknown(world.now_s))
    world.pass_s(20.0)
    assert not list(world.a.remote.unknown(world.now_s))


def test_a_lost_summary_is_made_good_by_the_whole_sketch() -> None:
    world = World()
    world.pass_s(EVERY_S)
    world.cut = True
    world.b.pick(world.now_s, ask_of(1))
    world.pass_s(EVERY_S)
    world.cut = False
    world.b.pick(world.now_s, ask_of(2))
    world.pass_s(EVERY_S)
    assert world.a.remote.missing(world.now_s) == ["b"]
    assert not world.a.remote.missing(world.now_s), "asked once, for a while"
    whole = world.b.said.whole()
    world.b.pick(world.now_s, ask_of(3))
    world.pass_s(LEAST_S)  # changes overtake the whole
    world.a.remote.hear(whole, world.now_s)
    assert not world.a.remote.missing(world.now_s + 60.0)
    cached = [
        world.row(world.a.pick(world.now_s, ask_of(number)))["cached_tokens"] for number in (1, 2, 3, 4)
    ]
    assert cached == [2560.0, 2560.0, 2560.0, 0.0]


@pytest.mark.parametrize("origin", ["another", "the same"])
def test_who_begins_to_tell_begins_a_new_sketch(origin: str) -> None:
    world = World()
    world.b.pick(world.now_s, ask_of(1))
    world.pass_s(EVERY_S)
    old = world.sent[-1]
    world.b.said.stop()
    slots = [slot for slot, endpoint in world.b.scheduler.datastore.members if endpoint.region == "b"]
    for slot in slots:
        world.b.scheduler.datastore.index.forget(slot)
    world.b.pick(world.now_s, ask_of(2))
    world.b.said = Summaries(
        world.b.scheduler.datastore,
        region="b",
        origin=origin if origin == "another" else world.b.said._origin,
        key_id="k",
    )
    world.pass_s(EVERY_S)
    assert not world.a.remote.missing(world.now_s), "its first summary has all"
    cached = [world.row(world.a.pick(world.now_s, ask_of(number)))["cached_tokens"] for number in (1, 2)]
    assert cached == [0.0, 2560.0]
    assert world.a.remote.hear(b"other bytes", world.now_s) == ""
    assert world.a.remote.hear(old[:-3], world.now_s) == ""


@pytest.mark.parametrize(
    "lie",
    [
        {"engine": (0.0, 0.0, 5e-324, 1e12)},
        {"wall_s": math.nan},
        {"wall_s": math.inf},
        {"wall_s": -math.inf},
        {"room": math.nan},
    ],
)
def test_numbers_that_are_none_harm_nobody_and_keep_no_silent_peer_alive(lie: dict[str, Any]) -> None:
    world = World()
    world.pass_s(EVERY_S)
    known = world.a.remote._peers["b"].summary
    assert known is not None
    told = replace(known, sequence=known.sequence + 1)
    assert world.a.remote.hear(encode(replace(told, **lie)), world.now_s) == ""
    assert not world.a.remote.unknown(world.now_s + 0.5 * STALE_S)
    assert world.a.remote.unknown(world.now_s + 1.1 * STALE_S)


def test_what_is_forwarded_is_no_part_of_the_own_sketch() -> None:
    world = World()
    world.a.scrape(world.now_s, running=4.0, waiting=1.0)
    world.b.pick(world.now_s, ask_of(1))
    world.pass_s(LEAST_S)
    forwarded = world.a.pick(world.now_s, ask_of(1, 80))
    assert forwarded.endpoint == ADDRESS["b"]
    world.a.said.make(world.now_s, world.now_s)
    assert world.a.said.sketch.entries == 0
    again = world.row(world.a.pick(world.now_s, ask_of(1, 80)))
    assert again["cached_tokens"] == 80 * 64, "it is believed to be there before the sketch says so"
    world.pass_s(EVERY_S)
    for decision in list(world.a.scheduler._in_flight):
        world.a.scheduler.end(decision, "completed", world.now_s)
    world.pass_s(EVERY_S)
    assert world.row(world.a.pick(world.now_s, ask_of(1, 80)))["cached_tokens"] == 40 * 64, (
        "it went elsewhere"
    )


def test_a_forward_can_fall_back_on_the_best_local_endpoint() -> None:
    world = World()
    world.a.scrape(world.now_s, running=4.0, waiting=1.0)
    world.b.pick(world.now_s, ask_of(1))
    world.pass_s(LEAST_S)
    world.a.scheduler._settings = world.a.scheduler._settings.__class__(warmup_s=0.0, fallbacks=1)
    forwarded = world.a.pick(world.now_s, ask_of(1))
    assert forwarded.endpoint == ADDRESS["b"]
    assert [forwarded.snapshot.endpoints[row][0] for row in forwarded.fallbacks] == ["a"]
    assert rerun(forwarded, world.a.scheduler.policy).fallbacks == forwarded.fallbacks


def test_money_counts_as_milliseconds() -> None:
    world = World(prices={"a": (2.0, 1.0), "b": (0.0, 3.0)})
    decision = world.a.pick(world.now_s, ask_of(1))
    price = dict(zip(decision.snapshot.endpoints, decision.ranking.terms["price"].tolist(), strict=True))
    answer = world.a.scheduler.datastore.answers.expected("m", None)
    own = (2560 + answer) / 1e6 * 1000.0
    assert price["a1:1"] == pytest.approx(own)
    assert price[ADDRESS["b"]] == pytest.approx(3.0 * own + 2.0 * 9000 / 1e9 * 1000.0)
    assert decision.endpoint.startswith("a"), "there is room"
