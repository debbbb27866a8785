"""One formula, in numbers for few endpoints and in columns for many: the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.policies import gorgo_ms
from epp.policies.gorgo_ms import GorgoMs
from tests.kit.fleets import default_weights, fleets, plausible_fleets, request

if TYPE_CHECKING:
    from epp.view import FleetView, Ranking, RequestView


def bits(ranking: Ranking) -> list[tuple[str, bytes]]:
    columns = {**ranking.terms, "costs": ranking.costs}
    return [(name, column.tobytes()) for name, column in columns.items()]


def both(policy: GorgoMs, ask: RequestView, fleet: FleetView) -> tuple[Ranking, Ranking]:
    found = []
    for few in (0, len(fleet)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gorgo_ms, "_FEW", few)
            found.append(policy.rank(ask, fleet, default_weights(policy), 0))
    return found[0], found[1]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"price_cold": False},
    {"upload_rounds": 0},
    {"popular": 0},
    {"discount_hits": False},
    {"urgency_power": 0},
    {"urgency_power": 4},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("body_bytes", [0, 900, 14_601, 72_000])
def test_numbers_and_columns_agree_to_the_last_bit(settings: dict[str, Any], body_bytes: int) -> None:
    policy = GorgoMs(**settings)
    for usual_ms in (0.0, 371.3, 1e5):
        ask = request(
            prompt_tokens=4000,
            body_bytes=body_bytes,
            expected_output_tokens=91.7,
            prefix_sharing=3.3,
            usual_first_token_ms=usual_ms,
        )
        for fleet in plausible_fleets(20):
            columns, numbers = both(policy, ask, fleet)
            assert bits(columns) == bits(numbers)
            assert columns.least_first_token_ms == numbers.least_first_token_ms


@given(
    fleets(),
    st.integers(0, 200_000),
    st.integers(0, 1 << 20),
    st.floats(0.0, 1e4),
    st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1e9)),
)
def test_whatever_signals_say(
    fleet: FleetView, tokens: int, body_bytes: int, answer: float, learned: tuple[float, float]
) -> None:
    ask = request(
        prompt_tokens=tokens,
        body_bytes=body_bytes,
        expected_output_tokens=answer,
        prefix_sharing=learned[0],
        usual_first_token_ms=learned[1],
    )
    columns, numbers = both(GorgoMs(), ask, fleet)
    assert bits(columns) == bits(numbers)
