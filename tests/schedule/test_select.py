from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.schedule.propensities import chances
from epp.schedule.select import select


def names(count: int) -> list[str]:
    return [f"10.0.0.{index}:8000" for index in range(count)]


def pick(costs: list[float], key: str = "id", **options: object) -> object:
    shares = options.pop("shares", None)
    return select(
        np.array(costs),
        None if shares is None else np.array(shares),
        names(len(costs)),
        tie_band=float(options.pop("tie_band", 0.0)),  # type: ignore[arg-type]
        fallbacks=int(options.pop("fallbacks", 2)),  # type: ignore[call-overload]
        seed=0,
        key=key,
        served_models=options.pop("served_models", ()),  # type: ignore[arg-type]
    )


def test_the_cheapest_is_chosen_and_fallbacks_follow_by_cost() -> None:
    selection = pick([30.0, 10.0, 20.0, 40.0])
    assert (selection.chosen, selection.fallbacks, selection.tied) == (1, (2, 0), 1)  # type: ignore[attr-defined]


def test_exact_ties_are_spread_evenly_over_decisions() -> None:
    counts = np.zeros(4)
    for number in range(4000):
        counts[pick([5.0, 5.0, 9.0, 5.0], key=str(number)).chosen] += 1  # type: ignore[attr-defined]
    assert counts[2] == 0
    assert counts[[0, 1, 3]] == pytest.approx(4000 / 3, rel=0.1)


def test_the_same_decision_draws_the_same_endpoint_again() -> None:
    assert pick([1.0] * 9, key="abc") == pick([1.0] * 9, key="abc")


@pytest.mark.parametrize(
    ("costs", "band", "tied"),
    [
        ([100.0, 101.0, 103.0], 0.01, 2),
        ([100.0, 101.0, 103.0], 0.05, 3),
        ([0.0, 0.0, 1e-3], 0.05, 2),
        ([-100.0, -99.5, -90.0], 0.01, 2),  # negative costs: the band still opens upwards
        ([0.1 + 0.2, 0.3], 0.0, 2),  # rounding is not a difference
    ],
)
def test_the_band_is_relative_to_the_best(costs: list[float], band: float, tied: int) -> None:
    assert pick(costs, tie_band=band).tied == tied  # type: ignore[attr-defined]


def test_a_warming_endpoint_gets_its_share_and_no_more() -> None:
    chosen = [pick([1.0, 2.0], key=str(number), shares=[0.25, 1.0]).chosen for number in range(4000)]  # type: ignore[attr-defined]
    assert np.mean(np.array(chosen) == 0) == pytest.approx(0.25, abs=0.03)


def test_held_back_endpoints_are_the_last_fallbacks() -> None:
    selection = pick([1.0, 3.0, 2.0], shares=[0.0, 1.0, 1.0])
    assert (selection.chosen, selection.fallbacks, selection.held_back) == (2, (1, 0), (0,))  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [12, 20, 100])
def test_of_many_that_are_held_back_the_cheapest_stand_in_first(count: int) -> None:
    costs = [float(count - row) for row in range(count)]
    selection: Any = pick(costs, shares=[1.0, *[0.0] * (count - 1)])
    assert (selection.chosen, selection.fallbacks) == (0, (count - 1, count - 2))


def test_when_all_are_held_back_all_take_part() -> None:
    assert pick([2.0, 1.0], shares=[0.0, 0.0]).chosen == 1  # type: ignore[attr-defined]


def test_many_endpoints_need_few_fallbacks() -> None:
    costs = list(np.random.default_rng(3).permutation(1000).astype(float))
    selection = pick(costs, fallbacks=3)
    assert [costs[index] for index in (selection.chosen, *selection.fallbacks)] == [0.0, 1.0, 2.0, 3.0]  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=40)
@given(
    costs=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=6, max_size=6),
    band=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_probabilities_are_those_of_the_draws(costs: list[int], shares: list[float], band: float) -> None:
    values = [float(cost) for cost in costs]
    said = chances(np.array(values), np.array(shares[: len(values)]), tie_band=band)
    assert said.sum() == pytest.approx(1.0)
    seen = np.zeros(len(values))
    runs = 600
    for number in range(runs):
        seen[pick(values, key=str(number), shares=shares[: len(values)], tie_band=band).chosen] += 1 / runs  # type: ignore[attr-defined]
    assert np.abs(seen - said).max() < 0.11


def test_probabilities_without_slow_start_are_equal_within_the_band() -> None:
    assert chances(np.array([1.0, 1.0, 2.0]), None, tie_band=0.0).tolist() == [0.5, 0.5, 0.0]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("xyz"), st.sampled_from([1.0, 0.3])),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 4),
)
def test_fallbacks_use_the_picks_model_name_and_nothing_else_changes(
    rows: list[tuple[int, str, float]], fallbacks: int
) -> None:
    costs, served, shares = (
        [float(cost) for cost, _, _ in rows],
        [name for _, name, _ in rows],
        [s for _, _, s in rows],
    )
    free: Any = pick(costs, shares=shares, fallbacks=len(rows))
    bound: Any = pick(costs, shares=shares, fallbacks=fallbacks, served_models=served)
    assert (bound.chosen, bound.tied, bound.held_back) == (free.chosen, free.tied, free.held_back)
    alike = tuple(row for row in free.fallbacks if served[row] == served[free.chosen])
    assert bound.fallbacks == alike[:fallbacks]
