"""Percentiles, resampling and comparisons: known cases, and intervals that cover as often as they claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_lab.compare.compare import compare, sentence
from epp_lab.compare.load import RequestResult
from epp_lab.compare.stats import (
    Evidence,
    Statistic,
    by_cluster,
    compare_with_best,
    percentile,
    politis_white_block,
    seed_evidence,
    stationary,
    trace_evidence,
)

P95 = Statistic(95.0)


def result(index: int, e2e_ms: float = 100.0, session: str = "", **more: Any) -> RequestResult:
    fields: dict[str, Any] = {
        "intended_ms": index * 10.0,
        "slip_ms": 0.0,
        "ttft_ms": e2e_ms / 2,
        "itl_ms": 5.0,
    }
    fields |= {"status": 200, "error": ""} | more
    return RequestResult(index=index, session=session or f"s{index // 4}", e2e_ms=e2e_ms, **fields)


def lognormal(n: int, seed: int) -> list[RequestResult]:
    """Make runs whose sessions differ."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.normal(0, 0.5, n // 4 + 1), 4)[:n] + rng.normal(0, 0.3, n)
    return [result(i, float(1000 * np.exp(level[i]))) for i in range(n)]


@given(
    values=st.lists(st.floats(1, 1000), min_size=1, max_size=20),
    counts=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    q=st.sampled_from([None, 0.0, 50.0, 95.0, 100.0]),
)
def test_counting_equals_repeating(values: list[float], counts: list[int], q: float | None) -> None:
    counts = counts[: len(values)]
    counts[0] += 1
    repeated = np.repeat(values, counts)
    expected = float(repeated.mean()) if q is None else percentile(repeated, q)
    assert Statistic(q).weighted(np.array(values), np.array([counts]))[0] == pytest.approx(expected)


def test_sessions_are_drawn_whole_and_stretches_have_their_mean_length() -> None:
    counts = by_cluster(["a", "b", "a", "c"], seed=1)(300)
    assert (counts[:, 0] == counts[:, 2]).all()
    assert (counts[:, [0, 1, 3]].sum(axis=1) == 3).all()

    def neighbours(mean_block: float) -> float:
        centred = stationary(400, mean_block, seed=2)(200).astype(float) - 1.0
        return float((centred[:, 1:] * centred[:, :-1]).mean() / (centred**2).mean())

    assert neighbours(1.0) == pytest.approx(0.0, abs=0.05)
    assert neighbours(10.0) > 0.8


def test_the_block_of_an_ar1_series_agrees_with_the_closed_form() -> None:
    # For AR(1), b = (2 rho / (1 - rho^2))^(2/3) n^(1/3) for the stationary bootstrap.
    rng, rho, n = np.random.default_rng(6), 0.5, 20_000
    series = np.zeros(n)
    for i in range(1, n):
        series[i] = rho * series[i - 1] + rng.normal()
    expected = (2 * rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)
    assert politis_white_block(series) == pytest.approx(expected, rel=0.35)
    assert politis_white_block(np.ones(50)) == 1.0


class TestTwoRuns:
    def test_a_clear_difference_is_shown_and_said(self) -> None:
        b = lognormal(400, seed=1)
        a = [result(r.index, r.e2e_ms * (0.8 if i % 3 else 0.85)) for i, r in enumerate(b)]
        found = compare(a, b, "e2e_ms", P95)
        assert 0.78 < found.low <= found.ratio <= found.high < 0.87
        words = sentence("gorgo", "random", found)
        assert words.startswith("E2E p95: gorgo is ")
        assert words.endswith("lower than random (n = 400)")
        assert "higher than" in sentence("random", "gorgo", compare(b, a, "e2e_ms", Statistic(None)))

    def test_pairing_is_by_index_and_failures_are_counted(self) -> None:
        b = lognormal(100, seed=1)
        a = [*b[:90], *(result(i, 1.0, error="x") for i in range(90, 100))]
        found = compare(list(reversed(a)), b, "ttft_ms", Statistic(50.0))
        assert (found.n, found.unpaired, found.ratio) == (90, 10, 1.0)
        assert "10 answered in one run only" in sentence("a", "b", found)

    @pytest.mark.parametrize("runs", [lognormal(20, 1), [result(i, session="one") for i in range(99)], []])
    def test_too_little_is_said_to_be_too_little(self, runs: list[RequestResult]) -> None:
        assert "too little data" in sentence("a", "b", compare(runs, runs, "e2e_ms", P95))

    def test_intervals_of_dependent_data_cover(self) -> None:
        # Sessions whose policies differ by chance (sd 0.3 a session): the truth is no difference.
        covered = naive = 0
        for trial in range(30):
            rng = np.random.default_rng(1000 + trial)
            shift = np.repeat(rng.normal(0, 0.3, 50), 6)
            base = rng.lognormal(0, 0.3, 300)
            a = [result(i, float(base[i] * np.exp(shift[i])), f"s{i // 6}") for i in range(300)]
            b = [result(i, float(base[i]), f"s{i // 6}") for i in range(300)]
            # The mean of exp(shift) is the ratio of means that these runs have in truth.
            found = compare(a, b, "e2e_ms", Statistic(None))
            covered += found.low <= float(np.exp(0.3**2 / 2)) <= found.high
            logs = np.log([x.e2e_ms / y.e2e_ms for x, y in zip(a, b, strict=True)])
            naive += abs(float(logs.mean())) <= 1.96 * float(logs.std()) / 300**0.5
        assert covered >= 0.87 * 30
        assert naive < 0.75 * 30  # what independence would have claimed


def seeds(means: list[float], *, trial: int, units: int = 20, noise: float = 0.04) -> Evidence:
    """Make policies with these true log figures; units differ, and what they have in common cancels."""
    rng = np.random.default_rng(trial)
    common = rng.normal(0.0, 0.2, (units, 1))
    return seed_evidence(np.array(means) + common + rng.normal(0.0, noise, (units, len(means))), seed=trial)


class TestManyPolicies:
    def test_paired_intervals_cover_and_ignore_what_units_have_in_common(self) -> None:
        found = [seeds([0.0, 0.05], trial=trial).interval(1, 0) for trial in range(50)]
        assert 44 <= sum(low <= 0.05 <= high for _, low, high in found) <= 50
        assert np.mean([high - low for _, low, high in found]) < 0.08  # units alone differ by 40 %

    @pytest.mark.parametrize("means", [[0.0] * 6, [0.0, 0.0, 0.02, 0.05, 0.2, 0.5]])
    def test_the_best_is_seldom_excluded_and_all_intervals_hold_at_once(self, means: list[float]) -> None:
        excluded, held = 0, 0
        for trial in range(50):
            found = compare_with_best(seeds(means, trial=trial), range(6))
            excluded += not found[0].possibly_best
            truth = [means[i] - min(means[:i] + means[i + 1 :]) for i in range(6)]
            held += all(b.low - 1e-9 <= np.exp(t) <= b.high + 1e-9 for b, t in zip(found, truth, strict=True))
        assert excluded <= 4
        assert held >= 46

    def columns(self, seed: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
        """Make two policies on one trace with slow common swings and slow swings of their own."""
        rng = np.random.default_rng(seed)

        def slow(sd: float) -> np.ndarray:
            out = np.zeros(1500)
            for i in range(1, 1500):
                out[i] = 0.8 * out[i - 1] + rng.normal(0, sd)
            return out + rng.normal(0, 0.05, 1500)

        common = slow(0.2)
        return 1000 * factor * np.exp(common + slow(0.05)), 1000 * np.exp(common + slow(0.05))

    def test_intervals_within_a_trace_cover(self) -> None:
        covered = 0
        for trial in range(12):
            a, b = self.columns(trial, 1.1)
            _, low, high = trace_evidence([[a], [b]], Statistic(50.0), seed=trial).interval(0, 1)
            covered += low <= np.log(1.1) <= high
        assert covered >= 10
