"""Percentiles, resampling and comparisons: known cases, and intervals that cover as often as they claim."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.lab.compare.compare import compare, interval, sentence
from epp.lab.compare.load import RequestResult
from epp.lab.compare.resample import (
    Statistic,
    by_cluster,
    mean_interval,
    politis_white_block,
    replicate,
    stationary,
)
from epp.lab.compare.stats import percentile, spread, summarise

FloatList = list[float]


def result(index: int, e2e_ms: float = 100.0, session: str = "", **more: Any) -> RequestResult:
    fields: dict[str, Any] = {
        "user": "u",
        "intended_ms": index * 10.0,
        "slip_ms": 0.0,
        "ttft_ms": e2e_ms / 2,
        "itl_ms": 5.0,
        "status": 200,
        "error": "",
    }
    return RequestResult(index=index, session=session or f"s{index // 4}", e2e_ms=e2e_ms, **(fields | more))


def lognormal(n: int, seed: int, factor: float = 1.0, session_sd: float = 0.5) -> list[RequestResult]:
    """Runs whose sessions differ: seed sets the load, factor what a policy makes of it."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.normal(0, session_sd, n // 4 + 1), 4)[:n]
    noise = rng.normal(0, 0.3, n)
    return [result(i, float(1000 * factor * np.exp(level[i] + noise[i]))) for i in range(n)]


class TestPercentile:
    def test_it_is_linear_between_order_statistics(self) -> None:
        assert percentile([1, 2, 3, 4], 50) == 2.5
        assert percentile([4, 1, 3, 2], 95) == pytest.approx(3.85)
        assert percentile([7], 99) == 7
        assert math.isnan(percentile([], 50))

    def test_an_empty_sample_has_no_figures(self) -> None:
        assert spread([]).n == 0
        assert math.isnan(spread([]).p95)


class TestSummary:
    def test_failures_are_counted_and_their_latencies_are_not(self) -> None:
        summary = summarise([result(0, 100.0), result(1, 300.0), result(2, 9e9, error="x", ttft_ms=None)])
        assert (summary.requests, summary.errors) == (3, 1)
        assert (summary.e2e_ms.n, summary.e2e_ms.p50) == (2, 200.0)

    def test_cached_share_weighs_tokens_and_skips_the_unreported(self) -> None:
        runs = [
            result(0, cached_tokens=900, prompt_tokens=1000),
            result(1, cached_tokens=0, prompt_tokens=500),
            result(2, cached_tokens=None, prompt_tokens=99_999),
        ]
        assert summarise(runs).cached_share == pytest.approx(0.6)
        assert math.isnan(summarise([result(0)]).cached_share)

    def test_shares_are_by_region_where_one_is_known(self) -> None:
        runs = [result(i, served_by=by) for i, by in enumerate("aabc")]
        summary = summarise(runs, {"a": "east", "b": "west"})
        assert summary.share_by_place == {"c": 0.25, "east": 0.5, "west": 0.25}
        assert summary.hottest_share == 0.5


@given(
    values=st.lists(st.floats(1, 1000), min_size=1, max_size=20),
    counts=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    q=st.sampled_from([None, 0.0, 50.0, 95.0, 99.0, 100.0]),
)
@settings(max_examples=150)
def test_counting_equals_repeating(values: FloatList, counts: list[int], q: float | None) -> None:
    counts = counts[: len(values)]
    counts[0] += 1
    repeated = np.repeat(values, counts)
    expected = float(repeated.mean()) if q is None else percentile(repeated, q)
    found = Statistic(q).weighted(np.array(values), np.array([counts]))[0]
    assert found == pytest.approx(expected)


class TestResampling:
    def test_sessions_are_drawn_whole(self) -> None:
        counts = by_cluster(["a", "b", "a", "c"], seed=1)(300)
        assert (counts[:, 0] == counts[:, 2]).all()
        assert (counts[:, [0, 1, 3]].sum(axis=1) == 3).all()

    def test_every_stationary_resample_has_the_length_of_the_series(self) -> None:
        counts = stationary(50, 5.0, seed=1)(100)
        assert (counts.sum(axis=1) == 50).all()
        assert counts.mean(axis=0) == pytest.approx(np.ones(50), abs=0.5)

    def test_blocks_have_about_their_mean_length(self) -> None:
        def neighbours(mean_block: float) -> float:
            counts = stationary(400, mean_block, seed=2)(200).astype(float)
            centred = counts - 1.0
            return float((centred[:, 1:] * centred[:, :-1]).mean() / (centred**2).mean())

        assert neighbours(1.0) == pytest.approx(0.0, abs=0.05)
        assert neighbours(10.0) > 0.8

    def test_a_seed_decides(self) -> None:
        assert (stationary(30, 4.0, seed=9)(5) == stationary(30, 4.0, seed=9)(5)).all()
        assert (by_cluster(["a", "b"], seed=9)(5) == by_cluster(["a", "b"], seed=9)(5)).all()

    def test_replicates_come_in_the_number_asked(self) -> None:
        assert len(replicate(lambda c: c.sum(axis=1).astype(float), stationary(5, 2.0, 1), 401)) == 401


class TestBlockLength:
    def test_independent_values_need_short_blocks_and_slow_ones_long(self) -> None:
        rng = np.random.default_rng(5)
        noise = rng.normal(size=2000)
        slow = np.zeros(2000)
        for i in range(1, 2000):
            slow[i] = 0.9 * slow[i - 1] + noise[i]
        assert politis_white_block(noise) < 6
        assert 25 < politis_white_block(slow) < 134

    def test_ar1_agrees_with_the_closed_form(self) -> None:
        # For AR(1), b = (2 rho / (1 - rho^2))^(2/3) n^(1/3) for the stationary bootstrap.
        rng, rho, n = np.random.default_rng(6), 0.5, 20_000
        series = np.zeros(n)
        for i in range(1, n):
            series[i] = rho * series[i - 1] + rng.normal()
        expected = (2 * rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)
        assert politis_white_block(series) == pytest.approx(expected, rel=0.35)

    @pytest.mark.parametrize("series", [[], [1.0] * 50, [1.0, 2.0]])
    def test_what_says_nothing_gets_single_values(self, series: FloatList) -> None:
        assert politis_white_block(series) == 1.0


class TestCompare:
    def test_the_same_run_twice_is_no_difference(self) -> None:
        run = lognormal(200, seed=1)
        found = compare(run, run, "e2e_ms", Statistic(95.0))
        assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)
        assert not found.shown

    def test_a_clear_difference_is_shown_and_said(self) -> None:
        b = lognormal(400, seed=1)
        a = [result(r.index, r.e2e_ms * (0.8 if i % 3 else 0.85)) for i, r in enumerate(b)]
        found = compare(a, b, "e2e_ms", Statistic(95.0))
        assert found.shown
        assert 0.78 < found.low <= found.ratio <= found.high < 0.87
        words = sentence("gorgo", "random", found)
        assert words.startswith("E2E p95: gorgo is ")
        assert words.endswith("lower than random (n = 400)")
        assert "higher than" in sentence("random", "gorgo", compare(b, a, "e2e_ms", Statistic(None)))

    def test_noise_is_not_a_difference(self) -> None:
        found = compare(lognormal(200, seed=1), lognormal(200, seed=2), "e2e_ms", Statistic(95.0))
        assert "no difference shown between x and y" in sentence("x", "y", found)

    def test_pairing_is_by_index_and_failures_are_told(self) -> None:
        b = lognormal(100, seed=1)
        a = [*b[:90], *(result(i, 1.0, error="x") for i in range(90, 100))]
        found = compare(list(reversed(a)), b, "ttft_ms", Statistic(50.0))
        assert (found.n, found.unpaired, found.ratio) == (90, 10, 1.0)
        assert "10 answered in one run only" in sentence("a", "b", found)

    @pytest.mark.parametrize("runs", [lognormal(20, 1), [result(i, session="one") for i in range(99)], []])
    def test_too_little_is_said_to_be_too_little(self, runs: list[RequestResult]) -> None:
        found = compare(runs, runs, "e2e_ms", Statistic(95.0))
        assert not found.measurable
        assert not found.shown
        assert "too little data" in sentence("a", "b", found)

    def test_a_seed_decides(self) -> None:
        a, b = lognormal(120, 1), lognormal(120, 2)
        assert compare(a, b, "e2e_ms", Statistic(95.0), seed=3) == compare(
            a, b, "e2e_ms", Statistic(95.0), seed=3
        )

    def test_intervals_of_dependent_data_cover(self) -> None:
        # Sessions whose policies differ by chance (sd 0.3 a session): the truth is no difference.
        covered = naive = 0
        for trial in range(120):
            rng = np.random.default_rng(1000 + trial)
            shift = np.repeat(rng.normal(0, 0.3, 50), 6)
            base = rng.lognormal(0, 0.3, 300)
            keys = [f"s{i // 6}" for i in range(300)]
            a = [result(i, float(base[i] * np.exp(shift[i])), keys[i]) for i in range(300)]
            b = [result(i, float(base[i]), keys[i]) for i in range(300)]
            # The mean of exp(shift) is the ratio of means that these runs have in truth.
            found = compare(a, b, "e2e_ms", Statistic(None), seed=trial, replicates=400)
            covered += found.low <= float(np.exp(0.3**2 / 2)) <= found.high
            logs = np.log([x.e2e_ms / y.e2e_ms for x, y in zip(a, b, strict=True)])
            naive += abs(float(logs.mean())) <= 1.96 * float(logs.std()) / 300**0.5
        assert covered >= 0.89 * 120
        assert naive < 0.75 * 120  # what independence would have claimed

    def test_an_interval_of_one_run_holds_its_figure(self) -> None:
        run = lognormal(300, 4)
        low, high = interval(run, "e2e_ms", Statistic(95.0))
        assert low < percentile([r.e2e_ms for r in run], 95) < high
        assert math.isnan(interval(run[:10], "e2e_ms", Statistic(95.0))[0])


class TestMeanInterval:
    def test_it_covers_with_few_units(self) -> None:
        covered = 0
        for trial in range(200):
            values = np.random.default_rng(trial).normal(0.1, 1.0, 20)
            low, high = mean_interval(list(values), seed=trial, replicates=600)
            covered += low <= 0.1 <= high
        assert covered >= 0.9 * 200

    def test_known_cases(self) -> None:
        assert mean_interval([2.0, 2.0, 2.0], seed=1) == (2.0, 2.0)
        with pytest.raises(ValueError, match="three"):
            mean_interval([1.0, 2.0], seed=1)
