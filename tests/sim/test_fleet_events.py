"""What users and the picker see when replicas die, slow down, come back or join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epp.config.schema import Config, Pool
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import Event, FleetSpec, Happening
from tests.kit.simfleet import options, request, still_fleet

if TYPE_CHECKING:
    from epp_lab.sim.results import SimResult


def run(fleet: FleetSpec, policy: str = "round-robin", **changes: object) -> tuple[SimResult, ...]:
    load = [request(n * 200.0, family=n % 7, session=str(n % 7)) for n in range(100)]
    return run_window(load, fleet, policy, options=options(**changes)).requests


def at(result: SimResult) -> float:
    return result.intended_ms / 1e3


def test_requests_to_a_dead_replica_go_on_to_the_next() -> None:
    dead = Event(5.0, "r0:1", Happening.DIE)
    results = run(still_fleet(2, events=[dead]))
    assert all(r.ok for r in results if not 4.5 < at(r) < 5.1)
    late = [r for r in results if at(r) > 5.1]
    assert {r.endpoint for r in late} == {"r1:1"}
    # A refused connection costs a round trip before the next endpoint is tried.
    retried = [r for r in late if r.ttft_ms is not None and r.ttft_ms > 200.0]
    assert retried
    # Three failed probes later nobody is sent there any more.
    assert max(at(r) for r in retried) < 5.0 + 3 * 2.0 + 0.5


def test_what_runs_on_a_dying_replica_is_lost() -> None:
    load = [request(n * 200.0, family=n, session=str(n), output_tokens=500) for n in range(8)]
    fleet = still_fleet(2, events=[Event(1.0, "r0:1", Happening.DIE)])
    results = run_window(load, fleet, "round-robin", options=options()).requests
    lost = [r for r in results if r.error]
    assert lost
    assert {(r.error, r.endpoint) for r in lost} == {("connection reset", "r0:1")}
    assert {r.intended_ms + r.e2e_ms for r in lost} == {1050.0}  # half a round trip after it died


def test_a_revived_replica_is_cold_and_its_cache_is_forgotten() -> None:
    events = [Event(8.0, "r0:1", Happening.DIE), Event(9.0, "r0:1", Happening.REVIVE)]
    results = run(still_fleet(events=events), "gorgo")
    late = [r for r in results if at(r) > 9.0]
    assert all(r.ok for r in late)
    assert late[0].cached_tokens == 0
    assert late[0].believed_cached_tokens == 50  # nobody told yet
    # The next scrape shows another process; what was believed of the old one is gone, and learned anew.
    assert min(at(r) for r in late if r.believed_cached_tokens == 0) < 9.0 + 1.0 + 0.3
    assert (late[-1].believed_cached_tokens, late[-1].cached_tokens) == (50, 49)


def test_round_trips_change_for_requests_and_probes() -> None:
    far, near = (Event(at_s, "r0:1", Happening.REROUTE, factor) for at_s, factor in ((5.0, 3.0), (10.0, 1.0)))
    load = [request(at_ms, output_tokens=1, family=n) for n, at_ms in enumerate((4_000.0, 6_000.0, 11_000.0))]
    results = run_window(load, still_fleet(events=[far, near]), "gorgo", options=options()).requests
    before, changed, after = (r.ttft_ms for r in results)
    # 5 ms of front end and 60 of prefill beside the round trips, which a new connection makes two.
    assert [before, changed, after] == pytest.approx([265.0, 365.0, 165.0])
    load = [request(n * 400.0) for n in range(100)]
    free_queue = {"queue_weight": 0.0, "prefill_weight": 0.0}
    results = run_window(load, still_fleet(2, events=[far]), "gorgo", free_queue, options=options()).requests
    assert {r.endpoint for r in results if at(r) > 25.0} == {"r1:1"}


def test_a_replica_joins_and_leaves() -> None:
    events = [Event(6.0, "r1:1", Happening.ADD), Event(14.0, "r1:1", Happening.REMOVE)]
    results = run(still_fleet(2, events=events, absent=[1]))
    assert all(r.ok for r in results)
    there = [at(r) for r in results if r.endpoint == "r1:1"]
    assert min(there) >= 6.0
    assert max(there) < 14.0
    assert len(there) > 10


def test_a_replica_that_joins_warms_up() -> None:
    events = [Event(6.0, "r1:1", Happening.ADD)]
    warm = options(config=Config(pool=Pool(warmup_s=14.0)))
    load = [request(n * 20.0, family=n % 7, session=str(n % 7)) for n in range(1000)]
    results = run_window(load, still_fleet(2, events=events, absent=[1]), "random", options=warm).requests
    early = [r.endpoint == "r1:1" for r in results if 6.0 < at(r) < 9.0]
    late = [r.endpoint == "r1:1" for r in results if at(r) > 17.0]
    assert sum(early) / len(early) < 0.2
    assert sum(late) / len(late) > 0.35
