from __future__ import annotations

import math

import pytest

from epp.signals.engine_metrics import EngineMetrics
from epp.signals.metrics_text import EngineSample


def store(stale_after_s: float = 10.0) -> EngineMetrics:
    made = EngineMetrics(stale_after_s)
    made.resize(4)
    return made


def sample(running: float | None = 1, **fields: float) -> EngineSample:
    return EngineSample("vllm", running, 2, 0.5, **fields)  # type: ignore[arg-type]  # only float fields are given


def test_values_are_known_until_stale_and_the_age_tells() -> None:
    engine = store()
    assert math.isnan(engine.running(0.0)[0])
    assert math.isnan(engine.age_ms(0.0)[0])
    engine.update(0, sample(7), 1.0)
    assert engine.running(11.0)[0] == 7
    assert engine.waiting(11.0)[0] == 2
    assert engine.kv_usage(11.0)[0] == 0.5
    assert engine.age_ms(3.5)[0] == 2500
    assert math.isnan(engine.running(11.5)[0])
    assert engine.age_ms(11.5)[0] == 10_500, "how old it is stays known"


def test_each_endpoint_goes_stale_by_itself_and_comes_back() -> None:
    engine = store()
    engine.update(0, sample(1), 0.0)
    engine.update(1, sample(2), 5.0)
    assert [math.isnan(value) for value in engine.running(12.0)[:2]] == [True, False]
    assert math.isnan(engine.running(15.5)[1])
    engine.update(0, sample(3), 16.0)
    assert engine.running(16.0)[0] == 3


def test_tokens_in_use_are_the_share_of_the_capacity_reported() -> None:
    engine = store()
    engine.update(0, sample(kv_capacity_tokens=80_000), 0.0)
    engine.update(1, sample(), 0.0)
    assert engine.used_tokens(1.0)[0] == 40_000
    assert math.isnan(engine.used_tokens(1.0)[1]), "no capacity, no tokens"


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        ({"process_start_time_s": 100.0}, {"process_start_time_s": 100.0}, False),
        ({"process_start_time_s": 100.0}, {"process_start_time_s": 100.4}, False),
        ({"process_start_time_s": 100.0}, {"process_start_time_s": 160.0}, True),
        ({"process_start_time_s": 100.0}, {"process_start_time_s": 40.0}, False),
        ({"process_start_time_s": 100.0, "prompt_tokens_total": 9.0},
         {"process_start_time_s": 100.0, "prompt_tokens_total": 1.0}, False),
        ({"prompt_tokens_total": 9.0}, {"prompt_tokens_total": 10.0}, False),
        ({"prompt_tokens_total": 9.0}, {"prompt_tokens_total": 0.0}, True),
        ({"generation_tokens_total": 9.0}, {"generation_tokens_total": 8.0}, True),
        ({"prompt_tokens_total": 9.0}, {}, False),
        ({}, {"prompt_tokens_total": 9.0}, False),
        ({"process_start_time_s": 100.0, "prompt_tokens_total": 9.0}, {"prompt_tokens_total": 1.0}, False),
    ],
)  # fmt: skip
def test_restarts(before: dict[str, float], after: dict[str, float], restarted: bool) -> None:
    engine = store()
    assert not engine.update(0, sample(**before), 0.0)
    assert engine.update(0, sample(**after), 1.0) is restarted
    assert not engine.update(1, sample(**after), 1.0), "another endpoint is another story"


def test_a_restart_is_told_once_even_when_old_and_new_process_answer_in_turn() -> None:
    engine = store()
    told = [
        engine.update(0, sample(process_start_time_s=start), float(i))
        for i, start in enumerate([100.0, 100.0, 200.0, 100.0, 200.0, 100.0, 200.0])
    ]
    assert told == [False, False, True, False, False, False, False]


def test_a_forgotten_endpoint_leaves_nothing_to_its_successor() -> None:
    engine = store()
    engine.update(0, sample(process_start_time_s=100.0), 0.0)
    engine.fail(0, 1.0)
    engine.forget(0)
    assert engine.last(0) is None
    assert math.isnan(engine.running(1.0)[0])
    assert math.isnan(engine.age_ms(1.0)[0])
    assert not engine.update(0, sample(process_start_time_s=500.0), 2.0)
    assert engine.fail(0, 3.0) == 1
