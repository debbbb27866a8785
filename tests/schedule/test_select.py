from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.schedule.select import Selection, kinds_of, select, with_local
from epp.types import PEER_CLASS
from tests.kit.fleets import fleet_view


def pick(costs: list[float], key: str = "id", **options: Any) -> Selection:
    shares = options.pop("shares", None)
    names = [f"10.0.0.{index}:8000" for index in range(len(costs))]
    told = None if shares is None else np.array(shares)
    return select(
        np.array(costs), told, names, seed=0, key=key, **{"tolerance": 0.0, "fallbacks": 2} | options
    )


def test_the_cheapest_is_chosen_and_fallbacks_follow_by_cost() -> None:
    selection = pick([30.0, 10.0, 20.0, 40.0])
    assert (selection.chosen, selection.fallbacks, selection.tied) == (1, (2, 0), 1)


def test_exact_ties_are_spread_evenly_over_decisions() -> None:
    counts = np.zeros(4)
    for number in range(4000):
        counts[pick([5.0, 5.0, 9.0, 5.0], key=str(number)).chosen] += 1
    assert counts[2] == 0
    assert counts[[0, 1, 3]] == pytest.approx(4000 / 3, rel=0.1)


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
    assert pick(costs, tolerance=band).tied == tied


def test_a_warming_endpoint_gets_its_share_and_no_more() -> None:
    chosen = [pick([1.0, 2.0], key=str(number), shares=[0.25, 1.0]).chosen for number in range(4000)]
    assert np.mean(np.array(chosen) == 0) == pytest.approx(0.25, abs=0.03)


def test_held_back_endpoints_are_the_last_fallbacks() -> None:
    selection = pick([1.0, 3.0, 2.0], shares=[0.0, 1.0, 1.0])
    assert (selection.chosen, selection.fallbacks, selection.slow_start_excluded) == (2, (1, 0), (0,))


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
    free = pick(costs, shares=shares, fallbacks=len(rows))
    bound = pick(costs, shares=shares, fallbacks=fallbacks, kinds=served)
    assert (bound.chosen, bound.tied, bound.slow_start_excluded) == (
        free.chosen,
        free.tied,
        free.slow_start_excluded,
    )
    alike = tuple(row for row in free.fallbacks if served[row] == served[free.chosen])
    assert bound.fallbacks == alike[:fallbacks]


def test_who_has_no_share_beside_others_is_never_chosen_and_comes_last() -> None:
    """A share of 0 is of an endpoint without proof that it answers."""
    costs, shares = [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 1e-9, 1e-9]
    selections = [pick(costs, key=str(number), shares=shares, fallbacks=3) for number in range(200)]
    assert {selection.chosen for selection in selections} == {2}, (
        "nobody is admitted: then who has a share is"
    )
    assert {selection.fallbacks for selection in selections} == {(3, 0, 1)}
    alone = pick([1.0, 2.0], shares=[0.0, 1.0])
    assert (alone.chosen, alone.fallbacks) == (1, (0,)), "better one without proof than none"
    assert pick(costs, shares=[0.0] * 4).chosen == 0


def test_fallbacks_are_of_the_chosen_rank_however_many_of_others_are_cheaper() -> None:
    names = [f"10.0.0.{host}:8000@{rank}" for host in range(3) for rank in range(64)]
    costs = [float(name.endswith("@0")) for name in names]
    costs[1] = -1.0  # of the first host's rank 1
    selection = pick(costs, kinds=kinds_of(fleet_view(len(names), names=names)))
    assert [names[row] for row in (selection.chosen, *selection.fallbacks)] == [
        f"10.0.0.{host}:8000@1" for host in range(3)
    ]


def test_a_peer_s_last_resort_is_any_rank_here() -> None:
    names = ["peer", "10.0.0.1:8000@0", "10.0.0.1:8000@1"]
    seen = fleet_view(3, names=names, engine_classes=[PEER_CLASS, "", ""])
    costs = [1.0, 3.0, 2.0]
    selection = with_local(pick(costs, kinds=kinds_of(seen)), np.array(costs), seen)
    assert (selection.chosen, selection.fallbacks) == (0, (2,))
