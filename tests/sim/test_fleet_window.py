from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.config.schema import Config, Pool, Scrape
from epp.policies.balancing import Random
from epp.policies.base import Policy
from epp.policies.registry import POLICIES
from epp.signals.model_means import PRIOR_TOKENS
from epp.types import Ranking
from epp_lab.sim.engine_class import L40S_X2
from epp_lab.sim.oracle import ORACLES
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import (
    Event,
    FleetSpec,
    Happening,
    WindowOptions,
    regional_fleet,
)
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.simfleet import options, request, still_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import RequestInfo, Snapshot


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


@pytest.mark.parametrize(
    ("turn_starts", "cached_tokens"),
    [
        ((0, 45, 65), 60),  # prompt and answer but for the last token: six full blocks
        ((0, 40, 60), 40),  # what follows the prompt there is not its answer
    ],
)
def test_the_answer_is_found_by_the_next_turn(turn_starts: tuple[int, ...], cached_tokens: int) -> None:
    turn = request(0.0, prompt_tokens=45, output_tokens=20)
    later = replace(request(2000.0, prompt_tokens=100, output_tokens=1), turn_starts=turn_starts)
    result = run_window([turn, later], still_fleet(), "gorgo", options=options())
    assert result.requests[1].cached_tokens == cached_tokens


def test_a_picker_hears_of_the_limit_that_the_client_sends_and_never_of_the_answer_to_come() -> None:
    seen = []

    class Hears(Random):
        def rank(
            self, request: RequestInfo, snapshot: Snapshot, weights: Mapping[str, float], seed: int
        ) -> Ranking:
            seen.append((request.max_output_tokens, request.expected_output_tokens))
            return super().rank(request, snapshot, weights, seed)

    told = replace(request(500.0, output_tokens=9), max_output_tokens=128)
    load = [request(0.0, output_tokens=9), told]
    run_window(load, still_fleet(2), lambda _: Hears(), options=options())
    assert [limit for limit, _ in seen] == [None, 128]
    assert seen[0][1] == PRIOR_TOKENS


def test_followers_think_after_the_answer() -> None:
    load = [request(0.0), request(10.0, after=0, think_ms=500.0), request(20.0, after=1, think_ms=0.0)]
    results = run_window(load, still_fleet(), "gorgo", options=options()).requests
    assert results[1].intended_ms == pytest.approx(results[0].e2e_ms + 500.0)
    assert results[2].intended_ms == pytest.approx(results[1].intended_ms + results[1].e2e_ms)
    scaled = run_window(load, still_fleet(), "gorgo", options=options(time_scale=2.0)).requests
    assert scaled[1].intended_ms == pytest.approx(scaled[0].e2e_ms + 1000.0)
    nominal = run_window(load, still_fleet(), "gorgo", options=options(closed_loop=False)).requests
    assert [result.intended_ms for result in nominal] == [0.0, 10.0, 20.0]


def test_a_client_that_waits_too_long_in_a_picker_gives_up_and_thinks_on() -> None:
    load = [request(0.0, prompt_tokens=900, family=n) for n in range(60)]
    load.append(request(1.0, after=59, think_ms=500.0))
    with_queue = replace(options().with_queue(), patience_s=2.0)
    results = run_window(load, still_fleet(), "gorgo", options=with_queue).requests
    gone = [one for one in results if one.error.endswith("its client gave up")]
    assert results[59] in gone
    assert {one.e2e_ms for one in gone} == {2_000.0}
    assert results[60].intended_ms == pytest.approx(2_500.0)


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


@dataclass
class Spy(Policy):
    """Picks the first endpoint and remembers what it was shown."""

    seen: list[Snapshot] = field(default_factory=list)
    name: ClassVar[str] = "spy"

    def rank(
        self,
        request: RequestInfo,  # noqa: ARG002 - the contract's
        snapshot: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - the contract's
        seed: int,  # noqa: ARG002 - the contract's
    ) -> Ranking:
        self.seen.append(snapshot)
        return Ranking(np.arange(len(snapshot), dtype=np.float64), {})


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


def test_lost_hits_are_misses_that_the_picker_does_not_foresee() -> None:
    load = [request(n * 1000.0, prompt_tokens=95) for n in range(200)]
    fleet = still_fleet()
    lossy = replace(fleet, replicas=(replace(fleet.replicas[0], lost_hit_share=0.3),))
    results = run_window(load, lossy, "gorgo", options=options()).requests[1:]
    misses = sum(result.cached_tokens == 0 for result in results)
    assert 0.2 < misses / len(results) < 0.4
    assert {result.cached_tokens for result in results} == {0, 90}


@settings(max_examples=20)
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


@pytest.mark.parametrize("policy", [*POLICIES, *ORACLES])
def test_every_policy_serves_generated_chat(policy: str) -> None:
    load = generate(DEMO, 3)[:120]
    result = run_window(load, regional_fleet(L40S_X2), policy, seed=2)
    assert len(result.requests) == len(load)
    assert all(r.ok for r in result.requests)


@pytest.mark.parametrize(
    ("told", "gap_ms", "cold", "connect_ms"),
    [
        (False, 1_000.0, (0.0, 0.0), 0.0),
        (True, 2_000.0, (0.0, 0.05), 100.0),
        (True, 62_000.0, (0.9, 1.0), 100.0),  # closed between requests
    ],
)
def test_the_picker_hears_of_connections_where_proxies_tell(
    told: bool, gap_ms: float, cold: tuple[float, float], connect_ms: float
) -> None:
    spy = Spy()
    load = [request(n * gap_ms, prompt_tokens=100, family=n, session=str(n)) for n in range(30)]
    run_window(load, still_fleet(), spy, options=options(report_connections=told))
    last = spy.seen[-1]
    assert cold[0] <= last.cold_chance[0] <= cold[1]
    assert last.connect_ms[0] == pytest.approx(connect_ms)


_PROGRAM = """
from tests.sim.test_fleet_window import digest
print(digest("gorgo"), digest("random"))
"""


def digest(policy: str, seed: int = 5) -> str:
    fleet = FleetSpec(
        tuple(replace(spec, lost_hit_share=0.2) for spec in regional_fleet(L40S_X2).replicas),
        (
            Event(8.0, "eu-frankfurt:8000", Happening.DIE),
            Event(12.0, "eu-frankfurt:8000", Happening.REVIVE),
        ),
    )
    limited = WindowOptions(max_in_flight=16)
    return run_window(generate(DEMO, 1)[:150], fleet, policy, seed=seed, options=limited).digest()


def test_equal_windows_are_equal_whatever_process_they_ran_in() -> None:
    outputs = []
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.split())
    assert outputs[0] == outputs[1] == [digest("gorgo"), digest("random")]
    assert len({*outputs[0], digest("gorgo", seed=6)}) == 3
