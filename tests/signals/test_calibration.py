"""What engines' counters teach of estimates, and when they teach nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from epp.signals.calibration import CounterCalibration, Finished, TokenRatio
from epp.signals.metrics_text import EngineSample

EMPTY = EngineSample("vllm", requests_total=1000.0, prompt_tokens_total=5e6, prefix_hits_total=1e6)
PLAIN = Finished("m", 4000, 1000, 600.0, told=False, cached_told=False)


def book() -> CounterCalibration:
    made = CounterCalibration()
    made.resize(2)
    made.scraped(0, EMPTY, 0.0, 0.0)
    return made


def later(requests: float = 40.0, prompt: float = 50_000.0, hits: float = 12_000.0) -> EngineSample:
    return replace(
        EMPTY,
        requests_total=1000.0 + requests,
        prompt_tokens_total=5e6 + prompt,
        prefix_hits_total=1e6 + hits,
    )


def after(request: Finished = PLAIN, number: int = 40) -> CounterCalibration:
    made = book()
    for _ in range(number):
        made.finished(0, request)
    return made


def test_a_window_of_our_own_requests_tells_both() -> None:
    made = after()
    # 40 requests, estimated 40,000 tokens of which 24,000 cached; the engine counted 50,000 and 12,000.
    assert made.scraped(0, later(), 0.0, 5.0) == TokenRatio("m", 160_000, 50_000.0, 40)
    assert 0.4 < made.hit_ratio[0] < 0.8
    assert made.hit_ratio[1] == 1.0
    assert (made.used, made.refused) == (1, 0)
    for window in range(1, 20):
        for _ in range(40):
            made.finished(0, PLAIN)
        made.scraped(0, later(40.0 + 40 * window, 50_000.0 * (window + 1), 12_000.0 * (window + 1)), 0.0, 5.0)
    assert made.hit_ratio[0] == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize(
    ("request_", "number", "sample", "running"),
    [
        (PLAIN, 40, later(requests=80.0), 0.0),  # others send requests, too
        (PLAIN, 40, later(requests=20.0), 0.0),
        (PLAIN, 20, later(requests=20.0), 0.0),  # too few to tell
        (PLAIN, 40, later(), 30.0),  # many have been counted and not ended
        (PLAIN, 40, replace(later(), requests_total=None), 0.0),
        (PLAIN, 40, replace(later(), requests_total=3.0), 0.0),  # another process
    ],
)
def test_what_tells_nothing(request_: Finished, number: int, sample: EngineSample, running: float) -> None:
    made = after(request_, number)
    assert made.scraped(0, sample, running, 5.0) is None
    assert made.hit_ratio[0] == 1.0


@pytest.mark.parametrize("change", [{"told": True}, {"text_bytes": 0}])
def test_bytes_per_token_come_from_answers_or_text_alone(change: dict[str, object]) -> None:
    made = after(structs.replace(PLAIN, **change))
    assert made.scraped(0, later(), 0.0, 5.0) is None
    assert made.hit_ratio[0] < 1.0, "the hits tell all the same"


def test_two_models_cannot_be_told_apart() -> None:
    made = after(number=39)
    made.finished(0, structs.replace(PLAIN, model="other"))
    assert made.scraped(0, later(), 0.0, 5.0) is None
    assert made.used == 1


def test_answers_that_tell_their_cached_tokens_go_before_counters() -> None:
    made = after(structs.replace(PLAIN, cached_told=True))
    made.scraped(0, later(), 0.0, 5.0)
    assert made.hit_ratio[0] == 1.0
    for _ in range(500):
        made.cached(0, 1000.0, 250.0)
    assert made.hit_ratio[0] == pytest.approx(0.25, abs=0.1)
    for _ in range(500):
        made.cached(0, 1000.0, 1000.0)
    assert made.hit_ratio[0] == pytest.approx(1.0, abs=0.01), "the past fades"
    made.cached(0, 1000.0, 0.0)
    made.forget(0)
    assert made.hit_ratio[0] == 1.0


@given(st.lists(st.tuples(st.floats(0, 1e18), st.floats(0, 1e18)), max_size=30))
def test_the_ratio_stays_bounded(reports: list[tuple[float, float]]) -> None:
    made = book()
    for predicted, reported in reports:
        made.cached(0, predicted, reported)
        assert 0.0 <= made.hit_ratio[0] <= 1.5


def test_a_window_that_no_scrape_closes_does_not_grow_with_the_names_that_clients_choose() -> None:
    made = book()
    for number in range(1000):
        made.finished(0, structs.replace(PLAIN, model=f"m{number}"))
    assert len(made._windows[0].models) == 2
    assert made.scraped(0, later(requests=1000.0), 0.0, 5.0) is None, "of several models it tells no ratio"


def test_more_hits_than_prompt_tokens_are_as_many() -> None:
    made = after()
    made.scraped(0, later(hits=1e18), 0.0, 5.0)
    for window in range(1, 6):
        for _ in range(40):
            made.finished(0, PLAIN)
        made.scraped(
            0, later(40.0 + 40 * window, 50_000.0 * (window + 1), 1e18 + 12_000.0 * window), 0.0, 5.0
        )
    assert made.hit_ratio[0] < 0.8, "one absurd window is soon forgotten"
