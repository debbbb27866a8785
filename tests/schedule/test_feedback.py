"""What comes back of a request: tokens in bytes, cached tokens, an answer's credit, who really served."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from epp.apis.usage import NO_USAGE, Usage
from epp.extproc.types import Cause
from epp.schedule.decision import Source, outcome_record
from tests.kit.records import ask_of, picker_of
from tests.kit.requests import asked

if TYPE_CHECKING:
    from epp.schedule.decision import Outcome
    from epp.schedule.scheduler import Scheduler
    from epp.types import RequestInfo

WALL_S = 1_700_000_000.0


def served(scheduler: Scheduler, ask: RequestInfo, usage: Usage, now_s: float, **end: Any) -> Outcome:
    decision = scheduler.decide(ask, now_s, WALL_S)
    scheduler.first_token(decision.id, now_s + 0.1, Source.STREAM)
    scheduler.response_started(decision.id, 200, end.get("served", ""))
    scheduler.observed(decision.id, usage=usage, chunks=11, response_bytes=900, last_chunk_s=now_s + 1.1)
    outcome = scheduler.end(decision.id, end.get("cause", "completed"), now_s + 1.2)
    assert outcome is not None
    return outcome


def test_the_lease_goes_where_the_request_went() -> None:
    scheduler = picker_of()
    ledger, other = scheduler.datastore.ledger, "10.0.0.2:8000"
    slot = scheduler.datastore.slot_of(other)
    assert slot is not None
    served(scheduler, ask_of(1), NO_USAGE, 0.0, served=other)  # holds the prompt by now
    decision = scheduler.decide(ask_of(2), 1.0, WALL_S)
    chosen = scheduler.datastore.slot_of(decision.endpoint)
    assert chosen is not None
    if chosen == slot:
        slot, other = next((s, e.address) for s, e in scheduler.datastore.members if s != slot)
    scheduler.response_started(decision.id, 200, other)
    assert (ledger.running_requests[chosen], ledger.running_requests[slot]) == (0.0, 1.0)
    assert ledger.pending_uncached_tokens[slot] == decision.request.prompt_tokens, (
        "nothing of it is cached there"
    )
    scheduler.served(decision.id, other)
    assert ledger.running_requests[slot] == 1.0
    scheduler.end(decision.id, "completed", 2.0)
    assert not ledger.block.any()


def test_what_a_stream_shows_is_an_outcome_with_its_sources() -> None:
    outcome = served(picker_of(), ask_of(1, stream=True), Usage(2560, 21, 0), 0.0)
    assert outcome.ttft_ms == pytest.approx(100.0)
    assert outcome.e2e_ms == pytest.approx(1200.0)
    assert outcome.itl_ms == pytest.approx(1000.0 / 20)
    assert (outcome.chunks, outcome.response_bytes, outcome.served, outcome.attempts) == (11, 900, "", None)
    record = outcome_record(outcome, WALL_S)
    known = {name for name, value in record.items() if value not in (None, "")}
    assert record["sources"].keys() == known - {"schema", "kind", "id", "at", "endpoint", "sources"}
    assert set(record["sources"].values()) == {"stream"}


def test_without_usage_the_pieces_stand_for_tokens_and_the_source_says_so() -> None:
    outcome = served(picker_of(), ask_of(1, stream=True), NO_USAGE, 0.0)
    assert outcome.itl_ms == pytest.approx(1000.0 / 10)
    assert outcome.sources["itl_ms"] is Source.CHUNKS
    whole = served(picker_of(), ask_of(1, stream=False), NO_USAGE, 0.0)
    assert math.isnan(whole.itl_ms)
    assert "itl_ms" not in whole.sources
    assert "cached_tokens" not in whole.sources
    assert outcome_record(whole, WALL_S)["cached_tokens"] is None, "absent is unknown, never 0"


def test_bytes_per_token_are_learned_from_whoever_tells() -> None:
    told: list[tuple[str, int, int]] = []
    scheduler = picker_of(learn=lambda asked, tokens: told.append((asked.model, asked.text_bytes, tokens)))
    served(scheduler, ask_of(1, text_bytes=9000), Usage(3000, 5, None), 0.0)
    served(scheduler, ask_of(2, text_bytes=9000), NO_USAGE, 2.0)
    served(scheduler, ask_of(3, text_bytes=0), Usage(3000, 5, None), 4.0)
    served(scheduler, asked(model="m"), Usage(3000, 5, None), 6.0)
    assert told == [("m", 9000, 3000)]


def test_an_endpoint_that_holds_less_than_foretold_has_a_lower_hit_ratio() -> None:
    scheduler = picker_of()
    ratios = scheduler.datastore.calibration.hit_ratio
    outcome = served(scheduler, ask_of(1), Usage(2560, 5, 0), 0.0)
    slot = scheduler.datastore.slot_of(outcome.endpoint)
    assert slot is not None
    assert ratios[slot] == 1.0, "nothing was predicted of a new prompt"
    for turn in range(20):
        again = served(scheduler, ask_of(1), Usage(2560, 5, 640), 10.0 * turn)
        assert again.endpoint == outcome.endpoint
    assert 0.2 < ratios[slot] < 0.5
    view = scheduler.decide(ask_of(2), 300.0, WALL_S).snapshot
    assert view.hit_ratio.tolist() == ratios[: len(view)].tolist()


def test_cached_tokens_left_out_by_one_that_tells_them_are_none() -> None:
    ratios = {}
    for tells in (True, False):
        scheduler = picker_of()
        outcome = served(scheduler, ask_of(1), Usage(2560, 5, 0 if tells else None), 0.0)
        slot = scheduler.datastore.slot_of(outcome.endpoint)
        for turn in range(1, 21):
            served(scheduler, ask_of(1), Usage(2560, 5, None), 10.0 * turn)
        ratios[tells] = scheduler.datastore.calibration.hit_ratio[slot]
        if tells:  # another process may be started without
            scheduler.datastore.restart(outcome.endpoint, 300.0)
            for turn in range(31, 51):
                served(scheduler, ask_of(1), Usage(2560, 5, None), 10.0 * turn)
            assert scheduler.datastore.calibration.hit_ratio[slot] == 1.0
    assert ratios[True] < 0.2
    assert ratios[False] == 1.0


def test_of_another_api_what_is_left_out_says_nothing() -> None:
    scheduler = picker_of()
    slot = scheduler.datastore.slot_of(served(scheduler, ask_of(1), Usage(2560, 5, 0), 0.0).endpoint)
    for turn in range(1, 21):
        served(scheduler, ask_of(1, api="openai-embeddings"), Usage(2560, None, None), 10.0 * turn)
    assert scheduler.datastore.calibration.hit_ratio[slot] == 1.0


def test_who_served_instead_holds_the_prompt_from_then_on() -> None:
    scheduler = picker_of()
    other = "10.0.0.2:8000"
    outcome = served(scheduler, ask_of(1), Usage(2560, 5, 0), 0.0, served=other)
    assert outcome.endpoint != outcome.where == other
    slot = scheduler.datastore.slot_of(other)
    assert slot is not None
    assert scheduler.datastore.index.tokens(slot) == 2560.0
    assert scheduler.datastore.calibration.hit_ratio.tolist()[:3] == [1.0] * 3, (
        "nothing was predicted of that one"
    )


def test_a_lease_holds_the_hits_that_its_engine_loses() -> None:
    scheduler = picker_of()
    first = scheduler.decide(ask_of(1), 0.0, WALL_S)
    scheduler.end(first.id, "completed", 1.0)
    slots = {endpoint.address: slot for slot, endpoint in scheduler.datastore.members}
    for slot in slots.values():
        for _ in range(200):
            scheduler.datastore.calibration.observe(slot, 2560.0, 1280.0)
    again = scheduler.decide(ask_of(1), 2.0, WALL_S)
    assert again.endpoint == first.endpoint
    ledger, ratio = scheduler.datastore.ledger, scheduler.datastore.calibration.hit_ratio
    slot, elsewhere = slots[again.endpoint], next(s for a, s in slots.items() if a != again.endpoint)
    assert ratio[slot] == pytest.approx(0.5, abs=0.02)
    cached = again.request.prompt_tokens - again.uncached_tokens
    lost = again.request.prompt_tokens - ratio[slot] * cached
    assert ledger.pending_uncached_tokens[slot] == pytest.approx(lost, abs=1.0)
    scheduler.served(again.id, next(a for a, s in slots.items() if s == elsewhere))
    scheduler.served(again.id, again.endpoint)
    assert ledger.pending_uncached_tokens[slot] == pytest.approx(lost, abs=1.0)
    scheduler.end(again.id, "completed", 3.0)
    assert not ledger.block.any()


def test_a_retried_request_is_charged_what_the_second_endpoint_has_to_prefill() -> None:
    scheduler = picker_of()
    first = scheduler.decide(ask_of(1), 0.0, WALL_S)
    scheduler.end(first.id, "completed", 1.0)
    again = scheduler.decide(ask_of(1), 2.0, WALL_S)
    assert again.endpoint == first.endpoint
    other = next(
        endpoint.address for _, endpoint in scheduler.datastore.members if endpoint.address != first.endpoint
    )
    slot, home = scheduler.datastore.slot_of(other), scheduler.datastore.slot_of(first.endpoint)
    assert slot is not None
    assert home is not None
    scheduler.served(again.id, other)
    assert scheduler.datastore.ledger.pending_uncached_tokens[slot] == again.request.prompt_tokens
    scheduler.served(again.id, first.endpoint)
    assert scheduler.datastore.ledger.pending_uncached_tokens[home] == again.uncached_tokens
    assert scheduler.datastore.ledger.running_requests[[slot, home]].tolist() == [0.0, 1.0]


def test_pieces_stand_for_tokens_where_no_usage_tells_how_long_answers_are() -> None:
    scheduler = picker_of()
    before = scheduler.datastore.answers.expected("m")
    for number in range(30):
        served(scheduler, ask_of(number, stream=True), NO_USAGE, float(number))
    assert abs(scheduler.datastore.answers.expected("m") - 11) < 0.1 * abs(before - 11)
    for number in range(30):
        served(scheduler, ask_of(number, stream=False), NO_USAGE, 100.0 + number)
    assert scheduler.datastore.answers.expected("m") < 20, "the pieces of a whole answer are no tokens"


def test_an_old_lease_ends_as_expired() -> None:
    scheduler = picker_of()
    ids = [scheduler.decide(ask_of(number), float(number), WALL_S).id for number in range(2)]
    assert scheduler.expire(3.0) == []
    assert [(outcome.id, outcome.cause) for outcome in scheduler.expire(1e6)] == [
        (decision_id, "expired") for decision_id in ids
    ]


def test_reports_on_ended_requests_are_refused() -> None:
    scheduler = picker_of()
    decision = scheduler.decide(ask_of(1), 0.0, WALL_S)
    scheduler.end(decision.id, Cause.COMPLETED.value, 1.0)
    assert not scheduler.observed(decision.id, chunks=1)
    assert not scheduler.usage(decision.id, Usage(1, 1, 1))
    assert not scheduler.response_started(decision.id, 200)
    scheduler.served(decision.id, "10.0.0.2:8000")


def test_a_hit_that_the_stream_and_the_report_both_tell_is_learned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = picker_of()
    told: list[int] = []
    monkeypatch.setattr(scheduler.datastore.index, "confirm", lambda *facts: told.append(facts[2]))
    decision = scheduler.decide(ask_of(1), 0.0, WALL_S)
    scheduler.observed(decision.id, usage=Usage(2560, None, None))  # cut before it was whole
    assert told == []
    scheduler.observed(decision.id, usage=Usage(2560, 5, 640))
    outcome = scheduler.end(decision.id, "client-gone", 1.0, report_follows=True)
    assert outcome is not None
    assert scheduler.usage(decision.id, Usage(2560, 7, 640))
    assert told == [640]
    scheduler.settle(outcome)
    assert not scheduler.usage(decision.id, Usage(2560, 7, 640))
    assert told == [640]


@pytest.mark.parametrize("told", [2560, None])
def test_more_cached_tokens_than_the_prompt_has_are_those_of_the_prompt(told: int | None) -> None:
    scheduler = picker_of()
    outcome = served(scheduler, ask_of(1), Usage(2560, 5, 0), 0.0)
    slot = scheduler.datastore.slot_of(outcome.endpoint)
    assert slot is not None
    served(scheduler, ask_of(1), Usage(told, 5, 10**15), 10.0)
    for turn in range(2, 100):
        served(scheduler, ask_of(1), Usage(2560, 5, 640), 10.0 * turn)
    assert scheduler.datastore.calibration.hit_ratio[slot] < 0.5, "one absurd answer is soon forgotten"
