"""What becomes of a request that one worker prefills and another answers, and of those whose workers die."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from epp.types import Role
from epp_lab.compare.fleets import fleet_named
from epp_lab.compare.llmd_stages import prefix_decided
from epp_lab.sim.engine import Engine
from epp_lab.sim.handover import Interface
from epp_lab.sim.job import EngineEvent, Finished, FirstToken, Job
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.run import policy_named, run_window
from epp_lab.sim.scenario import Event, FleetSpec, Happening, ReplicaSpec
from tests.kit.simfleet import PLAIN, options, request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.results import SimResult

#: A token of its KV cache takes a millisecond at 1 Gb/s.
SENT = replace(PLAIN, kv_bytes_per_token=125_000)
#: Sidecar to worker; 5 ms of front end, 10 of a prefill and 50 of its tokens; back, and 2 to set a transfer up.
PREFILLED_MS, SET_UP_MS = 0.5 + 65.0, 0.5 + 2.0
#: Front end, and a step for the prompt's last token.
JOINED_MS = 5.0 + 11.0


def fleet(*events: Event, prefill: int = 1, decode: int = 1) -> FleetSpec:
    here = NetworkPath(0.0)
    workers = [ReplicaSpec(f"p{n}:1", SENT, here, role=Role.PREFILL, link_gbps=1.0) for n in range(prefill)]
    workers += [ReplicaSpec(f"d{n}:1", SENT, here, role=Role.DECODE, link_gbps=1.0) for n in range(decode)]
    return FleetSpec(tuple(workers), events)


def run(
    load: Sequence[TraceRequest], spec: FleetSpec, *, threshold: float = 1.0, seed: int = 0
) -> tuple[SimResult, ...]:
    policy = policy_named("llm-d-stages", prefix_decided(threshold))
    return run_window(load, spec, policy, seed=seed, options=options()).requests


def test_a_request_takes_prefill_transfer_and_a_step_by_hand() -> None:
    (result,) = run([request(0.0)], fleet())
    assert (result.endpoint, result.prefilled_at, result.ok) == ("d0:1", "p0:1", True)
    assert result.ttft_ms == pytest.approx(PREFILLED_MS + SET_UP_MS + 50.0 + JOINED_MS)
    assert result.e2e_ms - (result.ttft_ms or 0.0) == pytest.approx(3 * 2.0)


def test_what_lacks_less_than_the_threshold_is_prefilled_where_it_is_decoded() -> None:
    (result,) = run([request(0.0)], fleet(), threshold=51.0)
    assert result.prefilled_at == ""
    assert result.ttft_ms == pytest.approx(65.0)


def test_only_what_the_decode_worker_lacks_is_sent() -> None:
    longer = request(1_000.0, prompt_tokens=60)
    first, second = run([request(0.0), longer], fleet())
    assert first.ttft_ms is not None
    # Both have the first 50 tokens by now: ten are prefilled and sent.
    assert second.ttft_ms == pytest.approx(first.ttft_ms - 40.0 - 40.0)
    assert second.cached_tokens == 50  # at the prefill worker, as the sidecar tells


def test_transfers_wait_for_each_other_at_either_end() -> None:
    one, other, third = Interface(1.0), Interface(1.0), Interface(1.0)
    assert one.send(other, 125_000.0 * 10, 0.0) == 2.0 + 10.0
    assert one.send(third, 125_000.0 * 10, 0.0) == 2.0 + 20.0  # behind the first where it leaves
    assert third.send(other, 125_000.0 * 10, 0.0) == 2.0 + 20.0  # and where it arrives
    assert other.send(one, 125_000.0 * 10, 0.0) == 2.0 + 10.0  # the other way is free


def test_a_transfer_is_as_slow_as_its_slower_end() -> None:
    assert Interface(10.0).send(Interface(1.0), 125_000.0 * 10, 0.0) == 2.0 + 10.0
    assert Interface(1.0).send(Interface(10.0), 125_000.0 * 10, 0.0) == 2.0 + 10.0


@pytest.mark.parametrize("at_s", [0.0, 0.03, 0.1], ids=["before", "while it prefills", "while it sends"])
def test_a_prefill_worker_that_dies_costs_time_and_no_request(at_s: float) -> None:
    (result,) = run([request(0.0)], fleet(Event(at_s, "p0:1", Happening.DIE)))
    assert (result.error, result.endpoint) == ("", "d0:1")
    assert result.ttft_ms == pytest.approx(1e3 * at_s + 0.5 + 65.0)  # the decode worker prefills, too


@pytest.mark.parametrize("at_s", [0.03, 0.1, 0.136], ids=["prefill", "transfer", "decode"])
def test_a_decode_worker_that_dies_takes_its_requests_with_it(at_s: float) -> None:
    (result,) = run([request(0.0)], fleet(Event(at_s, "d0:1", Happening.DIE)))
    assert result.error == "connection reset"
    assert result.e2e_ms == pytest.approx(1e3 * at_s)


def test_ranks_of_a_pod_share_its_link_and_its_death() -> None:
    one, two = (
        ReplicaSpec(f"d:{port}", SENT, NetworkPath(0.0), role=Role.DECODE, link_gbps=1.0) for port in (1, 2)
    )
    workers = (*fleet(prefill=2).replicas[:2], one, two)
    load = [request(0.0, family=1), request(0.0, family=2)]
    results = run(load, FleetSpec(workers))
    assert {result.endpoint for result in results} == {"d:1", "d:2"}
    # Both are prefilled at once; the second waits for the first on the way to their pod.
    first, second = sorted(result.ttft_ms or 0.0 for result in results)
    assert second - first == pytest.approx(50.0)
    lost = run(load, FleetSpec(workers, (Event(0.03, "d", Happening.DIE),)))
    assert {result.error for result in lost} == {"connection reset"}


def brought(engine: Engine, job: Job) -> list[EngineEvent]:
    engine.submit(job, 0.0)
    return engine.advance(1e9)


def test_a_prompt_that_was_brought_is_not_computed_again() -> None:
    events = brought(Engine(PLAIN), Job(1, 50, 2, brought=20))
    assert events == [FirstToken(1, 5.0 + 11.0, 20), Finished(1, 18.0, 2)]


def test_a_preempted_one_computes_its_prompt_where_it_is() -> None:
    small = replace(PLAIN, kv_capacity_tokens=120, output_reserve_ratio=0.0)
    engine = Engine(small)
    engine.submit(Job(1, 50, 30), 0.0)
    engine.submit(Job(2, 50, 30, brought=0), 0.0)
    engine.advance(1e9)
    counters = engine.snapshot().counters
    assert counters.preemptions
    assert counters.busy_ms > 60.0 + 11.0 + 60.0  # both prompts, and one of them once more


def test_fleets_of_workers_have_names() -> None:
    found = fleet_named("pd-70b-2p1d-25g").replicas
    assert [(one.role, one.link_gbps) for one in found] == [(Role.PREFILL, 25.0)] * 2 + [(Role.DECODE, 25.0)]
    assert {one.role for one in fleet_named("pd-8b-3").replicas} == {Role.WHOLE}
    ranks = [one.address for one in fleet_named("pd-8b-1p1x2d-25g").replicas]
    assert ranks == ["prefill-0:8000", "decode-0:8000", "decode-0:8001"]
