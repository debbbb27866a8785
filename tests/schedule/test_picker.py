"""The picker as one: filter, price, draw, reserve, and the reports that come later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.apis.usage import Usage
from epp.errors import NoEndpointError
from epp.schedule.decision import Basis, rerun
from epp.signals.stored_responses import key_of
from epp.types import Endpoint, RequestInfo
from tests.kit.records import picker_of, prompt_of
from tests.kit.requests import asked

if TYPE_CHECKING:
    from epp.schedule.decision import Decision
    from epp.schedule.scheduler import Scheduler

POOL = [Endpoint("a:1", region="near"), Endpoint("b:1", region="mid"), Endpoint("c:1", region="far")]


def build(policy: str = "gorgo", pool: list[Endpoint] = POOL) -> Scheduler:
    return picker_of(policy, pool=pool)


def column(scheduler: Scheduler, name: str) -> list[float]:
    values: list[float] = getattr(scheduler.datastore.ledger, name)[:3].tolist()
    return values


def test_a_burst_does_not_herd_because_each_pick_reserves_at_once() -> None:
    scheduler = build()
    picked = [scheduler.decide(asked(prompt=prompt_of(n)), 0.0, 0.0).endpoint for n in range(30)]
    assert {name: picked.count(name) for name in ("a:1", "b:1", "c:1")} == pytest.approx(
        {"a:1": 10, "b:1": 10, "c:1": 10}, abs=1
    )


def test_the_next_turn_goes_where_the_prefix_is() -> None:
    scheduler = build()
    first = scheduler.decide(asked(prompt=prompt_of(1)), 0.0, 0.0)
    scheduler.end(first.id, "completed", 1.0)
    for other in range(2, 8):
        scheduler.end(scheduler.decide(asked(prompt=prompt_of(other)), 1.0, 1.0).id, "completed", 1.0)
    second = scheduler.decide(asked(prompt=prompt_of(1, 44)), 2.0, 2.0)
    assert second.endpoint == first.endpoint
    assert second.uncached_tokens == 4 * 64


def test_who_answered_a_probe_goes_before_who_did_not_however_cheap() -> None:
    pool = [Endpoint(f"{name}:1", models=frozenset({"m" if name in "abc" else "other"})) for name in "abcd"]
    scheduler = build(pool=pool)

    def picked(model: str = "m") -> list[tuple[str, int]]:
        decisions = [scheduler.decide(asked(prompt=prompt_of(n), model=model), 1.0, 1.0) for n in range(20)]
        return [(decision.endpoint, len(decision.fallbacks)) for decision in decisions]

    assert len({endpoint for endpoint, _ in picked()}) == 3, "nobody has answered yet"
    for slot in range(2):
        scheduler.datastore.health.success(slot, 1.0)
        scheduler.datastore.rtt.observe(slot, 500.0, 1.0)
    assert {endpoint for endpoint, _ in picked()} == {"a:1", "b:1"}
    assert {endpoint for endpoint, _ in picked("other")} == {"d:1"}, "of this model nobody has answered"
    scheduler.datastore.restart("a:1", 1.0)
    assert set(picked()) == {("b:1", 2)}, "who has not answered may still follow it"
    scheduler.set_pool([*pool, Endpoint("new:1")], 1.0)
    assert {endpoint for endpoint, _ in picked()} == {"b:1"}
    for slot, _ in scheduler.datastore.members:
        scheduler.datastore.health.success(slot, 40.0)
    late = [scheduler.decide(asked(prompt=prompt_of(n)), 40.0, 40.0).endpoint for n in range(40)]
    assert {"a:1", "c:1", "new:1"} <= set(late)


def test_a_decision_among_some_without_proof_is_found_again_from_its_record() -> None:
    scheduler = build()
    scheduler.datastore.health.success(2, 0.0)
    decision = scheduler.decide(asked(prompt=prompt_of(1)), 0.0, 0.0)
    assert (decision.endpoint, decision.slow_start_excluded) == ("c:1", (0, 1))
    assert rerun(decision, scheduler.policy, 0.01).chosen == decision.chosen
    assert decision.probabilities().tolist() == [0.0, 0.0, 1.0]


def test_what_is_reserved_is_given_back_in_two_steps() -> None:
    scheduler = build()
    decision = scheduler.decide(asked(prompt=prompt_of(1)), 0.0, 0.0)
    assert sum(column(scheduler, "pending_uncached_tokens")) == 40 * 64
    assert scheduler.first_token(decision.id, 0.5)
    assert sum(column(scheduler, "pending_uncached_tokens")) == 0
    assert not scheduler.first_token(decision.id, 0.6), "only once"
    outcome = scheduler.end(decision.id, "completed", 2.0)
    assert outcome is not None
    assert (outcome.ttft_ms, outcome.e2e_ms, outcome.endpoint) == (500.0, 2000.0, decision.endpoint)
    assert sum(column(scheduler, "running_requests")) == 0
    assert scheduler.end(decision.id, "completed", 3.0) is None, "only once"
    assert not scheduler.first_token(decision.id, 3.0)


def test_a_restart_clears_what_hung_on_the_old_process() -> None:
    scheduler = build()
    first = scheduler.decide(asked(prompt=prompt_of(1)), 0.0, 0.0)
    scheduler.datastore.restart(first.endpoint, 1.0)
    assert sum(column(scheduler, "running_requests")) == 0
    again = scheduler.decide(asked(prompt=prompt_of(1)), 2.0, 2.0)
    assert again.uncached_tokens == 40 * 64
    assert scheduler.usage(first.id, Usage(2560, 10, 0)), "a late report of the old process"
    scheduler.end(first.id, "completed", 3.0)
    assert sum(column(scheduler, "running_requests")) == 1, "it takes nothing from the new one"


def test_a_slot_that_another_endpoint_took_learns_nothing_of_a_request_that_came_back() -> None:
    scheduler = build(pool=POOL[:2])
    decision = scheduler.decide(asked(prompt=prompt_of(1)), 0.0, 0.0)
    first, second = [decision.endpoint, *({"a:1", "b:1"} - {decision.endpoint})]
    slot = scheduler.datastore.slot_of(first)
    assert slot is not None
    others = [endpoint for endpoint in POOL if endpoint.address != first]
    scheduler.served(decision.id, second)
    scheduler.set_pool(others, 1.0)
    assert scheduler.datastore.address_of(slot) == "c:1", "the slot is another's"
    scheduler.set_pool(POOL, 2.0)
    scheduler.served(decision.id, first)
    scheduler.datastore.index.insert(slot, prompt_of(1))
    before = scheduler.datastore.index.match(prompt_of(1, 44)).cached_tokens(np.array([slot]))[0]
    scheduler.usage(decision.id, Usage(prompt_tokens=2560, completion_tokens=100, cached_tokens=0))
    assert scheduler.datastore.index.match(prompt_of(1, 44)).cached_tokens(np.array([slot]))[0] == before
    scheduler.end(decision.id, "completed", 3.0)


def test_a_follow_up_goes_to_the_process_that_stores_the_response() -> None:
    scheduler = build("round-robin")

    def follow(response_id: str) -> Decision:
        ask = asked(prompt=prompt_of(9), previous_response=key_of(response_id), stores=True)
        return scheduler.decide(ask, 1.0, 1.0)

    first, late = follow(""), follow("")
    scheduler.stored(first.id, "resp_1", 1.0)
    assert {follow("resp_1").endpoint for _ in range(6)} == {first.endpoint}
    assert len({follow("resp_2").endpoint for _ in range(6)}) == 3, "nobody is known to have it"
    for endpoint in (first.endpoint, late.endpoint):
        scheduler.datastore.restart(endpoint, 2.0)
    scheduler.stored(late.id, "resp_3", 2.0)
    for gone in ("resp_1", "resp_3"):
        assert len({follow(gone).endpoint for _ in range(6)}) == 3


def test_a_body_that_is_not_understood_is_balanced() -> None:
    scheduler = build()
    opaque = scheduler.decide(asked(opaque=True, body_bytes=10), 0.0, 0.0)
    assert (opaque.basis, opaque.policy) == (Basis.BALANCE, "least-request")
    assert scheduler.decide(asked(), 0.0, 0.0).policy == "gorgo", "a request without a body is the policy's"
    assert build("round-robin").decide(asked(opaque=True), 0.0, 0.0).policy == "round-robin"


@pytest.mark.parametrize(
    ("ask", "rule"),
    [(asked(model="nope"), "model"), (asked(prompt=prompt_of(1), max_output_tokens=10_000), "context")],
)
def test_nobody_eligible_names_the_rule_and_reserves_nothing(ask: RequestInfo, rule: str) -> None:
    pool = [Endpoint("a:1", models=frozenset({"llama"}), context_tokens=4096)]
    scheduler = build(pool=pool)
    with pytest.raises(NoEndpointError) as caught:
        scheduler.decide(ask, 0.0, 0.0)
    assert caught.value.rule == rule
    assert scheduler.in_flight == 0
