"""Who prefills for whom: roles, legs, reservations and what ends them, in the real scheduler."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.config.pool import EndpointSpec, roles_of
from epp.console.explain import explained
from epp.errors import NoEndpointError
from epp.policies.pairs import MOST, Prefills, pairs_of
from epp.policies.registry import POLICIES
from epp.records.schema import decision_of
from epp.records.verify import verify
from epp.request.disaggregation import worker_headers
from epp.schedule.decision import outcome_record, rerun, to_record
from epp.types import BACKLOG_MS, REVISION_LABEL, Endpoint, Role, ranked, split_rank
from tests.kit.records import picker_of, prompt_of
from tests.kit.requests import asked

if TYPE_CHECKING:
    from epp.schedule.decision import Decision
    from epp.schedule.scheduler import Scheduler
    from epp.types import RequestInfo

PREFILL, DECODE, ENCODE = (frozenset({role}) for role in (Role.PREFILL, Role.DECODE, Role.ENCODE))
POOL = [
    Endpoint("p1:1", roles=PREFILL),
    Endpoint("p2:1", roles=PREFILL),
    Endpoint("d1:1", roles=DECODE),
    Endpoint("d2:1", roles=DECODE),
]


def build(pool: list[Endpoint] = POOL, policy: str = "gorgo-ms") -> Scheduler:
    return picker_of(policy, pool=pool)


def busy(scheduler: Scheduler, address: str, requests: int = 8) -> None:
    """Let an endpoint decode so many requests."""
    slot = scheduler.datastore.slot_of(address)
    assert slot is not None
    for number in range(requests):
        scheduler.datastore.ledger.reserve(f"{address} {number}", slot, 100, 0, 0.0, answer_tokens=100.0)
        scheduler.datastore.ledger.first_token(f"{address} {number}", 0.0)


def long(seed: int = 1, blocks: int = 200, **fields: object) -> RequestInfo:
    return asked(prompt=prompt_of(seed, blocks), **fields)


def parts(decision: Decision) -> dict[str, str]:
    return {leg.role.value: decision.address(leg) for leg in decision.legs}


def load(scheduler: Scheduler, row: str) -> dict[str, float]:
    """What is reserved where."""
    values = getattr(scheduler.datastore.ledger, row)
    found = {address: float(values[scheduler.datastore.slot_of(address)]) for address in names(scheduler)}
    return {address: value for address, value in found.items() if value}


def names(scheduler: Scheduler) -> list[str]:
    return [endpoint.address for _, endpoint in scheduler.datastore.members]


def backlog(decision: Decision) -> list[float]:
    values: list[float] = decision.snapshot.extra[BACKLOG_MS].tolist()
    return values


def both_busy() -> Scheduler:
    """Decoders that a prefill would stall."""
    scheduler = build()
    for address in ("d1:1", "d2:1"):
        busy(scheduler, address)
    return scheduler


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("", ()),
        ("prefill", ("prefill",)),
        ("both", ("prefill", "decode")),
        ("encode-prefill-decode", ("encode", "prefill", "decode")),
        ("primary", ()),
    ],
)
def test_a_role_names_parts_of_requests_and_another_word_none(name: str, roles: tuple[str, ...]) -> None:
    assert roles_of(name) == frozenset(map(Role, roles))


def test_the_endpoints_file_goes_before_a_label() -> None:
    labels = {"llm-d.ai/role": "prefill"}
    assert EndpointSpec("a:1", labels=labels).endpoint().roles == PREFILL
    assert EndpointSpec("a:1", labels=labels, role="decode").endpoint().roles == DECODE


def test_a_prefill_that_would_stall_many_goes_to_a_worker_for_it() -> None:
    decision = both_busy().decide(long(), 0.0, 0.0)
    assert [leg.role for leg in decision.legs] == [Role.PREFILL, Role.DECODE]
    assert worker_headers(decision, str.upper) == {
        "x-prefiller-host-port": parts(decision)["prefill"].upper()
    }
    prefill, decode = decision.legs
    assert prefill.expected.first_token_s < decode.expected.first_token_s < decode.expected.end_s


def test_what_the_decoder_has_cached_is_served_by_it_alone() -> None:
    scheduler = both_busy()
    first = scheduler.decide(long(), 0.0, 0.0)
    scheduler.end(first.id, "completed", 1.0)
    again = scheduler.decide(long(), 1.0, 1.0)
    assert parts(again) == {"whole": first.endpoint}


def test_each_part_reserves_its_own_and_the_first_token_ends_the_prefill() -> None:
    scheduler = both_busy()
    decision = scheduler.decide(long(), 0.0, 0.0)
    prefiller, decoder = parts(decision)["prefill"], decision.endpoint
    assert load(scheduler, "pending_uncached_tokens") == {prefiller: 200 * 64}
    assert load(scheduler, "running_requests")[decoder] == 9
    other = scheduler.decide(long(2), 0.0, 0.0)
    assert parts(other)["prefill"] != prefiller, "its prefill would wait"
    assert any(backlog(other)), "the link is in use"
    for each in (decision, other):
        scheduler.first_token(each.id, 1.0)
    assert load(scheduler, "pending_uncached_tokens") == {}
    assert prefiller not in load(scheduler, "running_requests")
    assert not any(backlog(scheduler.decide(long(3), 1.0, 1.0)))


@pytest.mark.parametrize("how", ["end", "headers", "prefilled"])
def test_a_prefill_is_over_when_its_request_ends_or_is_answered(how: str) -> None:
    scheduler = both_busy()
    decision = scheduler.decide(long(), 0.0, 0.0)
    if how == "end":
        scheduler.end(decision.id, "client-gone", 1.0)
    elif how == "headers":
        scheduler.response_started(decision.id, 200)
    else:
        scheduler.prefilled(decision.id)
    assert parts(decision)["prefill"] not in load(scheduler, "running_requests")


def test_revisions_are_not_mixed_in_a_pair() -> None:
    pool = [
        Endpoint("p1:1", roles=PREFILL, labels={REVISION_LABEL: "a"}),
        Endpoint("d1:1", roles=DECODE, labels={REVISION_LABEL: "b"}),
        Endpoint("d2:1", roles=DECODE, labels={REVISION_LABEL: "a"}),
    ]
    scheduler = build(pool)
    busy(scheduler, "d1:1")
    busy(scheduler, "d2:1", 20)
    found = [parts(scheduler.decide(long(seed), 0.0, 0.0)) for seed in range(1, 20)]
    assert {"whole": "d1:1"} in found
    assert {"prefill": "p1:1", "decode": "d2:1"} in found
    assert {"prefill": "p1:1", "decode": "d1:1"} not in found


def test_who_may_answer_instead_fits_the_same_worker() -> None:
    pool = [
        Endpoint("p1:1", roles=PREFILL, region="a"),
        Endpoint("far:1", roles=DECODE, region="b"),
        *(Endpoint(f"d{number}:1", roles=DECODE, region="a") for number in (1, 2)),
        Endpoint("old:1", roles=DECODE, region="a", labels={REVISION_LABEL: "old"}),
        Endpoint("both:1", roles=PREFILL | DECODE, region="a"),
    ]
    scheduler = build(pool)
    for _, endpoint in scheduler.datastore.members[1:]:
        busy(scheduler, endpoint.address, 9 if endpoint.address[0] == "d" else 60)
    decision = scheduler.decide(long(), 0.0, 0.0)
    names = decision.destination.split(",")
    assert parts(decision) == {"prefill": "p1:1", "decode": names[0]}
    assert sorted(names) == ["both:1", "d1:1", "d2:1"]
    verdict = verify([json.loads(json.dumps(to_record(decision)))])
    assert (verdict.identical, verdict.differences) == (1, [])


def test_who_may_answer_instead_of_one_endpoint_can_prefill() -> None:
    pool = [*POOL, Endpoint("sg:1", roles=DECODE, prefills=False)]
    scheduler = build(pool)
    scheduler.decide(long(), 0.0, 0.0)
    decision = scheduler.decide(long(), 0.0, 0.0)
    assert parts(decision).keys() == {"whole"}
    assert sorted(decision.destination.split(",")) == ["d1:1", "d2:1"]


def test_of_many_workers_the_soonest_of_each_kind_are_priced() -> None:
    kinds = {name: {REVISION_LABEL: name} for name in ("a", "b")}
    pool = [
        Endpoint(f"{role.value}-{name}-{number}:1", roles=frozenset({role}), labels=labels)
        for name, labels in kinds.items()
        for role in (Role.PREFILL, Role.DECODE)
        for number in range(50 if role is Role.PREFILL else 2)
    ]
    scheduler = build(pool)
    ledger = scheduler.datastore.ledger
    for slot, endpoint in scheduler.datastore.members:
        if endpoint.roles == DECODE:
            busy(scheduler, endpoint.address, 20)
        elif not endpoint.address.endswith("-49:1"):
            ledger.reserve(endpoint.address, slot, 9000, 9000, 0.0)
    request = long()
    seen = scheduler.measure(request, scheduler.locate(request, 0.0), 0.0).seen
    workers = seen.workers[Role.PREFILL]
    wait = workers.pending_uncached_tokens
    zero = np.zeros(len(workers))
    pairs = pairs_of(workers, seen, Prefills(zero, wait, zero, zero), np.zeros(len(seen)), 0.5)
    assert pairs.fit.shape == (2 * MOST, len(seen))
    decision = scheduler.decide(request, 0.0, 0.0)
    assert parts(decision)["prefill"].endswith("-49:1")


def test_media_go_to_an_encoder_and_text_does_not() -> None:
    scheduler = build([*POOL, Endpoint("e1:1", roles=ENCODE)])
    assert "encode" not in parts(scheduler.decide(long(), 0.0, 0.0))
    decision = scheduler.decide(long(2, media=("image",)), 0.0, 0.0)
    assert parts(decision)["encode"] == "e1:1"
    assert worker_headers(decision, str)["x-encoder-hosts-ports"] == "e1:1"


def test_a_policy_that_chooses_no_pairs_leaves_all_to_those_that_decode() -> None:
    scheduler = build(policy="least-request")
    assert {tuple(parts(scheduler.decide(long(), 0.0, 0.0)).items()) for _ in range(4)} == {
        (("whole", "d1:1"),),
        (("whole", "d2:1"),),
    }


def test_a_fleet_that_only_prefills_says_so() -> None:
    with pytest.raises(NoEndpointError, match="there to prefill"):
        build(POOL[:2]).decide(long(), 0.0, 0.0)


def test_an_ejected_worker_prefills_nothing() -> None:
    scheduler = both_busy()
    for _ in range(5):
        scheduler.datastore.health.failure(0, "outcome", 0.0, "dead")
    assert {parts(scheduler.decide(long(seed), 0.1, 0.1)).get("prefill") for seed in range(1, 8)} <= {
        None,
        "p2:1",
    }


def test_a_decision_of_pairs_comes_out_the_same_again() -> None:
    scheduler = both_busy()
    decision = scheduler.decide(long(), 0.0, 0.0)
    again = rerun(decision, scheduler.policy)
    assert again.legs == decision.legs


def test_a_recorded_decision_of_pairs_is_verified_and_explained_by_part() -> None:
    scheduler = build([*POOL, Endpoint("e1:1", roles=ENCODE)])
    for address in ("d1:1", "d2:1"):
        busy(scheduler, address)
    decision = scheduler.decide(long(media=("image",)), 0.0, 0.0)
    record = json.loads(json.dumps(to_record(decision)))
    verdict = verify([record])
    assert (verdict.identical, verdict.differences) == (1, [])
    assert decision_of(record).legs == decision.legs
    words = explained(record)["words"]
    assert any(line.startswith("encode on e1:1, one of 1: ") for line in words)
    assert any(line.startswith(f"prefill on {parts(decision)['prefill']}, one of 2: ") for line in words)
    assert f"decode on {decision.endpoint}" in words
    record["legs"], record["partners"]["prefill"] = [], [[-1], [-1]]
    assert "parts were" in verify([record]).differences[0]


def test_the_outcome_names_who_did_a_part_and_the_prefill_worker_learns_its_speed() -> None:
    scheduler = both_busy()
    rates = scheduler.datastore.rates
    before = rates.block().copy()
    for number in range(1, 40):
        decision = scheduler.decide(long(number, stream=True), float(number), 0.0)
        scheduler.first_token(decision.id, number + 0.4)
        outcome = scheduler.end(decision.id, "completed", number + 0.5)
        assert outcome is not None
        helpers = {leg.role: decision.address(leg) for leg in decision.legs[:-1]}
        assert outcome.workers == helpers
        assert outcome_record(outcome, 0.0).get("workers", {}) == helpers
    assert (rates.block() != before).any()


@pytest.mark.parametrize("policy", [name for name, point in POLICIES.items() if point.load().pairs])
def test_an_engine_that_cannot_prefill_always_gets_a_worker(policy: str) -> None:
    pool = [
        replace(
            endpoint, prefills=endpoint.roles == PREFILL, labels={"llm-d.ai/role": next(iter(endpoint.roles))}
        )
        for endpoint in POOL
    ]
    scheduler = build(pool, policy)
    assert {tuple(parts(scheduler.decide(long(seed), 0.0, 0.0))) for seed in range(4)} == {
        ("prefill", "decode")
    }
    back = asked(prompt=prompt_of(5), came_s=1.0)
    assert "prefill" in parts(scheduler.decide(back, 0.0, 0.0))


@pytest.mark.parametrize(
    ("worker", "policy", "fields"),
    [
        ({"region": "far"}, "gorgo-ms", {}),
        ({"roles": frozenset()}, "gorgo-ms", {}),
        ({"draining": True}, "gorgo-ms", {}),
        ({}, "least-request", {}),
        ({}, "gorgo-ms", {"opaque": True}),
        ({}, "gorgo-ms", {"subset": ("d1:1", "d2:1")}),
    ],
)
def test_an_engine_that_cannot_prefill_gets_nothing_without_a_worker_while_another_may(
    worker: dict[str, Any], policy: str, fields: dict[str, Any]
) -> None:
    without = Endpoint("d1:1", roles=DECODE, prefills=False)
    pool = [replace(Endpoint("p1:1", roles=PREFILL), **worker), without, Endpoint("d2:1", roles=DECODE)]
    scheduler = build(pool, policy)
    busy(scheduler, "d2:1")
    found = [scheduler.decide(long(seed, **fields), 0.0, 0.0) for seed in range(4)]
    assert "d1:1" not in {decision.endpoint for decision in found}
    assert {decision.excluded["prefill"] for decision in found} == {("d1:1",)}
    assert all(decision.bound for decision in found), "nor does Envoy send it there"
    alone = build([pool[0], without], policy).decide(long(**fields), 0.0, 0.0)
    assert alone.endpoint in {"d1:1", "p1:1"}, "it serves where no other may"


def test_what_failed_by_parts_is_served_whole() -> None:
    assert list(parts(both_busy().decide(long(came_s=1.0), 0.0, 0.0))) == ["whole"]


def test_an_endpoint_that_only_prefills_has_no_room_for_requests() -> None:
    datastore = build().datastore
    assert [datastore.address_of(slot) for slot in datastore.serving(0.0).tolist()] == ["d1:1", "d2:1"]


def test_a_rank_is_an_endpoint_that_a_header_names_with_a_worker_and_stand_ins_of_the_same_rank() -> None:
    pool = [
        replace(endpoint, address=name)
        for endpoint in POOL
        for name in (ranked(endpoint.address, 2) if endpoint.address != "p1:1" else ["p1:1"])
    ]
    scheduler = build(pool)
    busy(scheduler, "d1:1@0", 20)
    for name in ("d1:1@1", "d2:1@0", "d2:1@1"):
        busy(scheduler, name)
    found = [scheduler.decide(long(seed), 0.0, 0.0) for seed in range(1, 9)]
    apart = [decision for decision in found if "prefill" in parts(decision)]
    assert {split_rank(decision.endpoint)[1] for decision in apart} == {"0", "1"}
    for decision in found:
        rank = split_rank(decision.endpoint)[1]
        assert worker_headers(decision, str)["x-data-parallel-rank"] == rank
        names = [*parts(decision).values(), *decision.destination.split(",")]
        assert {split_rank(name)[1] for name in names} == {rank}
        assert len(decision.destination.split(",")) == 2, "of either host"
        verdict = verify([json.loads(json.dumps(to_record(decision)))])
        assert (verdict.identical, verdict.differences) == (1, [])


def test_an_encoder_may_have_no_ranks() -> None:
    scheduler = build([Endpoint("e1:1", roles=ENCODE), Endpoint("d1:1@1", roles=DECODE)])
    assert parts(scheduler.decide(long(media=("image",)), 0.0, 0.0))["encode"] == "e1:1"
