from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.datastore import Datastore
from epp.signals.metrics_text import EngineSample
from epp.signals.rates import PRIORS
from epp.types import NUMERIC_COLUMNS, Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.types import Snapshot


@dataclass
class Index:
    """Notes what a prefix index is told."""

    forgotten: list[int] = field(default_factory=list)
    capacities: dict[int, int] = field(default_factory=dict)

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)
        self.capacities.pop(slot, None)

    def set_capacity(self, slot: int, tokens: int | None) -> None:
        self.capacities.pop(slot, None)
        if tokens is not None:
            self.capacities[slot] = tokens


def new_fleet(index: Index | None = None) -> Datastore:
    note: Any = index or Index()
    return Datastore(note)


def pool(*names: str, **fields: Any) -> list[Endpoint]:
    return [Endpoint(f"{name}:8000", region=f"region-{name}", **fields) for name in names]


def slots(datastore: Datastore, *names: str) -> list[int]:
    found = [datastore.slot_of(f"{name}:8000") for name in names]
    assert None not in found
    return [slot for slot in found if slot is not None]


def snapshot_of(
    datastore: Datastore, *names: str, cached: Sequence[float] | None = None, now_s: float = 0.0
) -> Snapshot:
    chosen = np.array(slots(datastore, *names), dtype=np.intp)
    return datastore.snapshot(
        chosen, None if cached is None else np.array(cached, dtype=np.float64), 1000, now_s
    )


def scrape(datastore: Datastore, name: str, now_s: float, **fields: Any) -> bool:
    return datastore.engine.update(slots(datastore, name)[0], EngineSample("vllm", **fields), now_s)


def test_a_view_holds_what_is_known_of_the_candidates_in_the_order_asked_for() -> None:
    datastore = new_fleet()
    datastore.apply(pool("a", "b", "c", engine_class="l40s"), 0.0)
    a, b, c = slots(datastore, "a", "b", "c")
    for slot, rtt_ms in ((a, 20.0), (b, 102.0), (c, 211.0)):
        datastore.rtt.observe(slot, rtt_ms, 1.0)
    for name, running in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        scrape(
            datastore,
            name,
            2.0,
            running=running,
            waiting=running * 10,
            kv_usage=running / 10,
            kv_capacity_tokens=50_000,
        )
    datastore.ledger.reserve("r1", c, 900, 400, 2.0)
    datastore.ledger.reserve("r2", c, 100, 50, 2.0)
    datastore.ledger.first_token("r2", 2.5)

    seen = snapshot_of(datastore, "c", "a", cached=[600, 0], now_s=3.0)

    assert seen.endpoints == ("c:8000", "a:8000")
    assert seen.regions == ("region-c", "region-a")
    assert seen.engine_classes == ("l40s", "l40s")
    assert {name: getattr(seen, name).tolist() for name in NUMERIC_COLUMNS} == {
        "rtt_ms": [211, 20],
        "cached_tokens": [600, 0],
        "uncached_tokens": [400, 1000],
        "queued_tokens": [1000, 0],
        "pending_uncached_tokens": [400, 0],
        "running_requests": [2, 0],
        "decoding_requests": [1, 0],
        "decoding_tokens": [100, 0],
        "engine_running": [3, 1],
        "engine_waiting": [30, 10],
        "engine_kv_usage": [0.3, 0.1],
        "engine_used_tokens": [15_000, 5_000],
        "engine_age_ms": [1000, 1000],
        "hit_ratio": [1.0, 1.0],
        "prefill_base_ms": [PRIORS["l40s"].prefill_base_ms] * 2,
        "prefill_ms_per_token": [PRIORS["l40s"].prefill_ms_per_token] * 2,
        "decode_base_ms": [PRIORS["l40s"].decode_base_ms] * 2,
        "decode_ms_per_request": [PRIORS["l40s"].decode_ms_per_request] * 2,
        "success": [1.0, 1.0],
        "cold_chance": [0.0, 0.0],
        "connect_ms": [0.0, 0.0],
        "upload_rounds": [1.0, 1.0],
    }
    assert not seen.unknown


def test_cached_tokens_are_whole_blocks_of_an_engine_that_tells_their_size() -> None:
    datastore = new_fleet()
    datastore.apply(pool("a", "b", "c"), 0.0)
    scrape(datastore, "a", 0.0, kv_block_tokens=32)
    scrape(datastore, "b", 0.0)
    seen = snapshot_of(datastore, "a", "b", "c", cached=[700.5, 700.5, 1000])
    assert seen.cached_tokens.tolist() == [672, 700.5, 1000]
    assert seen.uncached_tokens.tolist() == [328, 299.5, 0]
    scrape(datastore, "c", 0.0, kv_block_tokens=8)
    assert snapshot_of(datastore, "c", cached=[1000]).cached_tokens.tolist() == [992], (
        "its last token is computed"
    )
    datastore.apply(pool("b"), 1.0)
    datastore.apply(pool("b", "d"), 2.0)
    assert snapshot_of(datastore, "d", cached=[700.5]).cached_tokens.tolist() == [700.5], "it has a's slot"


def test_a_missing_value_is_the_worst_known_of_the_candidates_and_marked() -> None:
    datastore = new_fleet()
    datastore.apply(pool("a", "b", "c"), 0.0)
    datastore.rtt.observe(slots(datastore, "a")[0], 20.0, 0.0)
    datastore.rtt.observe(slots(datastore, "c")[0], 500.0, 0.0)
    scrape(datastore, "b", 0.0, running=4.0)
    everyone = snapshot_of(datastore, "a", "b", "c", now_s=1.0)
    assert everyone.rtt_ms.tolist() == [20, 500, 500]
    assert everyone.engine_running.tolist() == [4, 4, 4]
    assert everyone.engine_waiting.tolist() == [0, 0, 0], "nobody tells: zero for all"
    assert {name: mask.tolist() for name, mask in everyone.unknown.items()} == {
        "rtt_ms": [False, True, False],
        "engine_running": [True, False, True],
        "engine_waiting": [True, True, True],
        "engine_kv_usage": [True, True, True],
        "engine_used_tokens": [True, True, True],
        "engine_age_ms": [True, False, True],
    }
    assert snapshot_of(datastore, "a", "b", now_s=1.0).rtt_ms.tolist() == [20, 20], (
        "others than candidates do not count"
    )


def test_an_endpoint_that_leaves_is_forgotten_by_every_store() -> None:
    index = Index()
    datastore = new_fleet(index)
    datastore.apply(pool("a", "b", kv_capacity_tokens=5000), 0.0)
    (slot,) = slots(datastore, "a")
    datastore.rtt.observe(slot, 20.0, 0.0)
    scrape(datastore, "a", 0.0, running=5.0, process_start_time_s=100.0)
    datastore.ledger.reserve("r", slot, 10, 10, 0.0)
    for _ in range(3):
        datastore.health.failure(slot, "probe", 0.0)
    datastore.assume_rtt("a:8000", 70.0)

    datastore.apply(pool("b"), 1.0)
    assert datastore.slot_of("a:8000") is None
    assert datastore.address_of(slot) is None
    assert index.forgotten == [slot]
    assert datastore.health.standing(1.0).healthy is None

    datastore.apply(pool("b", "new"), 2.0)
    assert slots(datastore, "new") == [slot], "the slot is used again"
    assert not datastore.ledger.end("r")
    fresh = snapshot_of(datastore, "new", now_s=2.0)
    assert fresh.running_requests.tolist() == [0]
    assert fresh.unknown.keys() >= {"rtt_ms", "engine_running", "engine_age_ms"}
    assert not scrape(datastore, "new", 3.0, process_start_time_s=900.0)
    assert slot not in index.capacities


def test_an_endpoint_that_stays_keeps_all_and_shows_its_new_description() -> None:
    index = Index()
    datastore = new_fleet(index)
    datastore.apply(pool("a", "b"), 0.0)
    (slot,) = slots(datastore, "b")
    datastore.rtt.observe(slot, 20.0, 0.0)
    datastore.ledger.reserve("r", slot, 10, 10, 0.0)
    assert snapshot_of(datastore, "b").regions == ("region-b",)
    moved = [replace(endpoint, region="moved", draining=True) for endpoint in pool("b")]
    datastore.apply([*moved, *pool("c")], 1.0)
    assert slots(datastore, "b") == [slot]
    seen = snapshot_of(datastore, "b", now_s=1.0)
    assert seen.regions == ("moved",)
    assert seen.queued_tokens.tolist() == [10]
    assert seen.rtt_ms.tolist() == [20]
    assert slot not in index.forgotten
    assert [endpoint.address for _, endpoint in datastore.members] == ["b:8000", "c:8000"]
    assert datastore.members[0][1].draining


def test_a_restart_clears_cache_and_leases_keeps_the_network_and_cools() -> None:
    index = Index()
    datastore = new_fleet(index)
    datastore.apply(pool("a", "b"), 0.0)
    (slot,) = slots(datastore, "a")
    datastore.learn_capacity(slot, 9000)
    datastore.rtt.observe(slot, 20.0, 100.0)
    datastore.ledger.reserve("r", slot, 10, 10, 100.0)
    for _ in range(3):
        datastore.health.failure(slot, "probe", 100.0)
    assert scrape(datastore, "a", 100.0, process_start_time_s=1.0) is False
    assert scrape(datastore, "a", 101.0, process_start_time_s=50.0, running=1.0) is True
    datastore.restart("a:8000", 101.0)
    assert index.forgotten == [slot]
    assert index.capacities[slot] == 9000, "the same engine has the same memory"
    seen = snapshot_of(datastore, "a", now_s=101.0)
    assert seen.running_requests.tolist() == [0]
    assert seen.rtt_ms.tolist() == [20]
    assert seen.engine_running.tolist() == [1], "what the new process says of itself stays"
    assert datastore.health.standing(101.0).healthy is None
    share = datastore.warm_share(101.0, 30.0)
    assert share is not None
    assert share[slot] == 0.0
    datastore.restart("unknown:1", 101.0)


def test_another_uid_at_the_same_address_is_another_endpoint() -> None:
    index = Index()
    datastore = new_fleet(index)
    datastore.apply(pool("a", uid="pod-1"), 0.0)
    (slot,) = slots(datastore, "a")
    datastore.learn_capacity(slot, 9000)
    scrape(datastore, "a", 0.0, running=5.0, process_start_time_s=100.0)
    datastore.apply(pool("a", uid="pod-1"), 1.0)
    assert index.forgotten == []
    datastore.apply(pool("a", uid=""), 2.0)
    assert index.forgotten == [], "a source that does not tell says nothing"
    datastore.apply(pool("a", uid="pod-1"), 3.0)
    datastore.apply(pool("a", uid="pod-2"), 4.0)
    assert index.forgotten == [slot]
    assert index.capacities == {}
    assert "engine_running" in snapshot_of(datastore, "a", now_s=4.0).unknown


def test_capacity_is_the_operators_word_before_the_engines() -> None:
    index = Index()
    datastore = new_fleet(index)
    datastore.apply([*pool("a", kv_capacity_tokens=5000), *pool("b")], 0.0)
    a, b = slots(datastore, "a", "b")
    datastore.learn_capacity(a, 1)
    datastore.learn_capacity(b, 7000)
    assert index.capacities == {a: 5000, b: 7000}
    datastore.apply([*pool("a"), *pool("b", kv_capacity_tokens=6000)], 1.0)
    assert index.capacities == {a: 1, b: 6000}
    datastore.learn_capacity(7, 1)


def test_the_first_pool_is_warm_and_later_endpoints_ramp() -> None:
    datastore = new_fleet()
    datastore.apply([], 0.0)
    datastore.apply(pool("a", "b"), 5.0)
    assert datastore.warm_share(5.0, 30.0) is None
    datastore.apply(pool("a", "b", "c"), 100.0)
    (slot,) = slots(datastore, "c")
    for now_s, expected in ((100.0, 0.0), (115.0, 0.5), (129.0, 29 / 30)):
        share = datastore.warm_share(now_s, 30.0)
        assert share is not None
        assert share[slot] == pytest.approx(expected)
        assert share[slots(datastore, "a", "b")].tolist() == [1, 1]
    assert datastore.warm_share(130.0, 30.0) is None
    assert datastore.warm_share(101.0, 0.0) is None


NAMES = [f"n{i}" for i in range(6)]


@given(st.lists(st.tuples(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES))), max_size=6))
def test_whatever_comes_and_goes_views_are_whole_and_counters_are_those_of_live_requests(
    steps: list[tuple[set[str], set[str]]],
) -> None:
    datastore, live = new_fleet(), dict[str, int]()
    for step, (members, busy) in enumerate(steps):
        datastore.apply(pool(*sorted(members)), float(step))
        live = {name: count for name, count in live.items() if name in members}
        for name in sorted(busy & members):
            (slot,) = slots(datastore, name)
            datastore.ledger.reserve(f"{step} {name}", slot, 10, 5, float(step))
            datastore.rtt.observe(slot, 5.0, float(step))
            live[name] = live.get(name, 0) + 1
        if not members:
            continue
        seen = snapshot_of(datastore, *sorted(members), now_s=float(step))
        for column in NUMERIC_COLUMNS:
            assert np.isfinite(getattr(seen, column)).all(), column
        assert seen.running_requests.tolist() == [live.get(name, 0) for name in sorted(members)]
        assert not math.isnan(seen.rtt_ms.sum())
