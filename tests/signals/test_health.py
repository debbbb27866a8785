from __future__ import annotations

import math

from epp.signals.health import HealthState, HealthTracker


def tracker(count: int = 5, probe_interval_s: float = 0.0) -> HealthTracker:
    made = HealthTracker(probe_interval_s=probe_interval_s)
    made.resize(8)
    for slot in range(count):
        made.admit(slot)
    return made


def out(health: HealthTracker, now_s: float) -> list[int]:
    mask = health.standing(now_s).healthy
    return [] if mask is None else [slot for slot in range(8) if not mask[slot]]


def eject(health: HealthTracker, slot: int, now_s: float = 0.0) -> None:
    for _ in range(3):
        health.failure(slot, "probe", now_s)
    assert health.state(slot, now_s) is HealthState.EJECTED


def test_failures_in_a_row_eject_and_a_success_starts_the_row_anew() -> None:
    health = tracker()
    assert health.standing(0.0).healthy is None
    assert not health.failure(1, "probe", 0.0)
    assert not health.failure(1, "probe", 1.0)
    health.success(1, 2.0)
    assert not health.failure(1, "probe", 3.0)
    assert not health.failure(1, "probe", 4.0)
    assert health.failure(1, "probe", 5.0)
    assert out(health, 5.0) == [1]


def test_a_health_page_that_answers_does_not_excuse_failing_requests() -> None:
    health = tracker()
    for _ in range(4):
        assert not health.failure(1, "outcome", 0.0)
    health.success(1, 0.5, "probe")
    assert health.failure(1, "outcome", 1.0)
    assert out(health, 1.0) == [1]


def test_without_probes_time_alone_begins_the_trial_and_slow_start_counts_from_there() -> None:
    health = tracker()
    for _ in range(5):
        health.failure(1, "outcome", 0.0)
    assert health.returned_at_s(0.0)[1] == -math.inf
    assert out(health, 4.9) == [1]
    assert out(health, 5.5) == []
    assert health.state(1, 5.5) is HealthState.TRIAL
    assert health.returned_at_s(5.5)[1] == 5.0
    assert health.success(1, 6.0, "outcome")
    assert health.state(1, 6.0) is HealthState.HEALTHY


def test_one_failure_on_trial_ejects_again_for_twice_as_long_up_to_the_cap() -> None:
    health, now_s, lengths = tracker(), 0.0, []
    for _ in range(5):
        health.failure(1, "outcome", now_s)
    for _ in range(5):
        began_s = now_s
        while out(health, now_s) == [1]:
            now_s += 0.5
        lengths.append(now_s - began_s)
        assert health.failure(1, "outcome", now_s)
    assert lengths == [5.0, 10.0, 20.0, 40.0, 50.0]


def test_while_probes_fail_no_trial_begins_and_the_first_good_one_brings_it_back() -> None:
    health = tracker()
    eject(health, 1)
    for second in range(1, 60):
        health.failure(1, "probe", float(second))
        assert out(health, second + 0.5) == [1], "no client request tests a host that probes show dead"
    assert health.success(1, 60.0)
    assert out(health, 60.0) == []
    assert health.returned_at_s(60.0)[1] == 60.0


def test_above_the_panic_share_everybody_is_eligible_where_nobody_has_proof() -> None:
    health = tracker(count=5)
    for slot in range(3):
        eject(health, slot)
    eject(health, 3)
    assert out(health, 0.0) == [0, 1, 2, 3]
    eject(health, 4)
    assert health.standing(0.0).panicking
    assert out(health, 0.0) == []
    health.success(0, 6.0)
    health.success(1, 6.0)
    assert not health.standing(6.0).panicking


def test_a_flood_of_errors_ejects_though_some_requests_succeed() -> None:
    book = tracker(count=3)
    for number in range(40):
        if number % 3 == 0:
            book.success(0, number * 0.1, "outcome")
        elif book.failure(0, "outcome", number * 0.1):
            break
    assert book.state(0, 2.0) is HealthState.EJECTED


def without_proof(health: HealthTracker, now_s: float) -> list[int]:
    proven = health.standing(now_s).proven
    return [] if proven is None else [slot for slot in range(5) if not proven[slot]]


def test_a_good_probe_or_answer_is_proof_for_three_intervals() -> None:
    health = tracker(probe_interval_s=2.0)
    assert without_proof(health, 0.0) == [], "nobody has any"
    health.success(0, 1.0)
    assert without_proof(health, 1.0) == [1, 2, 3, 4]
    health.success(1, 3.0, "outcome")
    assert without_proof(health, 6.9) == [2, 3, 4]
    assert without_proof(health, 7.0) == [0, 2, 3, 4]
    for slot in range(5):
        health.success(slot, 8.0)
    assert without_proof(health, 8.0) == []
    health.admit(3)
    assert without_proof(health, 8.0) == [3], "a new endpoint, or a new process, has none"
    assert without_proof(health, 14.0) == [], "nobody has any left"


def test_ejections_are_kept_above_the_panic_share_while_another_has_proof() -> None:
    health = tracker(probe_interval_s=2.0)
    health.success(4, 0.0)
    for slot in range(4):
        eject(health, slot)
    for _ in range(2):
        health.failure(4, "probe", 4.0)
    assert out(health, 4.5) == [0, 1, 2, 3], "4 of 5 is no more than the share"
    health.forget(3)
    health.admit(3)
    eject(health, 3, 4.5)
    health.admit(5)
    eject(health, 5, 4.5)
    assert out(health, 4.6) == [0, 1, 2, 3, 5]
    for slot in (0, 1, 2):
        health.failure(slot, "probe", 4.9)
    assert out(health, 6.1) == [], "its proof is over: now the fault may be here"
    assert health.standing(6.1).panicking


def test_without_probes_answers_are_no_proof() -> None:
    health = tracker(probe_interval_s=0.0)
    health.success(0, 1.0, "outcome")
    assert without_proof(health, 1.0) == []
    for slot in range(1, 5):
        for _ in range(5):
            health.failure(slot, "outcome", 1.0)
    health.forget(1)
    health.admit(5)
    for _ in range(5):
        health.failure(5, "outcome", 1.0)
    health.admit(6)
    for _ in range(5):
        health.failure(6, "outcome", 1.0)
    assert health.standing(1.0).panicking
