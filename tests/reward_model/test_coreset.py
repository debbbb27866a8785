"""Which old samples are kept, against the definition written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.learn.reward_model.coreset import farthest_first, gradients


def by_definition(vectors: np.ndarray, count: int) -> list[int]:
    norms = np.linalg.norm(vectors, axis=1)
    units = vectors / norms[:, None]
    chosen = [int(norms.argmax())]
    while len(chosen) < count:
        distance = 1.0 - (units @ units[chosen].T).max(axis=1)
        distance[chosen] = -np.inf
        chosen.append(int(distance.argmax()))
    return chosen


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 60), width=st.integers(2, 6), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_farthest_first_is_greedy_k_centre_under_cosine_distance(
    rows: int, width: int, seed: int, data: st.DataObject
) -> None:
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    count = data.draw(st.integers(1, rows - 1))
    chosen = farthest_first(vectors, count)
    assert len(set(chosen.tolist())) == count
    wanted = by_definition(vectors.astype(np.float64), count)
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]

    def reach(picked: list[int]) -> float:
        """How far the farthest row is from its nearest chosen one."""
        return float((1.0 - (units @ units[picked].T).max(axis=1)).max())

    assert chosen[0] == wanted[0]
    assert abs(reach(chosen.tolist()) - reach(wanted)) < 1e-3


def test_many_rows_are_chosen_once_each() -> None:
    vectors = np.random.default_rng(0).standard_normal((900, 8)).astype(np.float32)
    chosen = farthest_first(vectors, 700)
    assert len(set(chosen.tolist())) == 700


def test_rows_without_error_come_last_and_a_few_rows_are_all_kept() -> None:
    vectors = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]], np.float32)
    assert farthest_first(vectors, 2).tolist() == [3, 1]
    assert farthest_first(vectors, 3).tolist() == [3, 1, 0]
    assert sorted(farthest_first(vectors, 9).tolist()) == [0, 1, 2, 3]
    assert farthest_first(np.zeros((3, 2), np.float32), 2).tolist() == [0, 1]
    assert farthest_first(vectors, 0).tolist() == []


def test_too_fast_and_too_slow_point_in_opposite_directions() -> None:
    hidden = np.array([[1.0, 1.0], [1.0, 1.0]], np.float32)
    found = gradients(hidden, np.array([2.0, -2.0], np.float32))
    assert np.array_equal(found[0], -found[1])
