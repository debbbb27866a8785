from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from epp.learn.tuner.drift import drifted
from epp.learn.tuner.plan import Split, Switchback
from epp.learn.tuner.record import Record, Unit, close, enter
from epp.learn.tuner.samples import Sample, Stamp
from epp.learn.tuner.settings import Drift, Goal, TunerSettings
from epp.learn.tuner.state import Features
from epp.learn.tuner.status import status
from epp.learn.tuner.tally import Baseline, Tally, Thresholds, add, freeze, joined, observe
from epp.learn.tuner.trials import block_s
from epp.learn.tuner.verdict import (
    END,
    GO_ON,
    PASS,
    abrupt,
    judge_probation,
    judge_switchback,
    lag_one,
    uncorrelated,
)
from tests.kit.tuning import Deployment, Effect, quick

THRESHOLDS = Thresholds(slow_ms=1000.0, e2e_ms=5000.0, e2e_p99_ms=9000.0, frozen_wall_s=0.0)
SETTINGS = TunerSettings()


def sample(at: float = 0.0, stamp: Stamp | None = None, **changes: Any) -> Sample:
    plain = Sample(
        id="d",
        stamp=stamp,
        weights_version="v",
        dispatched_wall_s=at,
        ended_wall_s=at + 3.0,
        endpoint="a:1",
        session="s",
        prompt_tokens=100,
        ttft_ms=500.0,
        e2e_ms=3000.0,
    )
    values = {name: getattr(plain, name) for name in Sample.__slots__}
    return Sample(**{**values, **changes})


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


def test_felt_latency_can_be_the_goal() -> None:
    tally = Tally()
    add(tally, sample(itl_ms=20.0, answer_tokens=101), THRESHOLDS, Goal(measure="felt"))
    assert tally.slow == 1  # 500 + 20 * 100


def test_thresholds_are_the_incumbents_or_the_operators() -> None:
    baseline = Baseline()
    for number in range(1, 101):
        baseline = observe(baseline, sample(at=float(number), ttft_ms=10.0 * number), Goal())
    found = freeze(baseline, Goal(), 7.0)
    assert found is not None
    assert found.slow_ms == pytest.approx(950.0, rel=0.011)
    fixed = freeze(baseline, Goal(slow_ms=800.0, e2e_slow_ms=4000.0), 7.0)
    assert fixed is not None
    assert (fixed.slow_ms, fixed.e2e_ms) == (800.0, 4000.0)
    failing = Baseline()
    for _ in range(50):
        failing = observe(failing, sample(failed=True), Goal())
    assert freeze(failing, Goal(), 7.0) is None


def test_other_weights_begin_a_new_baseline_and_stragglers_do_not() -> None:
    baseline = observe(Baseline(), sample(at=1.0), Goal())
    baseline = observe(baseline, sample(at=2.0, weights_version="w"), Goal())
    baseline = observe(baseline, sample(at=1.5), Goal())
    assert (baseline.weights_version, baseline.requests) == ("w", 1)


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
    assert record.late == 1
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


def test_plain_counts_must_agree() -> None:
    """Better in most pairs and terrible in a few, which winsorising would forgive."""
    record = units(300, slow=-0.02, e2e=-0.01)
    wild = [msgspec.structs.replace(unit, slow=0.9) for unit in record.units[:12]]
    record.units = [*wild, *record.units[12:]]
    assert judge_switchback(record, SETTINGS, 0.01).kind != PASS


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


def test_blocks_are_as_long_as_answers_ask_for() -> None:
    stages = SETTINGS.stages
    assert block_s(stages, msgspec.structs.replace(THRESHOLDS, e2e_p99_ms=5000.0)) == 45.0
    assert block_s(stages, msgspec.structs.replace(THRESHOLDS, e2e_p99_ms=20_000.0)) == 80.0
    assert block_s(stages, msgspec.structs.replace(THRESHOLDS, e2e_p99_ms=1e6)) == 300.0


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


def test_an_operator_is_told_how_much_is_missing() -> None:
    world = Deployment(lambda _: Effect(), [{"a": 2.0, "b": 1.0}], settings=quick())
    world.tick()
    told = status(world.state, world.settings)
    have, lasted_s = told.progress.have, told.progress.lasted_s
    assert 0 < have < 1500
    assert told.enough == f"not enough evidence ({have} of 1500 requests, {lasted_s:.0f} of 300 s)"
    world.run(lambda w: w.state.phase == "screen")
    for _ in range(8):
        world.tick()
    told = status(world.state, world.settings)
    assert "20% of sessions" in told.next_step
    assert set(told.latencies) == {"incumbent", "candidate"}
    for found in told.latencies.values():
        assert found.low_ms <= found.value_ms <= found.high_ms


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
    ("trial", "blocks", "units", "ends"),
    [
        (SPLIT, {4: BURST}, [], True),  # both arms meet the same load
        (SWITCHBACK, {4: BURST}, [], False),  # a burst, as far as one block can tell
        (SWITCHBACK, {4: CALM}, [SLOW_PAIR], False),
        (SWITCHBACK, {4: BURST}, [SLOW_PAIR], True),
        (SWITCHBACK, {4: BURST, 6: BURST}, [], True),
        (SWITCHBACK, {4: BURST, 6: Tally(requests=10, slow=10)}, [], False),  # too few to tell
        (SWITCHBACK, {12: BURST}, [SLOW_PAIR, *[LEVEL_PAIR] * 4], False),  # a burst a day is no evidence
        (SWITCHBACK, {4: FAILS, 6: FAILS}, [], False),  # failures are no slowness, and may be an outage's
    ],
)
def test_what_ends_a_trial_at_once(
    trial: Split | Switchback, blocks: dict[int, Tally], units: list[Unit], *, ends: bool
) -> None:
    record = Record(
        open={block: {"candidate": tally} for block, tally in blocks.items()},
        units=units,
        totals={"incumbent": Tally(requests=200, slow=10), "candidate": Tally(requests=40, slow=2)},
    )
    found = abrupt(record, trial)
    assert (found is not None and found.kind == END) == ends


@pytest.mark.parametrize(
    ("trial", "candidate", "incumbent", "units", "ends"),
    [
        (SPLIT, {4: FAILS}, {4: CALM}, [], True),
        (SPLIT, {4: FAILS}, {4: FAILS}, [], False),  # an outage that both arms met
        (SPLIT, {4: FAILS}, {3: CALM}, [], False),  # not known yet
        (SWITCHBACK, {4: FAILS}, {5: CALM}, [], True),  # the other arm's turn came, and all was well
        (SWITCHBACK, {5: FAILS}, {4: CALM}, [], False),  # an outage may have begun
        (SWITCHBACK, {5: FAILS, 7: FAILS}, {4: CALM, 6: CALM}, [], True),
        (SWITCHBACK, {4: FAILS, 7: CALM}, {5: CALM}, [], False),  # it is over
        (SWITCHBACK, {4: FAILS}, {5: FAILS}, [], False),
        (SWITCHBACK, {}, {}, [FAILING_PAIR], False),
        (SWITCHBACK, {}, {}, [FAILING_PAIR, LEVEL_PAIR, FAILING_PAIR], True),
    ],
)
def test_failures_are_an_arms_own_only_beside_the_other_arm(
    trial: Split | Switchback,
    candidate: dict[int, Tally],
    incumbent: dict[int, Tally],
    units: list[Unit],
    *,
    ends: bool,
) -> None:
    record = Record(units=units, totals={"incumbent": Tally(requests=900, slow=45)})
    for arm, blocks in (("candidate", candidate), ("incumbent", incumbent)):
        for block, tally in blocks.items():
            record.open.setdefault(block, {})[arm] = tally
    if isinstance(trial, Split):
        record.totals["candidate"] = Tally(requests=900, slow=45)
    found = abrupt(record, trial)
    assert (found is not None and found.kind == END) == ends
    assert found is None or "failed requests" in found.reason
