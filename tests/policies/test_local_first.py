from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from epp.policies.local_first import LocalFirst
from epp.types import RequestInfo
from tests.kit.fleets import fleet_view

if TYPE_CHECKING:
    from collections.abc import Sequence


def order(
    room: Sequence[float],
    price: Sequence[float] = (0.0, 0.0, 0.0),
    policy: LocalFirst | None = None,
    **columns: Sequence[float],
) -> list[int]:
    """Two local endpoints and a peer, which is by far the cheapest; the second local one is the dearest."""
    chosen = policy or LocalFirst()
    usual = {"rtt_ms": [50.0, 90.0, 1.0], "prefill_ms_per_token": [0.1] * 3, "uncached_tokens": [9.0] * 3}
    snapshot = fleet_view(3, regions=("x", "y", "z"), **{**usual, **columns})  # type: ignore[arg-type]  # columns alone
    extra = {"room": np.array(room), "peer": np.array([0.0, 0.0, 1.0]), "price_ms": np.array(price)}
    snapshot = replace(snapshot, extra=extra)
    ranking = chosen.rank(RequestInfo(prompt_tokens=9), snapshot, chosen.default_weights(), 0)
    assert np.allclose(sum(ranking.terms.values()), ranking.costs)
    return [int(place) for place in np.argsort(ranking.costs)]


def test_local_while_there_is_room_else_the_cheapest_of_all() -> None:
    assert order([5.0, 5.0, 9.0]) == [0, 1, 2]
    assert order([0.0, 5.0, 9.0]) == [0, 1, 2], "one has room, and the cheapest local one is taken"
    assert order([0.0, 0.0, 9.0]) == [2, 0, 1]
    assert order([0.0, 0.0, 0.0]) == [0, 1, 2], "a peer that is full would refuse"
    assert order([0.0, 0.0, 9.0], price=[0.0, 0.0, 300.0])[0] == 0, "not at that price"
    assert order([0.0, 0.0, 9.0], rtt_ms=[50.0, 90.0, 49.0])[0] == 0, "not for a millisecond"


def test_room_is_an_engine_with_nothing_before_its_first_token_and_a_small_batch() -> None:
    assert (
        order([60.0, 0.0, 9.0], running_requests=[10.0, 0.0, 0.0], decoding_requests=[10.0, 0.0, 0.0])[0] == 0
    )
    assert (
        order([40.0, 0.0, 9.0], running_requests=[10.0, 0.0, 0.0], decoding_requests=[10.0, 0.0, 0.0])[0] == 2
    )
    assert (
        order([60.0, 0.0, 9.0], running_requests=[10.0, 0.0, 0.0], decoding_requests=[9.0, 0.0, 0.0])[0] == 2
    )
    assert order([60.0, 0.0, 9.0], engine_waiting=[1.0, 0.0, 0.0])[0] == 2


def test_where_it_is_can_be_named() -> None:
    assert order([5.0, 5.0, 9.0], policy=LocalFirst(local_region="y"))[0] == 1
