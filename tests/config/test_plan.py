from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.config.bounds import tuner_bounds
from epp.config.plan import INCUMBENT, Plan, Split, Switchback, assign, parse_plan, render_plan
from epp.errors import ConfigError
from epp_lab.tuner.samples import read_stamp

BOUNDS = {"rtt_weight": (0.0, 50.0), "queue_weight": (0.0, 5.0)}
OLD = {"rtt_weight": 0.5, "queue_weight": 0.1}
NEW = {"rtt_weight": 0.3, "queue_weight": 0.4}
START = 1_700_000_000.0


def split(**changes: Any) -> Split:
    values: dict[str, Any] = {
        "id": "c1-screen",
        "weights": NEW,
        "valid_from_wall_s": START,
        "valid_until_wall_s": START + 3600,
        "share": 0.2,
    }
    return Split(**{**values, **changes})


def switchback(**changes: Any) -> Switchback:
    values: dict[str, Any] = {
        "id": "c1-switch",
        "weights": NEW,
        "valid_from_wall_s": START,
        "valid_until_wall_s": START + 36_000,
        "block_s": 40.0,
        "seed": 3,
    }
    return Switchback(**{**values, **changes})


def plan(trial: Split | Switchback | None = None, **changes: Any) -> Plan:
    return Plan(**{"weights": OLD, "policy": "gorgo", "serial": 7, "trial": trial, **changes})


@pytest.mark.parametrize("trial", [None, split(), switchback()])
def test_a_written_plan_reads_the_same(trial: Split | Switchback | None) -> None:
    text = render_plan(plan(trial, reason="better: 5 %"))
    read = parse_plan(text, "weights.yaml", policy="gorgo", bounds=BOUNDS)
    assert read.trial == trial
    assert read.weights == OLD
    assert render_plan(read) == text


@given(reason=st.text(st.characters(codec="utf-8"), max_size=100))
@example(reason="a line\x85and another")
def test_whatever_the_reason_says_the_file_can_be_read(reason: str) -> None:
    read = parse_plan(render_plan(plan(reason=reason)), "weights.yaml", policy="gorgo", bounds=BOUNDS)
    assert read.reason == reason.replace("\x85", "\n")


def test_every_cut_of_the_file_is_refused() -> None:
    text = render_plan(plan(split()))
    for end in range(0, len(text) - 1, 3):
        with pytest.raises(ConfigError):
            parse_plan(text[:end] or b"", "weights.yaml", policy="gorgo", bounds=BOUNDS)


def test_a_file_that_a_person_wrote_is_read() -> None:
    text = "weights: {rtt_weight: 0.4}\n"
    assert parse_plan(text, "weights.yaml", policy="gorgo", bounds=BOUNDS).weights == {"rtt_weight": 0.4}


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (plan(split(weights={"queue_weight": 0.0})), "trial.weights.queue_weight"),  # the known hack
        (plan(weights={"rtt_weight": 3.0}), "weights.rtt_weight"),
        (plan(split(weights={"rtt": 0.3})), "trial.weights.rtt"),
        (plan(policy="mooncake"), "made for"),
        (plan(split(), policy=""), "made for"),
        (plan(weights={"rtt_weight": float("nan")}), "rtt_weight"),
    ],
)
def test_what_must_not_come_into_force_is_refused(bad: Plan, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_plan(render_plan(bad), "weights.yaml", policy="gorgo", bounds=BOUNDS)


def test_a_file_changed_by_hand_is_refused() -> None:
    text = render_plan(plan()).replace(b"0.5", b"0.6")
    with pytest.raises(ConfigError, match="digest"):
        parse_plan(text, "weights.yaml", policy="gorgo", bounds=BOUNDS)


def test_hard_bounds_hold_within_the_configured_ones() -> None:
    assert tuner_bounds("gorgo", BOUNDS) == {"rtt_weight": (0.01, 2.0), "queue_weight": (0.05, 5.0)}
    assert tuner_bounds("gorgo", {"rtt_weight": (5.0, 9.0)}) == {"rtt_weight": (5.0, 5.0)}
    assert tuner_bounds("other", BOUNDS) == BOUNDS


@pytest.mark.parametrize("wall_s", [START - 0.001, START + 36_000, START + 1e6])
def test_outside_of_its_time_a_trial_is_nothing(wall_s: float) -> None:
    for trial in (split(valid_until_wall_s=START + 36_000), switchback()):
        assigned = assign(plan(trial), wall_s, "session")
        assert (assigned.arm, assigned.stamp, assigned.weights) == (INCUMBENT, "", OLD)


def test_a_split_keeps_sessions_together_and_grows() -> None:
    sessions = [f"s{n}" for n in range(4000)]
    small = {s for s in sessions if assign(plan(split(share=0.05)), START, s).arm != INCUMBENT}
    later = {s for s in sessions if assign(plan(split(share=0.05)), START + 1000, s).arm != INCUMBENT}
    grown = {s for s in sessions if assign(plan(split(id="c1-r", share=0.2)), START, s).arm != INCUMBENT}
    assert small == later < grown
    assert 140 < len(small) < 260
    assert assign(plan(split()), START, "").stamp == ""


def test_a_switchback_gives_each_arm_one_block_of_every_pair() -> None:
    trial, firsts = switchback(), 0
    for pair in range(200):
        arms = [assign(plan(trial), START + 80.0 * pair + at, "").arm for at in (0.0, 39.9, 40.0, 79.9)]
        assert arms[0] == arms[1] != arms[2] == arms[3]
        firsts += arms[0] == INCUMBENT
    assert 70 < firsts < 130


def test_pairs_between_measured_ones_are_the_incumbents_and_not_stamped() -> None:
    trial = switchback(every=4)
    stamps = [assign(plan(trial), START + 80.0 * pair, "").stamp for pair in range(12)]
    assert [bool(stamp) for stamp in stamps] == [True, False, False, False] * 3


@given(wall_s=st.floats(START, START + 3599), session=st.text(max_size=5))
def test_stamps_read_back(wall_s: float, session: str) -> None:
    trial = split()
    assigned = assign(plan(trial), wall_s, session)
    stamp = read_stamp(assigned.stamp)
    assert (stamp is None) == (session == "")
    if stamp is not None:
        assert (stamp.trial, stamp.arm, stamp.block) == (trial.id, assigned.arm, trial.block_at(wall_s))
