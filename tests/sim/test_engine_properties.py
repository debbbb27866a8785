from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import example, given
from hypothesis import strategies as st

from epp_lab.sim.engine import Engine
from epp_lab.sim.engine_class import L40S_X2
from epp_lab.sim.job import EngineEvent, Finished, FirstToken, Job

BLOCK_TOKENS = 8
# So small that queues, evictions and preemptions are the rule.
TIGHT = replace(
    L40S_X2, name="tight", kv_capacity_tokens=400, chunk_tokens=64, max_running=5, output_reserve_ratio=0.2
)


@dataclass(frozen=True)
class Arrival:
    gap_ms: float
    prompt_tokens: int
    output_tokens: int
    family: int
    cancel_after_ms: float | None


arrivals = st.lists(
    st.builds(
        Arrival,
        gap_ms=st.floats(0, 120),
        prompt_tokens=st.integers(1, 220),
        output_tokens=st.integers(1, 150),
        family=st.integers(0, 2),
        cancel_after_ms=st.none() | st.floats(0, 600),
    ),
    max_size=25,
)


def job_of(job_id: int, arrival: Arrival) -> Job:
    full = arrival.prompt_tokens // BLOCK_TOKENS
    total = (arrival.prompt_tokens + arrival.output_tokens) // BLOCK_TOKENS
    return Job(
        job_id,
        arrival.prompt_tokens,
        arrival.output_tokens,
        [arrival.family * 1000 + index for index in range(full)],
        [job_id * 1000 + 10_000 + index for index in range(full, total)],
    )


def play(plan: list[Arrival], poll_ms: float | None) -> tuple[list[EngineEvent], Engine]:
    """Run a plan to its end, looking in between every ``poll_ms``, and check what must hold at every look."""
    engine = Engine(TIGHT, BLOCK_TOKENS)
    moments: list[tuple[float, int, int, Arrival]] = []
    at_ms = 0.0
    for job_id, arrival in enumerate(plan):
        at_ms += arrival.gap_ms
        moments.append((at_ms, 0, job_id, arrival))
        if arrival.cancel_after_ms is not None:
            moments.append((at_ms + arrival.cancel_after_ms, 1, job_id, arrival))
    events: list[EngineEvent] = []
    now_ms = 0.0
    for at_ms, kind, job_id, arrival in sorted(moments, key=lambda moment: moment[:3]):
        while poll_ms is not None and now_ms + poll_ms < at_ms:
            now_ms += poll_ms
            events += engine.advance(now_ms)
            check(engine)
        now_ms = at_ms
        if kind == 0:
            engine.submit(job_of(job_id, arrival), at_ms)
        else:
            engine.cancel(job_id, at_ms)
        check(engine)
    while (next_ms := engine.next_event_ms()) is not None:
        events += engine.advance(next_ms)
        check(engine)
    return events, engine


def check(engine: Engine) -> None:
    snapshot = engine.snapshot()
    assert snapshot.held_tokens >= 0
    assert snapshot.held_tokens + snapshot.idle_tokens <= snapshot.capacity_tokens
    assert snapshot.running <= TIGHT.max_running


@given(arrivals)
def test_every_job_ends_once_and_tokens_are_conserved(plan: list[Arrival]) -> None:
    events, engine = play(plan, 37.0)
    ends = [event for event in events if isinstance(event, Finished)]
    assert Counter(end.job_id for end in ends) == Counter(range(len(plan)))
    seen: set[int] = set()
    for event in events:
        if isinstance(event, FirstToken):
            assert event.job_id not in seen
            assert 0 <= event.cached_tokens < plan[event.job_id].prompt_tokens
        else:
            assert event.generated_tokens <= plan[event.job_id].output_tokens
        seen.add(event.job_id)
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)

    snapshot = engine.snapshot()
    counters = snapshot.counters
    assert counters.generated_tokens == sum(end.generated_tokens for end in ends)
    assert counters.cancelled == sum(e.generated_tokens < plan[e.job_id].output_tokens for e in ends)
    assert counters.done + counters.cancelled == counters.submitted == len(plan)
    assert (snapshot.running, snapshot.waiting, snapshot.arriving, snapshot.held_tokens) == (0, 0, 0, 0)


@given(arrivals, st.floats(1.0, 50.0))
@example(
    [
        Arrival(0.0, 1, 1, 0, None),
        Arrival(0.0, 191, 86, 0, None),
        Arrival(0.0, 191, 1, 1, 157.0),
        Arrival(92.0, 1, 1, 0, None),
        Arrival(72.0, 1, 1, 0, None),
    ],
    1.0,
)  # a run that is broken off had ended before
def test_looking_changes_nothing(plan: list[Arrival], poll_ms: float) -> None:
    looked, engine_looked = play(plan, poll_ms)
    alone, engine_alone = play(plan, None)
    assert looked == alone
    assert engine_looked.snapshot() == engine_alone.snapshot()


@given(arrivals)
def test_decodes_in_bulk_equal_decodes_one_by_one(plan: list[Arrival]) -> None:
    bulk = Engine(TIGHT, BLOCK_TOKENS)
    single = Engine(TIGHT, BLOCK_TOKENS)
    at_ms, stepped = 0.0, []
    for job_id, arrival in enumerate(plan):
        at_ms += arrival.gap_ms
        while (next_ms := single.next_token_ms()) is not None and next_ms <= at_ms:
            stepped += single.advance(next_ms)
        bulk.submit(job_of(job_id, arrival), at_ms)
        single.submit(job_of(job_id, arrival), at_ms)
    while (next_ms := single.next_token_ms()) is not None:
        stepped += single.advance(next_ms)
    assert bulk.advance(single._now_ms) == stepped
