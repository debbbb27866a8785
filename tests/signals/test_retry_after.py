"""Endpoints that ask to be left alone: how long, and how they come back."""

from __future__ import annotations

import pytest

from epp.signals.retry_after import MAX_PAUSE_S, RetryAfter, retry_after_s

#: Sun, 06 Nov 1994 08:49:37 GMT
WALL_S = 784111777.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0", 0.0),
        ("9" * 5000, float("inf")),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0.0),
        ("-1", 0.0),
        ("soon", 0.0),
        ("Sun, 99 Nov 1994 08:49:47 GMT", 0.0),
        ("", 0.0),
    ],
)
def test_seconds_and_dates_are_read(value: str, seconds: float) -> None:
    assert retry_after_s(value, WALL_S) == seconds


@pytest.mark.parametrize(("asked_s", "least_s", "most_s"), [(2.0, 2.0, 2.4), (3600.0, 50.0, MAX_PAUSE_S)])
def test_a_pause_is_as_long_as_asked_with_jitter_and_a_limit(
    asked_s: float, least_s: float, most_s: float
) -> None:
    lengths = []
    for number in range(50):
        pauses = RetryAfter()
        assert pauses.pause(0, asked_s, f"d-{number}", 100.0)
        lengths.append(pauses.left_s(0, 100.0))
    assert least_s <= min(lengths) < max(lengths) <= most_s
    assert len(set(lengths)) == 50


def test_after_a_pause_one_request_tries_until_it_is_answered() -> None:
    pauses = RetryAfter()
    pauses.pause(0, 10.0, "a", 100.0)
    pauses.sent(0, "early", 101.0)  # all of them are left alone, and this one is the first to return
    assert pauses.until_s(109.9) is not None
    assert pauses.until_s(112.1) is None
    pauses.sent(0, "trial", 112.1)
    assert pauses.until_s(112.2) is not None, "others wait for its answer"
    pauses.answered("early")
    assert pauses.until_s(112.2) is not None
    pauses.answered("trial")
    assert pauses.until_s(112.2) is None
    assert pauses.pause(0, 10.0, "b", 113.0), "a pause of its own"
