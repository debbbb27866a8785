"""Engines that no policy was written for, and forks, which must go on exactly as their originals do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_lab.sim.engine import Engine
from epp_lab.sim.job import EngineEvent, FirstToken, Job
from tests.kit.simfleet import PLAIN

if TYPE_CHECKING:
    from epp_lab.sim.engine_class import EngineClass

MIXED = replace(PLAIN, mixed=True, chunk_tokens=50)
HYBRID = replace(PLAIN, state_slots=8)


def path(tokens: int, family: int = 0) -> list[int]:
    """Block hashes of a prompt, its last partial block included."""
    return [family * 1_000 + number for number in range(-(-tokens // 10))]


def job(job_id: int, tokens: int, output: int = 1, family: int = 0, answer: tuple[int, ...] = ()) -> Job:
    return Job(job_id, tokens, output, path(tokens, family), answer)


def cached(engine: Engine, *jobs: Job) -> list[int]:
    """Cached tokens of jobs run one after the other."""
    found = []
    for number, each in enumerate(jobs):
        start_ms = 100_000.0 * (each.job_id + number)
        engine.advance(start_ms)
        engine.submit(each, start_ms)
        events = engine.advance(start_ms + 99_000.0)
        found += [event.cached_tokens for event in events if isinstance(event, FirstToken)]
    return found


def tokens_at(engine: Engine, job_id: int, times_ms: list[float]) -> list[int]:
    counts = []
    for at_ms in times_ms:
        engine.advance(at_ms)
        counts.append(engine.generated(job_id))
    return counts


# Mixed chunked prefill


def test_decodes_go_on_beside_prompts() -> None:
    engine, stopped = Engine(MIXED, 10), Engine(replace(MIXED, mixed=False), 10)
    for each in (engine, stopped):
        each.submit(job(1, 10, 100), 0.0)  # first token at 25, then steps of 2
        assert tokens_at(each, 1, [24.9, 25.0]) == [0, 1]
        each.submit(job(2, 200, 2, family=1), 30.0)  # ready at 35
    # Four steps of 49 tokens beside the decode, and one of the 4 that are left.
    assert tokens_at(engine, 1, [35.0, 35.0 + 59.0, 35.0 + 2 * 59.0]) == [6, 7, 8]
    assert tokens_at(stopped, 1, [35.0, 35.0 + 60.0, 35.0 + 210.0]) == [6, 6, 6]
    first = [e for e in engine.advance(1e6) if isinstance(e, FirstToken) and e.job_id == 2]
    assert first[0].at_ms == pytest.approx(35.0 + 4 * 59.0 + 14.0)


# Checkpoints


def test_a_prefix_is_taken_up_only_at_a_checkpoint() -> None:
    # Chunks end at 100 and at the prompt's end; a prompt sent again cannot use the end.
    first, again = job(1, 155), job(2, 155)
    longer = job(3, 200)
    assert cached(Engine(HYBRID, 10), first, again, longer) == [0, 100, 155]
    exact = replace(HYBRID, state_slots=None)
    assert cached(Engine(exact, 10), first, again, longer) == [0, 150, 150]


def test_a_conversation_goes_on_after_its_answer() -> None:
    # 45 tokens and an answer of 10: the state after 54 was kept, the 55th token was never an input.
    first = Job(1, 45, 10, path(45), (4, 5))
    assert cached(Engine(HYBRID, 10), first, job(2, 90)) == [0, 54]
    # Where the trace does not say what follows, only the prompt's end is known.
    assert cached(Engine(HYBRID, 10), job(1, 45, 10), job(2, 90)) == [0, 45]


def test_states_are_few() -> None:
    engine = Engine(replace(HYBRID, state_slots=4), 10)
    jobs = [job(n, 55, family=n) for n in range(1, 7)]
    assert cached(engine, *jobs) == [0] * 6
    # One slot is the running request's own, so of six prompts' states the last three are left.
    assert cached(engine, job(21, 75, family=6), job(22, 75, family=2)) == [55, 0]
    assert engine.snapshot().idle_tokens > 300  # the attention layers' tokens are all still there


# Constants and curves


# Forks

CLASSES = (
    replace(PLAIN, kv_capacity_tokens=1_000, output_reserve_ratio=0.3),
    replace(MIXED, kv_capacity_tokens=1_000, output_reserve_ratio=0.3),
    replace(HYBRID, kv_capacity_tokens=1_000, output_reserve_ratio=0.3),
)
JOBS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 400), st.integers(1, 300), st.integers(0, 2)),
    min_size=1,
    max_size=14,
)


def fed(cls: EngineClass, jobs: list[tuple[int, int, int, int]], until_ms: float) -> Engine:
    engine, at_ms = Engine(cls, 10), 0.0
    for job_id, (gap_ms, tokens, output, family) in enumerate(jobs):
        at_ms = min(at_ms + gap_ms, until_ms)
        engine.submit(job(job_id, tokens, output, family), at_ms)
    engine.advance(until_ms)
    return engine


@given(cls=st.sampled_from(CLASSES), jobs=JOBS, until_ms=st.integers(0, 3000), leave=st.booleans())
def test_a_fork_goes_on_as_its_original_does(
    cls: EngineClass, jobs: list[tuple[int, int, int, int]], until_ms: int, leave: bool
) -> None:
    engine, twin = fed(cls, jobs, float(until_ms)), fed(cls, jobs, float(until_ms))
    for each in (engine, twin):
        if leave:  # perhaps inside what the GPU computes
            each.cancel(len(jobs) - 1, float(until_ms))
        each.advance(float(until_ms))
    extra, fork = job(99, 200, 20, family=1), engine.fork()
    before = engine.snapshot()
    fork.submit(extra, float(until_ms))
    nested = fork.fork().advance(1e6)  # first: a fork is good until its base moves
    forecast = [e for e in fork.advance(1e6) if not _old(e, until_ms)]
    assert nested[-1] == forecast[-1]
    assert engine.snapshot() == before  # the original has not moved
    twin.submit(extra, float(until_ms))
    assert [e for e in twin.advance(1e6) if not _old(e, until_ms)] == forecast
    assert twin.snapshot() == fork.snapshot()


def _old(event: EngineEvent, until_ms: int) -> bool:
    return event.at_ms <= until_ms
