"""Events and estimate, fused: what counts of a prompt, and when events are not believed."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from epp.prefix_cache.engine_blocks import EngineBlocks
from epp.prefix_cache.index import PrefixIndex
from epp.prefix_cache.kv_messages import Removed, Stored
from epp.signals.datastore import Datastore
from epp.signals.engine_caches import LAG_S, LOST_HALF_S, EngineCaches, Fused
from epp.types import CACHED_SOURCES, Endpoint, RequestInfo

IDS = array("I", range(160)).tobytes()
ESTIMATE = 100.0


class Bench:
    """One endpoint at slot 0 whose first four blocks of 16 tokens were told of."""

    def __init__(self, *, whole: bool = True) -> None:
        self.datastore = Datastore(PrefixIndex())
        self.datastore.apply([Endpoint("a:1")], 0.0)
        self.caches = EngineCaches(EngineBlocks(7), self.datastore.adapter_name)
        self.datastore.engine_caches = self.caches
        self.caches.listen(0)
        self.tell(Stored([1, 2, 3, 4], None, IDS[:256], 16), 0.0, whole=whole)

    def tell(self, event: Stored | Removed, now_s: float, *, whole: bool = False) -> None:
        self.caches.heard(0, 0, now_s, whole=whole)
        for why in self.caches.index.apply(0, 0, event):
            if why:
                self.caches.refused(0, 0)

    @property
    def request(self) -> RequestInfo:
        return RequestInfo(prompt_tokens=160, engine_blocks=self.caches.hashed("m", IDS, ""))

    def fuse(self, now_s: float, **changes: object) -> Fused:
        from msgspec.structs import replace  # noqa: PLC0415

        request = replace(self.request, **changes)
        fused = self.caches.fuse(request, np.array([0]), np.array([ESTIMATE]), now_s)
        assert fused is not None
        return fused

    def seen(self, now_s: float) -> tuple[float, str]:
        fused = self.fuse(now_s)
        return float(fused.tokens[0]), CACHED_SOURCES[fused.sources[0]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_events_that_tell_all_count_in_place_of_the_estimate(bench: Bench) -> None:
    assert bench.seen(1.0) == (64, "events")


def test_events_heard_late_add_to_the_estimate() -> None:
    assert Bench(whole=False).seen(1.0) == (100, "both")


def test_a_request_whose_tokens_are_not_known_is_estimated(bench: Bench) -> None:
    request = RequestInfo(prompt_tokens=160)
    assert bench.caches.fuse(request, np.array([0]), np.array([ESTIMATE]), 1.0) is None


def test_no_more_counts_than_the_engine_may_read(bench: Bench) -> None:
    assert bench.fuse(1.0, readable_tokens=40).tokens[0] == 40


def test_a_prompt_that_was_sent_counts_until_events_had_the_time_to_tell(bench: Bench) -> None:
    sent = bench.caches.sent(0, bench.request, bench.fuse(1.0), 0, 1.0)
    assert bench.seen(1.0) == (160, "events")
    bench.tell(Stored([5], 4, IDS[256:320], 16), 1.5)
    bench.caches.settle(sent, 2.0)
    assert bench.seen(2.0 + LAG_S / 2) == (160, "events")
    assert bench.seen(2.0 + LAG_S) == (80, "events")


def test_a_lost_message_lets_the_estimate_count_for_a_while(bench: Bench) -> None:
    bench.caches.missed(0, 0, 1, 10.0)
    assert bench.seen(10.0) == (100, "estimate")
    assert bench.caches.problems(10.0) == {0: "lost"}
    assert bench.seen(11.0 + LOST_HALF_S) == (64, "events")


def test_an_endpoint_whose_prompts_nobody_tells_of_is_deaf_until_it_is_heard(bench: Bench) -> None:
    for turn in range(3):
        sent = bench.caches.sent(0, bench.request, bench.fuse(10.0 * turn + 1), 0, 10.0 * turn + 1)
        bench.caches.settle(sent, 10.0 * turn + 2)
        bench.seen(10.0 * turn + 9)
    assert bench.caches.problems(40.0) == {0: "deaf"}
    assert bench.seen(40.0) == (100, "estimate")
    bench.tell(Removed([4]), 41.0)
    assert bench.seen(41.0) == (48, "events")


def test_answers_that_show_the_estimate_nearer_let_it_count(bench: Bench) -> None:
    for _ in range(8):
        sent = bench.caches.sent(0, bench.request, bench.fuse(1.0), 0, 1.0)
        sent.told_tokens, sent.estimated_tokens = 1000.0, 100.0
        bench.caches.answered(sent, 100)
    assert bench.caches.problems(1.0) == {0: "wrong"}


def test_a_restart_that_a_scrape_tells_of_forgets_what_was_told_before(bench: Bench) -> None:
    bench.datastore.restart("a:1", 5.0)
    assert bench.caches.hashed("m", IDS, "") == {}
    assert bench.caches.problems(5.0) == {0: "unheard"}


def test_a_scrape_that_tells_of_a_restart_late_forgets_nothing_of_the_new_process(bench: Bench) -> None:
    assert bench.caches.began_anew(0, 0, 5.0)
    bench.tell(Stored([1, 2], None, IDS[:128], 16), 5.0, whole=True)
    bench.datastore.restart("a:1", 6.0)
    assert bench.seen(6.0) == (32, "events")


def test_a_sequence_that_begins_anew_after_a_scrape_told_is_the_same_restart(bench: Bench) -> None:
    bench.datastore.restart("a:1", 5.0)
    assert not bench.caches.began_anew(0, 0, 6.0)
    assert bench.caches.began_anew(0, 0, 300.0)


def test_blocks_that_are_not_taken_let_the_estimate_add_to_events(bench: Bench) -> None:
    bench.tell(Stored([9], 99, IDS[:64], 16), 1.0)
    assert bench.seen(1.0) == (100, "both")


def test_an_endpoint_that_leaves_is_forgotten(bench: Bench) -> None:
    bench.datastore.apply([], 2.0)
    assert bench.caches.problems(2.0) == {}


def test_an_adapter_is_looked_up_by_the_engines_name_for_it() -> None:
    datastore = Datastore(PrefixIndex())
    endpoint = Endpoint(
        "a:1", models=frozenset({"m", "law"}), adapters=frozenset({"law"}), served_names={"law": "lora-7"}
    )
    datastore.apply([endpoint], 0.0)
    assert (datastore.adapter_name(0, "law"), datastore.adapter_name(0, "m")) == ("lora-7", "")
