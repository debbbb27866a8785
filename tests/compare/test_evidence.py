"""Evidence about many policies: intervals cover, and the true best is seldom excluded."""

from __future__ import annotations

import numpy as np
import pytest

from epp.lab.compare.evidence import (
    SeedEvidence,
    TraceEvidence,
    bound_against_best,
    compare_with_best,
    ratio,
)
from epp.lab.compare.resample import Statistic


def seeds(means: list[float], *, trial: int, units: int = 20, noise: float = 0.04) -> SeedEvidence:
    """Policies with these true log figures; units differ, and what they have in common cancels."""
    rng = np.random.default_rng(trial)
    common = rng.normal(0.0, 0.2, (units, 1))
    return SeedEvidence(
        np.array(means) + common + rng.normal(0.0, noise, (units, len(means))), seed=trial, replicates=600
    )


class TestSeeds:
    def test_paired_intervals_cover_and_ignore_what_units_have_in_common(self) -> None:
        covered, widths = 0, []
        for trial in range(200):
            found = ratio(seeds([0.0, 0.05], trial=trial), 1, 0)
            covered += found.low <= np.exp(0.05) <= found.high
            widths.append(found.high - found.low)
        assert 0.90 * 200 <= covered <= 0.99 * 200
        assert float(np.mean(widths)) < 0.08  # units alone differ by 40 %

    @pytest.mark.parametrize("means", [[0.0] * 6, [0.0, 0.0, 0.02, 0.05, 0.2, 0.5]])
    def test_the_best_is_seldom_excluded_and_all_intervals_hold_at_once(self, means: list[float]) -> None:
        trials, excluded, held = 200, 0, 0
        for trial in range(trials):
            found = compare_with_best(seeds(means, trial=trial))
            excluded += not found[0].possible
            truth = [means[i] - min(means[:i] + means[i + 1 :]) for i in range(len(means))]
            held += all(b.low - 1e-9 <= np.exp(t) <= b.high + 1e-9 for b, t in zip(found, truth, strict=True))
        assert excluded <= 0.08 * trials
        assert held >= 0.92 * trials

    def test_who_is_far_off_is_excluded_and_bounded(self) -> None:
        found = compare_with_best(seeds([0.0, 0.01, 0.3], trial=1))
        assert [b.possible for b in found] == [True, True, False]
        assert found[2].low == 1.0
        assert 1.2 < found[2].ratio < found[2].high < 1.6

    def test_one_clear_winner_is_shown_to_be_the_best(self) -> None:
        best, other = compare_with_best(seeds([0.0, 0.4], trial=2))
        assert (best.possible, other.possible) == (True, False)
        assert best.high == 1.0
        assert best.low < 0.75

    def test_equal_runs_are_equal(self) -> None:
        logs = np.random.default_rng(1).normal(0, 1, (20, 1)) + np.zeros((20, 3))
        evidence = SeedEvidence(logs, seed=1)
        assert all(
            (b.ratio, b.low, b.high, b.possible) == (1.0, 1.0, 1.0, True) for b in compare_with_best(evidence)
        )
        found = ratio(evidence, 0, 1)
        assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)

    @pytest.mark.filterwarnings("error")
    def test_who_differs_from_another_in_one_run_only_leaves_an_end_open(self) -> None:
        logs = np.random.default_rng(1).normal(0.0, 0.1, (20, 3))
        logs[:, 1] = logs[:, 0]
        logs[0, 1] += 1e-3
        logs[:, 2] += 0.3
        first, second, far = compare_with_best(SeedEvidence(logs, seed=1))
        assert first.possible
        assert second.possible
        assert second.high == np.inf
        assert not far.possible

    def test_only_those_asked_for_are_compared(self) -> None:
        evidence = seeds([0.0, 0.3, 0.3], trial=4)
        assert [b.possible for b in compare_with_best(evidence, among=[1, 2])] == [True, True]
        assert compare_with_best(evidence, among=[1])[0].possible

    def test_the_bound_against_the_best_of_a_group_holds(self) -> None:
        means = [0.03, 0.0, 0.0, 0.02, 0.1]
        held = sum(
            bound_against_best(seeds(means, trial=trial), 0, [1, 2, 3, 4]).upper >= np.exp(0.03)
            for trial in range(200)
        )
        assert held >= 0.92 * 200

    def test_being_better_than_all_is_claimed_when_it_is_so_and_seldom_otherwise(self) -> None:
        better = bound_against_best(seeds([0.0, 0.2, 0.25], trial=1), 0, [1, 2])
        assert better.upper < 1.0
        assert better.rival == 1
        claims = sum(
            bound_against_best(seeds([0.0, 0.0, 0.3], trial=trial), 0, [1, 2]).upper < 1.0
            for trial in range(200)
        )
        assert claims <= 0.09 * 200


class TestTrace:
    def columns(self, seed: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
        """Two policies on one trace with slow common swings and slow swings of their own."""
        rng = np.random.default_rng(seed)
        n = 1500

        def slow(sd: float) -> np.ndarray:
            out = np.zeros(n)
            for i in range(1, n):
                out[i] = 0.8 * out[i - 1] + rng.normal(0, sd)
            return out

        common = slow(0.2)
        return (
            1000 * factor * np.exp(common + slow(0.05) + rng.normal(0, 0.1, n)),
            1000 * np.exp(common + slow(0.05) + rng.normal(0, 0.1, n)),
        )

    def test_intervals_within_a_trace_cover(self) -> None:
        covered = 0
        for trial in range(80):
            a, b = self.columns(trial, 1.1)
            evidence = TraceEvidence([[a], [b]], Statistic(50.0), seed=trial, replicates=300)
            found = ratio(evidence, 0, 1)
            covered += found.low <= 1.1 <= found.high
        assert covered >= 0.86 * 80

    def test_a_missing_latency_is_left_out_and_equal_columns_are_equal(self) -> None:
        a, _ = self.columns(1, 1.0)
        a[5] = np.nan
        evidence = TraceEvidence([[a], [a.copy()]], Statistic(95.0), seed=1, replicates=100)
        found = ratio(evidence, 0, 1)
        assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)
        assert all(b.possible for b in compare_with_best(evidence))

    def test_several_seeds_of_one_trace_are_averaged(self) -> None:
        a, b = self.columns(1, 1.2)
        c, d = self.columns(2, 1.2)
        one = TraceEvidence([[a], [b]], Statistic(None), seed=1, replicates=100)
        two = TraceEvidence([[a, c], [b, d]], Statistic(None), seed=1, replicates=100)
        other = TraceEvidence([[c], [d]], Statistic(None), seed=1, replicates=100)
        expected = (one.means + other.means) / 2
        assert two.means == pytest.approx(expected)
