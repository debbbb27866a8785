"""What becomes of each kind of request: a target, a lower bound, or nothing."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from epp.policies.reward_model import DEFAULT_FEATURES, inputs
from epp.schedule.decision import outcome_record, to_record
from epp_lab.reward_model.fitting import targets_of
from epp_lab.reward_model.samples import LogFeed, log_of
from tests.kit.learning import Recorded

if TYPE_CHECKING:
    from pathlib import Path

NONE = {"ttft_ms": math.nan, "itl_ms": math.nan}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "records")


@pytest.mark.parametrize(
    ("fields", "ttft_ms", "waited_ms", "failed"),
    [
        ({"ttft_ms": 80.0}, 80.0, math.nan, False),
        ({"ttft_ms": 120_000.0, "e2e_ms": 130_000.0}, 120_000.0, math.nan, False),  # slow, and kept
        ({"ttft_ms": 80.0, "cause": "upstream-reset"}, 80.0, math.nan, False),  # broken after its first token
        ({**NONE, "cause": "timed-out", "status": 504, "e2e_ms": 9000.0}, math.nan, 9000.0, True),
        ({**NONE, "cause": "unreachable", "status": 503, "e2e_ms": 3.0}, math.nan, 3.0, True),
        ({**NONE, "cause": "client-gone", "status": None, "e2e_ms": 700.0}, math.nan, 700.0, False),
    ],
)  # fmt: skip
def test_a_request_is_a_target_or_a_lower_bound(
    recorded: Recorded, fields: dict[str, Any], ttft_ms: float, waited_ms: float, failed: bool
) -> None:
    decision = recorded.decision()
    found = log_of(decision, recorded.outcome(decision, **fields), DEFAULT_FEATURES)
    assert found is not None
    assert found.sample.ttft_ms == pytest.approx(ttft_ms, nan_ok=True)
    assert found.sample.waited_ms == pytest.approx(waited_ms, nan_ok=True)
    assert found.sample.failed is failed


@pytest.mark.parametrize(
    "fields",
    [
        {**NONE, "cause": "completed", "status": 400},  # the client's fault
        {**NONE, "cause": "unobserved", "status": None},  # nobody watched
        {**NONE, "cause": "completed", "status": 200},  # nobody saw the first token
        {"served": "10.9.9.9:1"},  # somebody whose state was not looked at
    ],
)
def test_some_requests_say_nothing(recorded: Recorded, fields: dict[str, Any]) -> None:
    decision = recorded.decision()
    assert log_of(decision, recorded.outcome(decision, **fields), DEFAULT_FEATURES) is None


def test_the_training_row_is_the_snapshot_of_the_decision(recorded: Recorded) -> None:
    for _ in range(5):
        decision = recorded.decision()
    found = log_of(decision, recorded.outcome(decision), DEFAULT_FEATURES)
    assert found is not None
    asked = inputs(decision.request, decision.snapshot, DEFAULT_FEATURES, ())
    assert np.array_equal(found.sample.row, asked[decision.chosen])
    assert np.array_equal(found.choice.rows, asked)
    running = DEFAULT_FEATURES.index("running_requests")
    assert found.choice.rows[:, running].sum() == 4  # those before, and not the request itself


def test_chances_are_the_policys_own_where_it_tells_them(recorded: Recorded) -> None:
    decision = recorded.decision()
    told = np.array([0.1, 0.2, 0.7])
    terms = {**decision.ranking.terms, "probability": told}
    explored = replace(decision, ranking=replace(decision.ranking, terms=terms))
    found = log_of(explored, recorded.outcome(decision), DEFAULT_FEATURES)
    assert found is not None
    assert found.choice.propensities.tolist() == told.tolist()
    warming = replace(explored, slow_start_weights=np.array([1.0, 0.5, 1.0]))
    found = log_of(warming, recorded.outcome(decision), DEFAULT_FEATURES)
    assert found is not None
    assert not found.choice.propensities.any()  # slow start blurs them: nothing is claimed


def test_a_quick_failure_is_no_fast_answer(recorded: Recorded) -> None:
    samples = []
    for ttft_ms in np.linspace(100.0, 1000.0, 50):
        decision = recorded.decision()
        found = log_of(decision, recorded.outcome(decision, ttft_ms=float(ttft_ms)), DEFAULT_FEATURES)
        assert found is not None
        samples.append(found.sample)
    for fields in (
        {**NONE, "cause": "unreachable", "status": 503, "e2e_ms": 2.0},
        {**NONE, "cause": "client-gone", "status": None, "e2e_ms": 2.0},
    ):
        decision = recorded.decision()
        found = log_of(decision, recorded.outcome(decision, **fields), DEFAULT_FEATURES)
        assert found is not None
        samples.append(found.sample)
    values, bounds = targets_of(samples, ("ttft_ms",))
    assert bounds[:, 0].tolist() == [False] * 50 + [True, True]
    assert values[50, 0] > 980.0  # as slow as the slowest, at least
    assert values[51, 0] == pytest.approx(2.0)


def test_a_record_read_back_teaches_the_same(recorded: Recorded) -> None:
    decision = recorded.decision()
    outcome = recorded.outcome(decision)
    direct = log_of(decision, outcome, DEFAULT_FEATURES)
    recorded.append(json.dumps(to_record(decision)).encode() + b"\n")
    recorded.append(json.dumps(outcome_record(outcome, decision.at_wall_s + 1.0)).encode() + b"\n")
    feed = LogFeed(recorded.file.parent, features=DEFAULT_FEATURES, report=print)
    (read,) = feed.new(decision.at_wall_s, give_up_s=300.0)
    assert direct is not None
    assert np.array_equal(read.choice.rows, direct.choice.rows)
    assert np.array_equal(read.sample.row, direct.sample.row)
    assert read.sample.ttft_ms == pytest.approx(direct.sample.ttft_ms, abs=0.001)
    assert (read.choice.chosen, read.served_pick) == (direct.choice.chosen, direct.served_pick)
    assert read.choice.propensities.tolist() == direct.choice.propensities.tolist()
