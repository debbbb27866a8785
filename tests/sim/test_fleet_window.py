from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.config.schema import Config, Pool, Scrape
from epp.errors import ConfigError
from epp.lab.compare.trace import TraceRequest
from epp.lab.sim.engine_class import L40S_X2
from epp.lab.sim.run import policy_names, run_window
from epp.lab.sim.scenario import Affinity, FleetSpec, regional_fleet
from epp.lab.workloads.art_chat import DEMO, generate
from epp.policies.base import Policy
from epp.prefix_cache.index import PrefixIndex
from epp.schedule.picker import Picker
from epp.types import Ranking
from tests.kit.simfleet import options, request, still_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import RequestView, Snapshot


def test_a_request_takes_what_the_parts_take() -> None:
    result = run_window([request(0.0), request(1000.0)], still_fleet(), "gorgo", options=options())
    first, second = result.requests
    # Handshake 100, half a round trip 50, front end 5, prefill 60, half a round trip 50.
    assert first.ttft_ms == pytest.approx(265.0)
    assert first.e2e_ms == pytest.approx(271.0)
    assert first.itl_ms == pytest.approx(2.0)
    assert (first.cached_tokens, first.believed_cached_tokens) == (0, 0)
    # The connection is there, and all but the last token is cached: 50 + 5 + 11 + 50.
    assert second.ttft_ms == pytest.approx(116.0)
    assert (second.cached_tokens, second.believed_cached_tokens) == (49, 50)
    assert (second.network_ms, second.waited_ms) == (50.0, 0.0)
    assert result.endpoints == ("r0:1",)
    assert result.counters[0].done == 2


def test_waiting_in_the_engines_queue_is_told() -> None:
    load = [request(0.0, prompt_tokens=100, family=n, session=str(n)) for n in range(2)]
    first, second = run_window(load, still_fleet(), "gorgo", options=options()).requests
    assert first.waited_ms == 0.0
    assert second.waited_ms == 110.0  # the first prompt's batch: both do not fit into one


def test_the_answer_is_found_by_the_next_turn() -> None:
    turn = request(0.0, prompt_tokens=45, output_tokens=20)
    longer = TraceRequest(
        at_ms=2000.0, session="s", user="s", prompt_tokens=100, output_tokens=1, block_tokens=10,
        block_ids=tuple(range(10)), turn_starts=(0, 45, 65),
    )  # fmt: skip
    result = run_window([turn, longer], still_fleet(), "gorgo", options=options())
    assert result.requests[1].cached_tokens == 60  # prompt and answer but for the last token: six full blocks
    other = TraceRequest(
        at_ms=2000.0, session="s", user="s", prompt_tokens=100, output_tokens=1, block_tokens=10,
        block_ids=tuple(range(10)), turn_starts=(0, 40, 60),
    )  # fmt: skip
    result = run_window([turn, other], still_fleet(), "gorgo", options=options())
    assert result.requests[1].cached_tokens == 40  # what follows the prompt there is not its answer


def test_followers_think_after_the_answer() -> None:
    load = [request(0.0), request(10.0, after=0, think_ms=500.0), request(20.0, after=1, think_ms=0.0)]
    results = run_window(load, still_fleet(), "gorgo", options=options()).requests
    assert results[1].intended_ms == pytest.approx(results[0].e2e_ms + 500.0)
    assert results[2].intended_ms == pytest.approx(results[1].intended_ms + results[1].e2e_ms)
    scaled = run_window(load, still_fleet(), "gorgo", options=options(time_scale=2.0)).requests
    assert scaled[1].intended_ms == pytest.approx(scaled[0].e2e_ms + 1000.0)
    nominal = run_window(load, still_fleet(), "gorgo", options=options(closed_loop=False)).requests
    assert [result.intended_ms for result in nominal] == [0.0, 10.0, 20.0]


@pytest.mark.parametrize("places", [1, 2, 5])
def test_a_limited_client_never_has_more_in_flight(places: int) -> None:
    load = [request(n * 10.0, family=n, session=str(n)) for n in range(20)]
    results = run_window(load, still_fleet(), "gorgo", options=options(max_in_flight=places)).requests
    spans = [(r.intended_ms + r.slip_ms, r.intended_ms + r.e2e_ms) for r in results]
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    level = peak = 0
    for _, change in moments:
        level += change
        peak = max(peak, level)
    assert peak == places
    assert [r.intended_ms for r in results] == [n * 10.0 for n in range(20)]
    assert results[-1].slip_ms > 0.0
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)  # first come, first sent


def test_nothing_is_sent_after_the_end() -> None:
    load = [request(0.0), request(500.0, family=1), request(900.0, after=0, think_ms=600.0)]
    results = run_window(load, still_fleet(), "gorgo", options=options(stop_after_s=0.5)).requests
    assert [result.index for result in results] == [0]


def test_who_gives_up_is_cancelled() -> None:
    load = [request(0.0, output_tokens=500), request(400.0, family=1)]
    result = run_window(load, still_fleet(), "gorgo", options=options(timeout_s=0.4))
    assert result.requests[0].error == "timeout"
    assert result.requests[0].e2e_ms == 400.0
    assert result.requests[1].ok
    assert (result.counters[0].cancelled, result.counters[0].done) == (1, 1)


def test_what_fits_nowhere_is_refused() -> None:
    load = [request(0.0, prompt_tokens=5_000), request(10.0)]
    refused, served = run_window(load, still_fleet(), "gorgo", options=options()).requests
    assert refused.error == "no endpoint: context"
    assert refused.endpoint == ""
    assert served.ok


@dataclass
class Spy(Policy):
    """Picks the first endpoint and remembers what it was shown."""

    seen: list[Snapshot] = field(default_factory=list)
    name: ClassVar[str] = "spy"

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the contract's
        fleet: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - the contract's
        seed: int,  # noqa: ARG002 - the contract's
    ) -> Ranking:
        self.seen.append(fleet)
        return Ranking(np.arange(len(fleet), dtype=np.float64), {})


def test_metrics_are_as_old_as_the_last_scrape() -> None:
    load = [
        request(n * 250.0, family=n, session=str(n), output_tokens=900, prompt_tokens=10) for n in range(9)
    ]
    spy = Spy()
    config = Config(scrape=Scrape(interval_s=1.0), pool=Pool(warmup_s=0.0))
    run_window(load, still_fleet(), spy, options=options(config=config))
    ages_ms = [float(view.engine_age_ms[0]) for view in spy.seen]
    assert all(0.0 <= age_ms <= 1000.0 for age_ms in ages_ms)
    # Between two scrapes the same values grow older while the true ones change.
    for before, after in pairwise(spy.seen):
        if after.engine_age_ms[0] > before.engine_age_ms[0]:
            assert after.engine_age_ms[0] == pytest.approx(before.engine_age_ms[0] + 250.0)
            assert after.engine_running[0] == before.engine_running[0]
        assert after.running_requests[0] == before.running_requests[0] + 1  # the own count is live
    assert spy.seen[-1].engine_running[0] < spy.seen[-1].running_requests[0]
    assert {float(view.engine_running[0]) for view in spy.seen} > {0.0}


def test_probes_tell_the_round_trip() -> None:
    spy = Spy()
    run_window([request(0.0)], still_fleet(2, rtt_ms=80.0), spy, options=options())
    assert spy.seen[0].rtt_ms.tolist() == pytest.approx([80.0, 80.0])
    assert not spy.seen[0].unknown


@pytest.mark.parametrize("reported", [True, False])
def test_reporting_cached_tokens_is_optional(reported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    confirm = PrefixIndex.confirm

    def listen(index: PrefixIndex, slot: int, expected: float, cached_tokens: int, *more: float) -> None:
        told.append(cached_tokens)
        confirm(index, slot, expected, cached_tokens, *more)

    monkeypatch.setattr(PrefixIndex, "confirm", listen)
    load = [request(n * 1000.0) for n in range(3)]
    run_window(load, still_fleet(), "gorgo", options=options(report_cached_tokens=reported))
    assert told == ([0, 49] if reported else [])  # the last answer ends the window


def test_lost_hits_are_misses_that_the_picker_does_not_foresee() -> None:
    load = [request(n * 1000.0, prompt_tokens=95) for n in range(200)]
    fleet = still_fleet()
    lossy = replace(fleet, replicas=(replace(fleet.replicas[0], lost_hit_share=0.3),))
    results = run_window(load, lossy, "gorgo", options=options()).requests[1:]
    misses = sum(result.cached_tokens == 0 for result in results)
    assert 0.2 < misses / len(results) < 0.4
    assert {result.cached_tokens for result in results} == {0, 90}


def test_without_usage_the_picker_hears_of_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Picker, "usage", lambda _picker, decision_id, _usage: told.append(decision_id))
    load = [request(n * 1000.0) for n in range(3)]
    run_window(load, still_fleet(), "gorgo", options=options(report_usage=False))
    assert told == []
    run_window(load, still_fleet(), "gorgo", options=options())
    assert told == ["r0", "r1"]  # the last answer ends the window


def test_what_the_picker_is_told_of_a_replica_can_be_wrong() -> None:
    spy = Spy()
    true = still_fleet(rtt_ms=80.0).replicas[0]
    told = replace(true, known_as="other", probe_factor=2.5, kv_report_factor=0.5)
    # The probes go half a round trip each way as ever: only what they are believed to have taken is wrong.
    load = [request(n * 2000.0, output_tokens=900, prompt_tokens=50) for n in range(2)]
    for spec in (true, told):
        run_window(load, FleetSpec((spec,)), spy, options=options())
    right, wrong = spy.seen[1], spy.seen[3]
    assert (right.engine_classes, wrong.engine_classes) == (("plain",), ("other",))
    assert float(wrong.rtt_ms[0]) == pytest.approx(2.5 * float(right.rtt_ms[0]))
    assert float(right.engine_used_tokens[0]) > 0.0
    assert float(wrong.engine_used_tokens[0]) == pytest.approx(0.5 * float(right.engine_used_tokens[0]))


def test_affinity_keys() -> None:
    load = [request(n * 1000.0, family=n % 2, session=f"s{n}") for n in range(12)]
    fleet = still_fleet(4)
    places: dict[Affinity, list[str]] = {}
    for affinity in (Affinity.PREFIX, Affinity.SESSION):
        results = run_window(load, fleet, "session-affinity", options=options(affinity=affinity)).requests
        places[affinity] = [result.endpoint for result in results]
    assert len(set(places[Affinity.PREFIX][::2])) == 1
    assert len(set(places[Affinity.PREFIX][1::2])) == 1
    assert len(set(places[Affinity.SESSION])) > 2


def test_timeline_counts_every_pick() -> None:
    load = [request(n * 100.0, family=n) for n in range(30)]
    result = run_window(load, still_fleet(2), "round-robin", options=options(timeline_s=0.5))
    assert [sample.at_ms for sample in result.timeline][:3] == [0.0, 500.0, 1000.0]
    assert result.timeline[-1].picked == (15, 15)
    assert max(max(sample.running) for sample in result.timeline) > 0


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="gorgo"):
        run_window([request(0.0)], still_fleet(), "gorg")
    with pytest.raises(ConfigError, match="no_such"):
        run_window([request(0.0)], still_fleet(), "gorgo", {"no_such": 1.0})
    with pytest.raises(ValueError, match="waits for 1"):
        run_window([request(0.0, after=1), request(1.0)], still_fleet(), "gorgo")


@settings(max_examples=20, deadline=None)
@given(
    load=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 900), st.integers(1, 60), st.integers(0, 5)),
        min_size=1,
        max_size=25,
    ),
    places=st.none() | st.integers(1, 4),
    policy=st.sampled_from(["gorgo", "least-request", "random", "greedy-oracle-total"]),
)
def test_every_request_ends_once(
    load: list[tuple[int, int, int, int]], places: int | None, policy: str
) -> None:
    requests = [
        request(float(at), prompt_tokens=prompt, output_tokens=output, family=family, session=str(family))
        for at, prompt, output, family in sorted(load)
    ]
    result = run_window(requests, still_fleet(2), policy, options=options(max_in_flight=places))
    assert Counter(r.index for r in result.requests) == Counter(range(len(requests)))
    assert all(r.ok and r.completion_tokens == requests[r.index].output_tokens for r in result.requests)
    assert sum(counters.done for counters in result.counters) == len(requests)
    assert sum(counters.generated_tokens for counters in result.counters) >= sum(
        r.completion_tokens for r in result.requests
    )


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_serves_generated_chat(policy: str) -> None:
    load = generate(DEMO, 3)[:120]
    result = run_window(load, regional_fleet(L40S_X2), policy, seed=2)
    assert len(result.requests) == len(load)
    assert all(r.ok for r in result.requests)
