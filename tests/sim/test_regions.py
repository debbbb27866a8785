"""Regions in virtual time: who decides, what a forward takes, and what users see when a region is cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.regions.remote import STALE_S
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.regions import UNREACHABLE_MS, RegionSim, origins_of
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import Event, FleetSpec, Happening, PickerOptions, Regions, ReplicaSpec
from tests.kit.simfleet import PLAIN, options, request

if TYPE_CHECKING:
    from epp.schedule.decision import Outcome
    from epp_lab.sim.results import WindowResult

WIDE = Regions({"a": {"b": 100.0, "c": 200.0}, "b": {"c": 300.0}})
#: Slow enough that five requests a second are too many for one.
SLOW = replace(PLAIN, prefill_ms_per_token=6.0)
LOAD = [replace(request(n * 200.0, family=n, session=str(n)), region="a") for n in range(200)]


def fleet(*events: Event) -> FleetSpec:
    still = NetworkPath(2.0, jitter=0.0, spike_share=0.0)
    return FleetSpec(tuple(ReplicaSpec(f"{r}:1", SLOW, still, r) for r in "abc"), events, regions=WIDE)


def run(
    *events: Event, mode: str = "regions", loss: float = 0.0, policy: str = "local-first"
) -> WindowResult:
    pickers = PickerOptions(regions=mode, loss=loss)  # type: ignore[arg-type]  # the test's own words
    return run_window(LOAD, fleet(*events), policy, options=options(pickers=pickers))


def forwards(result: WindowResult) -> int:
    return sum(one.endpoint != "a:1" for one in result.requests)


def p95(result: WindowResult) -> float:
    return sorted(one.ttft_ms or 1e9 for one in result.requests)[int(0.95 * len(LOAD))]


def test_a_region_that_is_full_forwards_to_the_nearest_and_its_users_wait_less() -> None:
    alone, together, seen = run(mode="nearest"), run(), run(mode="global", policy="gorgo-ms")
    assert forwards(alone) == 0
    assert alone.messages == (0, 0)
    by_region = {r: sum(one.endpoint == f"{r}:1" for one in together.requests) for r in "abc"}
    assert by_region["a"] > 60
    assert by_region["b"] >= by_region["c"] > 0
    assert p95(together) < p95(alone) / 4
    assert p95(together) < 1.3 * p95(seen)
    assert together.egress["a"] > together.egress["b"] > 0.0
    far = [one for one in together.requests if one.endpoint == "c:1"]
    assert min(one.ttft_ms or 0.0 for one in far) > 200.0 * 0.7 + 310.0, "the round trip, and the prefill"
    assert run().digest() == together.digest()


def test_both_pickers_hear_of_a_forward() -> None:
    sim = RegionSim(
        LOAD,
        fleet(),
        policy_named("local-first"),
        weights={},
        seed=0,
        options=options(pickers=PickerOptions()),
    )
    outcomes: list[Outcome] = []
    sim.ended = outcomes.append  # type: ignore[method-assign, assignment]
    result = sim.run()
    ends = {outcome.id: outcome for outcome in outcomes}
    over = [
        one for one in result.requests if one.endpoint != one.region + ":1" and f"{one.decision_id}@b" in ends
    ]
    assert over
    for one in over:
        origin, peer = ends[one.decision_id], ends[f"{one.decision_id}@b"]
        assert origin.usage == peer.usage
        assert origin.ttft_ms > peer.ttft_ms + 70.0


def test_a_peer_that_is_full_refuses_and_the_origin_serves() -> None:
    """More than three regions can take; a policy that does not ask for room forwards all the same."""
    load = [replace(one, at_ms=one.at_ms / 4) for one in LOAD]
    weights = {"max_running": 1.0, "queue_ms_per_token": 5.0}
    pickers = PickerOptions(regions="regions")
    result = run_window(load, fleet(), "gorgo-v1", weights, options=options(pickers=pickers))
    refused = [one for one in result.requests if one.refused]
    assert refused
    assert all(one.ok for one in result.requests)
    assert "a:1" in {one.endpoint for one in refused}


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_region_cut_off_goes_on_alone_and_comes_back_without_a_storm(who: str) -> None:
    cut, heal = Event(10.0, who, Happening.CUT), Event(20.0, who, Happening.HEAL)
    result = run(cut, heal)
    assert len(result.requests) == len(LOAD)
    known_s = 10.0 + STALE_S
    gone = {"a": "bc", "b": "b"}[who]
    late = [one for one in result.requests if known_s < one.intended_ms / 1e3 < 20.0]
    assert not {one.endpoint for one in late} & {f"{region}:1" for region in gone}
    failed = [one.intended_ms / 1e3 for one in result.requests if not one.ok]
    assert all(at_s < 10.0 for at_s in failed), "only answers that were on their way are lost"
    waited = [one for one in result.requests if one.refused]
    assert all(one.intended_ms / 1e3 <= known_s for one in waited)
    assert all((one.ttft_ms or 0.0) >= UNREACHABLE_MS for one in waited if one.ok)
    back = [one for one in result.requests if one.endpoint != "a:1" and 20.0 < one.intended_ms / 1e3 < 30.0]
    assert back
    usual_ms = max(one.ttft_ms or 0.0 for one in run().requests if one.endpoint != "a:1")
    assert max(one.ttft_ms or 0.0 for one in back) < 2.0 * usual_ms, "they do not all go to one"


def test_origins_are_the_trace_s_own_or_drawn_by_session_and_stretch() -> None:
    shares = ({"a": 1.0, "b": 3.0}, {"c": 1.0})
    load = [request(float(n), session=str(n // 2)) for n in range(2000)]
    found = origins_of(load, replace(WIDE, shares=shares), seed=1)
    assert set(found[:1000]) == {"a", "b"}
    assert found[0::2] == found[1::2]
    assert 0.7 < found[:1000].count("b") / 1000 < 0.8
    assert set(found[1000:]) == {"c"}
    assert set(origins_of(LOAD, WIDE, seed=1)) == {"a"}
