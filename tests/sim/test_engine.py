from __future__ import annotations

from dataclasses import replace

import pytest

from epp_lab.sim.engine import Engine
from epp_lab.sim.engine_class import L40S_X2
from epp_lab.sim.job import EngineEvent, Finished, FirstToken, Job
from tests.kit import simfleet

#: With a KV cache that a few jobs fill.
PLAIN = replace(simfleet.PLAIN, kv_capacity_tokens=1000)
L40S_RTT_MS = 20.0


def blocks(tokens: int, family: int = 0, block_tokens: int = 10) -> list[int]:
    return [family * 1_000_000 + index for index in range(tokens // block_tokens)]


def drain(engine: Engine) -> list[EngineEvent]:
    return engine.advance(1e9)


def first_tokens(events: list[EngineEvent]) -> dict[int, FirstToken]:
    return {event.job_id: event for event in events if isinstance(event, FirstToken)}


def ends(events: list[EngineEvent]) -> dict[int, Finished]:
    return {event.job_id: event for event in events if isinstance(event, Finished)}


def ttft_ms(prompt_tokens: int, cached_tokens: int) -> float:
    """TTFT of an idle L40Sx2 near the client, with that much of the prompt in its cache."""
    engine, size = Engine(L40S_X2, block_tokens=1), prompt_tokens
    engine.submit(Job(1, max(cached_tokens, 1), 1, blocks(cached_tokens, block_tokens=1)), 0.0)
    engine.advance(100_000.0)
    engine.submit(Job(2, size, 1, blocks(size, block_tokens=1)), 100_000.0)
    event = first_tokens(drain(engine))[2]
    assert abs(event.cached_tokens - cached_tokens) <= 1
    return event.at_ms - 100_000.0 + L40S_RTT_MS


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens", "measured_ms"),
    [
        # Fully uncached and fully cached prompts of the raw results, near region, RTT 20.
        (4_800, 0, 532),
        (10_300, 0, 818),
        (13_400, 0, 1_112),
        (19_500, 0, 1_464),
        (24_300, 0, 2_046),
        (20_000, 20_000, 307),
        (28_000, 28_000, 430),
        (17, 0, 105),
    ],
)
def test_ttft_is_what_was_measured(prompt_tokens: int, cached_tokens: int, measured_ms: float) -> None:
    assert ttft_ms(prompt_tokens, cached_tokens) == pytest.approx(measured_ms, rel=0.20)


def test_one_job_by_hand() -> None:
    engine = Engine(PLAIN, block_tokens=10)
    engine.submit(Job(1, 50, 4), 100.0)
    # Front end 5, prefill 10 + 50, then three steps of 2.
    assert drain(engine) == [
        FirstToken(1, 165.0, 0),
        Finished(1, 171.0, 4),
    ]


def test_a_prefill_stalls_running_decodes_and_they_go_on_in_the_larger_batch() -> None:
    engine = Engine(PLAIN)
    engine.submit(Job(1, 10, 11), 0.0)  # first token at 25, then steps of 2
    engine.submit(Job(2, 190, 2), 21.0)  # ready at 26, inside the step that ends at 27
    events = drain(engine)
    # Two chunks: 27 + 110 + 100 = 237; one step of 3 for both; then job 1 alone has 8 steps left.
    assert first_tokens(events)[2].at_ms == 237
    assert ends(events)[2].at_ms == 240
    assert ends(events)[1].at_ms == 240 + 8 * 2


def test_the_next_turn_finds_prompt_and_answer_in_the_cache() -> None:
    engine = Engine(PLAIN, block_tokens=10)
    path = blocks(60)
    engine.submit(Job(1, 35, 16, path[:3], path[3:5]), 0.0)  # 51 tokens: five full blocks
    engine.advance(500.0)
    assert engine.snapshot().idle_tokens == 50
    engine.submit(Job(2, 65, 1, path), 500.0)
    assert first_tokens(drain(engine))[2] == FirstToken(2, 500 + 5 + 10 + 15, 50)


def test_a_full_pool_evicts_the_oldest_prompt() -> None:
    engine = Engine(PLAIN, block_tokens=10)
    for job_id, family in enumerate([1, 2, 3, 1, 4, 1, 2]):
        engine.submit(Job(job_id, 300, 1, blocks(300, family)), job_id * 1000.0)
    cached = {job_id: event.cached_tokens for job_id, event in first_tokens(drain(engine)).items()}
    # 4 needs 201 tokens more than there are: 2, the oldest since 1 was used again, keeps its first 9 blocks.
    assert (cached[3], cached[5], cached[6]) == (299, 299, 90)


def test_admission_waits_for_room_that_running_jobs_hold() -> None:
    engine = Engine(PLAIN, block_tokens=10)
    engine.submit(Job(1, 600, 100, blocks(600, 1)), 0.0)
    engine.submit(Job(2, 600, 1, blocks(600, 2)), 1.0)
    engine.submit(Job(3, 600, 1, blocks(600, 1)), 2.0)  # would fit by sharing, but the queue is in order
    events = drain(engine)
    firsts = first_tokens(events)
    assert firsts[2].at_ms > ends(events)[1].at_ms
    assert firsts[3].at_ms > firsts[2].at_ms


def test_when_the_reserve_was_too_small_the_newest_job_is_preempted_and_still_completes() -> None:
    engine = Engine(replace(PLAIN, output_reserve_ratio=0.0), block_tokens=10)
    for job_id in (1, 2):
        engine.submit(Job(job_id, 300, 400, blocks(300, job_id), blocks(400, job_id + 10)), 0.0)
    events = drain(engine)
    assert engine.snapshot().counters.preemptions > 0
    assert [ends(events)[job_id].generated_tokens for job_id in (1, 2)] == [400, 400]
    assert ends(events)[1].at_ms < ends(events)[2].at_ms
    assert sum(isinstance(event, FirstToken) for event in events) == 2


@pytest.mark.parametrize("at_ms", [3.0, 30.0, 150.0, 231.0])
def test_cancel_frees_everything_wherever_the_job_is(at_ms: float) -> None:
    engine = Engine(PLAIN, block_tokens=10)
    engine.submit(Job(1, 205, 100, blocks(205)), 0.0)
    engine.advance(at_ms)
    assert engine.cancel(1, at_ms)
    assert not engine.cancel(1, at_ms)
    (end,) = ends(drain(engine)).values()
    assert end.at_ms == at_ms
    snapshot = engine.snapshot()
    assert (snapshot.counters.done, snapshot.counters.cancelled) == (0, 1)
    assert (snapshot.running, snapshot.waiting, snapshot.arriving, snapshot.held_tokens) == (0, 0, 0, 0)
    assert engine.next_event_ms() is None
