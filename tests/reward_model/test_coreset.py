"""Which old samples are kept, against the definition written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.learn.reward_model.fitting import farthest_first


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
