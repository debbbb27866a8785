"""Which requests are samples, and of what; by the records of their decisions and outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from epp_lab.tuner.samples import Stamp, sample_of

START = 1_700_000_000.0


def decision(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": "d1",
        "at": START + 15.0,
        "basis": "policy",
        "arm": "c1-switch/candidate/0",
        "weights_version": "v",
        "request": {"prompt_tokens": 100},
        "endpoints": ["a:1", "b:1"],
        "chosen": 1,
    }
    return {**values, **changes}


def outcome(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": "d1",
        "at": START + 18.0,
        "endpoint": "a:1",
        "served": "b:1",
        "cause": "completed",
        "status": 200,
        "ttft_ms": 300.0,
        "e2e_ms": 3000.0,
        "itl_ms": 20.0,
        "completion_tokens": 101,
    }
    return {**values, **changes}


def test_a_sample_is_of_its_dispatch() -> None:
    sample = sample_of(decision(), outcome())
    assert sample is not None
    assert (sample.dispatched_wall_s, sample.endpoint) == (START + 15.0, "b:1")
    assert sample.felt_ms == 300.0 + 20.0 * 100
    assert sample.stamp == Stamp("c1-switch", "candidate", 0)


@pytest.mark.parametrize(
    ("changes", "failed", "answered", "censored"),
    [
        ({}, False, True, False),
        ({"status": 500, "ttft_ms": 5.0}, True, False, False),
        ({"cause": "upstream-reset"}, True, False, False),
        ({"cause": "client-gone", "ttft_ms": None}, False, False, True),
        ({"cause": "client-gone"}, False, True, True),
        ({"cause": "expired", "status": None, "ttft_ms": None}, True, False, False),
    ],
)
def test_what_counts_as_failed(changes: dict[str, Any], failed: bool, answered: bool, censored: bool) -> None:
    sample = sample_of(decision(), outcome(**changes))
    assert sample is not None
    assert (sample.failed, sample.answered, sample.censored) == (failed, answered, censored)


def test_what_says_nothing_about_a_policy_is_left_out() -> None:
    assert sample_of(decision(basis="balance"), outcome()) is None
    assert sample_of(decision(), outcome(status=400)) is None
    assert sample_of(decision(), outcome(cause="unobserved", status=None, ttft_ms=None)) is None
    assert sample_of(decision(), outcome(cause="cut-off", ttft_ms=None)) is None, "nobody saw its first token"


def test_a_request_that_never_ended_is_a_sample() -> None:
    sample = sample_of(decision(), None, now_wall_s=START + 75.0)
    assert sample is not None
    assert not sample.answered
    assert (sample.e2e_ms, sample.endpoint) == (60_000.0, "b:1")
