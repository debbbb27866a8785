"""Rows of bursty blocks judged again and again, as the machine does: who is promoted."""

from __future__ import annotations

import numpy as np
import pytest

from epp.learn.tuner.record import Record, Unit
from epp.learn.tuner.settings import TunerSettings
from epp.learn.tuner.verdict import GO_ON, PASS, judge_switchback

SETTINGS = TunerSettings()
PAIRS, REQUESTS, FIRST_LEVEL = 240, 135, 0.009


def promoted(seed: int, slow: float, e2e: float) -> bool:
    rng = np.random.default_rng([11, seed])
    load = np.exp(rng.normal(0.0, 0.5, PAIRS))
    columns = []
    for base, change in ((0.05, slow), (0.05, e2e), (0.001, 0.0)):
        rates = np.clip(np.stack([base * load, (base + change) * load]), 0.0, 1.0)
        old, new = rng.binomial(REQUESTS, rates)
        columns.append((new - old) / REQUESTS)
    columns.append(rng.normal(0.0, 0.03, PAIRS))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    units = [Unit(a, b, c, d, 2 * REQUESTS) for a, b, c, d in rows]
    for seen in range(20, PAIRS + 1, 20):
        verdict = judge_switchback(Record(units=units[:seen]), SETTINGS, FIRST_LEVEL)
        if verdict.kind != GO_ON:
            return verdict.kind == PASS
    return False


@pytest.mark.parametrize(
    ("slow", "e2e"),
    [(0.0, 0.0), (0.003, 0.0), (-0.023, 0.006), (0.0, -0.02), (-0.04, 0.02)],
)
def test_nothing_that_is_no_better_or_harms_e2e_is_promoted(slow: float, e2e: float) -> None:
    assert sum(promoted(seed, slow, e2e) for seed in range(20)) == 0


def test_a_tenth_off_p95_is_promoted() -> None:
    assert sum(promoted(seed, -0.0122, -0.003) for seed in range(15)) >= 13
