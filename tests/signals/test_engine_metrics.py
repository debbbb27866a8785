from __future__ import annotations

import math
from typing import Any

import pytest

from epp.signals.engine_metrics import KV_USAGE, RUNNING, USED_TOKENS, WAITING, EngineMetrics
from epp.signals.metrics_text import EngineSample


def store(stale_after_s: float = 10.0) -> EngineMetrics:
    made = EngineMetrics(stale_after_s)
    made.resize(4)
    return made


def sample(running: float | None = 1, **fields: float) -> EngineSample:
    return EngineSample("vllm", running, 2, 0.5, **fields)  # type: ignore[arg-type]  # only float fields are given


def test_values_are_known_until_stale_and_the_age_tells() -> None:
    engine = store()
    assert math.isnan(engine.block(0.0)[RUNNING][0])
    assert math.isnan((0.0 - engine.updated_s[0]) * 1e3)
    engine.update(0, sample(7), 1.0)
    assert engine.block(11.0)[RUNNING][0] == 7
    assert engine.block(11.0)[WAITING][0] == 2
    assert engine.block(11.0)[KV_USAGE][0] == 0.5
    assert (3.5 - engine.updated_s[0]) * 1e3 == 2500
    assert math.isnan(engine.block(11.5)[RUNNING][0])
    assert (11.5 - engine.updated_s[0]) * 1e3 == 10_500, "how old it is stays known"


def test_tokens_in_use_are_the_share_of_the_capacity_reported() -> None:
    engine = store()
    engine.update(0, sample(kv_capacity_tokens=80_000), 0.0)
    engine.update(1, sample(), 0.0)
    assert engine.block(1.0)[USED_TOKENS][0] == 40_000
    assert math.isnan(engine.block(1.0)[USED_TOKENS][1]), "no capacity, no tokens"


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [  # start time, prompt tokens, generated tokens
        ((100.0,), (100.0,), False),
        ((100.0,), (100.4,), False),
        ((100.0,), (160.0,), True),
        ((100.0,), (40.0,), False),
        ((100.0, 9.0), (100.0, 1.0), False),
        ((None, 9.0), (None, 10.0), False),
        ((None, 9.0), (None, 0.0), True),
        ((None, None, 9.0), (None, None, 8.0), True),
        ((None, 9.0), (), False),
        ((), (None, 9.0), False),
        ((100.0, 9.0), (None, 1.0), False),
    ],
)
def test_restarts(before: tuple[Any, ...], after: tuple[Any, ...], restarted: bool) -> None:
    engine, one, other = store(), *(EngineSample("vllm", 1, 2, 0.5, None, *told) for told in (before, after))
    assert not engine.update(0, one, 0.0)
    assert engine.update(0, other, 1.0) is restarted
    assert not engine.update(1, other, 1.0), "another endpoint is another story"


def test_a_restart_is_told_once_even_when_old_and_new_process_answer_in_turn() -> None:
    engine = store()
    told = [
        engine.update(0, sample(process_start_time_s=start), float(i))
        for i, start in enumerate([100.0, 100.0, 200.0, 100.0, 200.0, 100.0, 200.0])
    ]
    assert told == [False, False, True, False, False, False, False]
