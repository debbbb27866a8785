"""What is counted, what each verdict needs, and who is promoted over rows of bursty blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epp.config.plan import Split, Switchback
from epp_lab.tuner.samples import Sample, Stamp
from epp_lab.tuner.settings import Drift, Goal, TunerSettings
from epp_lab.tuner.state import Features
from epp_lab.tuner.tally import Record, Tally, Thresholds, Unit, add, close, enter, joined
from epp_lab.tuner.trials import drifted
from epp_lab.tuner.verdict import (
    END,
    GO_ON,
    PASS,
    abrupt,
    judge_probation,
    judge_switchback,
    lag_one,
    uncorrelated,
)

THRESHOLDS = Thresholds(slow_ms=1000.0, e2e_ms=5000.0, e2e_p99_ms=9000.0, frozen_wall_s=0.0)
SETTINGS = TunerSettings()


def sample(at: float = 0.0, stamp: Stamp | None = None, **changes: Any) -> Sample:
    return Sample(stamp, at, 100, **{"ttft_ms": 500.0, "e2e_ms": 3000.0, **changes})


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "slow", "e2e", "failed"),
    [
        ({}, 0, (1, 0), 0),
        ({"ttft_ms": 1001.0}, 1, (1, 0), 0),
        ({"e2e_ms": 6000.0}, 0, (1, 1), 0),
        ({"failed": True, "ttft_ms": 5.0}, 1, (1, 1), 1),  # failing fast does not pay
        ({"ttft_ms": NAN}, 1, (1, 1), 0),
        ({"censored": True}, 0, (0, 0), 0),  # the client left: nobody knows
        ({"censored": True, "e2e_ms": 6000.0}, 0, (1, 1), 0),
        ({"censored": True, "ttft_ms": NAN, "e2e_ms": 200.0}, 1, (0, 0), 0),
        ({"e2e_ms": NAN}, 0, (0, 0), 0),
    ],
)
def test_what_is_counted(changes: dict[str, Any], slow: int, e2e: tuple[int, int], failed: int) -> None:
    tally = Tally()
    add(tally, sample(**changes), THRESHOLDS, Goal())
    assert (tally.slow, (tally.e2e_known, tally.e2e_slow), tally.failed) == (slow, e2e, failed)


def test_pairs_close_when_their_requests_had_time_and_small_ones_are_joined() -> None:
    trial = Switchback(
        id="t", weights={}, valid_from_wall_s=0.0, valid_until_wall_s=1e6, block_s=10.0, drop_share=0.2
    )
    record = Record()
    for block in range(8):
        arm = trial.arm_of_block(block)
        assert arm is not None
        for number in range(3):
            at = 10.0 * block + 3.0 + number
            ttft = 2000.0 if arm == "candidate" else 500.0
            enter(record, trial, sample(at, Stamp("t", arm, block), ttft_ms=ttft), THRESHOLDS, Goal())
        enter(
            record, trial, sample(10.0 * block + 1.0, Stamp("t", arm, block)), THRESHOLDS, Goal()
        )  # dropped
        enter(record, trial, sample(at, Stamp("other", arm, block)), THRESHOLDS, Goal())
    assert close(record, trial, 49.0, late_s=10.0, min_requests=6) == 0
    assert close(record, trial, 50.0, late_s=10.0, min_requests=6) == 1
    assert record.units == [Unit(1.0, 0.0, 0.0, 0.0, 12)]
    enter(record, trial, sample(5.0, Stamp("t", "candidate", 0)), THRESHOLDS, Goal())
    assert close(record, trial, 1000.0, late_s=10.0, min_requests=6) == 1
    assert joined(record.totals.values()).requests == 24


def units(n: int, **means: float) -> Record:
    rng = np.random.default_rng(0)
    columns = {
        name: means.get(name, 0.0) + spread * rng.normal(size=n)
        for name, spread in (("slow", 0.02), ("e2e", 0.02), ("errors", 0.001), ("concentration", 0.02))
    }
    rows = [
        Unit(**{name: float(column[i]) for name, column in columns.items()}, requests=200) for i in range(n)
    ]
    return Record(units=rows)


@pytest.mark.parametrize(
    ("n", "means", "kind", "word"),
    [
        (300, {"slow": -0.03, "e2e": -0.005}, PASS, "down, no harm"),
        (10, {"slow": -0.03}, GO_ON, "10 pairs of at least 20"),
        (60, {"slow": -0.003}, GO_ON, "not enough evidence on the objective"),
        (300, {"slow": 0.02}, END, "worse"),
        (300, {"slow": -0.03, "e2e": 0.03}, END, "slow E2E"),
        (300, {"slow": -0.03, "errors": 0.03}, END, "failed"),
        (300, {"slow": -0.03, "e2e": 0.003, "concentration": 0.4}, END, "hottest"),
        (300, {"slow": -0.03, "e2e": -0.001, "concentration": 0.4}, GO_ON, "hottest"),
        (300, {"slow": -0.03, "e2e": -0.02, "concentration": 0.4}, PASS, "down, no harm"),  # seen to be none
        (1000, {"slow": -0.03, "e2e": 0.003}, END, "plain counts"),  # within its margin, and yet worse
        (1000, {}, END, ""),
    ],
)
def test_verdicts(n: int, means: dict[str, float], kind: str, word: str) -> None:
    verdict = judge_switchback(units(n, **means), SETTINGS, 0.01)
    assert (verdict.kind, word in verdict.reason or verdict.reason) == (kind, True)


def test_probation_ends_in_regret_or_in_peace() -> None:
    assert judge_probation(units(200), SETTINGS).kind == PASS
    assert judge_probation(units(100), SETTINGS).kind == GO_ON
    assert judge_probation(units(100, slow=0.03), SETTINGS).kind == END
    assert judge_probation(units(100, e2e=0.05), SETTINGS).kind == END
    assert judge_probation(units(100, slow=0.005, e2e=0.001, concentration=0.4), SETTINGS).kind == END
    assert judge_probation(units(100, slow=-0.01, e2e=-0.01, concentration=0.4), SETTINGS).kind == GO_ON


def test_correlated_differences_are_merged() -> None:
    rng = np.random.default_rng(1)
    alone = rng.normal(size=200).tolist()
    waves = np.repeat(rng.normal(size=50), 4).tolist()
    assert lag_one(waves) > 0.5
    assert len(uncorrelated(alone)) == 200
    assert len(uncorrelated(waves)) <= 100
    assert lag_one([0.0] * 9) == 0.0


@pytest.mark.parametrize(
    ("now", "word"),
    [
        (Features("v", 2.0, 100.0, 0.05), ""),
        (Features("v", 2.6, 120.0, 0.06), ""),
        (Features("v", 6.0, 100.0, 0.05), "arrival rate is 3.00"),
        (Features("v", 2.0, 50.0, 0.05), "mean prompt is 0.50"),
        (Features("v", 2.0, 100.0, 0.12), "slow requests moved"),
        (Features("w", 2.0, 100.0, 0.05), "other weights"),
    ],
)
def test_drift(now: Features, word: str) -> None:
    found = drifted(Features("v", 2.0, 100.0, 0.05), now, Drift())
    assert (word in found) if word else (not found)


SWITCHBACK = Switchback(
    id="1", arm="candidate", weights={}, valid_from_wall_s=0.0, valid_until_wall_s=1e6, block_s=60.0, seed=1
)
SPLIT = Split(
    id="1",
    arm="candidate",
    weights={},
    valid_from_wall_s=0.0,
    valid_until_wall_s=1e6,
    block_s=60.0,
    share=0.1,
)
CALM, BURST = Tally(requests=40, slow=2), Tally(requests=40, slow=36)
FAILS = Tally(requests=40, slow=36, failed=36)
FAILING_PAIR = Unit(slow=0.8, e2e=0.8, errors=0.8, concentration=0.0, requests=80)
SLOW_PAIR = Unit(slow=0.8, e2e=0.0, errors=0.0, concentration=0.0, requests=80)
LEVEL_PAIR = Unit(slow=0.0, e2e=0.0, errors=0.0, concentration=0.0, requests=80)


@pytest.mark.parametrize(
    ("trial", "candidate", "incumbent", "units", "ends"),
    [
        (SPLIT, {4: BURST}, {4: CALM}, [], "slow"),
        (SPLIT, {4: FAILS}, {4: CALM}, [], "failed"),
        (SPLIT, {4: FAILS}, {4: FAILS}, [], ""),  # an outage that both arms met
        (SWITCHBACK, {4: BURST}, {5: CALM}, [], ""),  # a burst, as far as one block can tell
        (SWITCHBACK, {4: BURST}, {5: CALM}, [SLOW_PAIR], "slow"),
        (SWITCHBACK, {4: BURST, 6: BURST}, {5: CALM}, [], "slow"),
        (SWITCHBACK, {4: BURST, 6: Tally(requests=10, slow=10)}, {5: CALM}, [], ""),  # too few to tell
        (SWITCHBACK, {12: BURST}, {11: CALM}, [SLOW_PAIR, *[LEVEL_PAIR] * 4], ""),  # a burst a day
        (SWITCHBACK, {4: FAILS, 6: FAILS}, {5: FAILS}, [], ""),
        (SWITCHBACK, {5: FAILS, 7: FAILS}, {4: CALM, 6: CALM}, [], "failed"),
        (SWITCHBACK, {}, {}, [FAILING_PAIR], ""),
        (SWITCHBACK, {}, {}, [FAILING_PAIR, LEVEL_PAIR, FAILING_PAIR], "failed"),
    ],
)
def test_what_ends_a_trial_at_once(
    trial: Split | Switchback,
    candidate: dict[int, Tally],
    incumbent: dict[int, Tally],
    units: list[Unit],
    ends: str,
) -> None:
    record = Record(units=units)
    for arm, blocks in (("candidate", candidate), ("incumbent", incumbent)):
        for block, tally in blocks.items():
            record.open.setdefault(block, {})[arm] = tally
    found = abrupt(record, trial)
    assert bool(found) == bool(ends)
    assert ends in found


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
    ("slow", "e2e", "least", "most"),
    [
        (0.003, 0.0, 0, 0),
        (-0.023, 0.006, 0, 0),
        (-0.04, 0.02, 0, 0),  # better, and E2E is harmed
        (-0.0122, -0.003, 18, 20),  # a tenth off p95
    ],
)
def test_only_what_is_better_and_harms_no_e2e_is_promoted(
    slow: float, e2e: float, least: int, most: int
) -> None:
    assert least <= sum(promoted(seed, slow, e2e) for seed in range(20)) <= most
