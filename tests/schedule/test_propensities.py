"""Recorded chances are those of the draws: of every policy's own, of slow start's and of those among equals."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from epp.policies.drawn import Explored, Pair, Softmax
from epp.policies.lodestar import Lodestar
from epp.policies.registry import POLICIES, create, draws
from epp.records.schema import decision_of
from epp.schedule.decision import to_record
from epp.schedule.propensities import chances
from epp.schedule.rerun import rerun
from tests.kit.fleets import plausible_fleets, request
from tests.kit.records import decided
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.policies.base import Policy
    from epp.policies.drawn import Drawn
    from epp.schedule.decision import Decision
    from epp.types import Snapshot

MODEL = linear_model({"running_requests": 3.0, "engine_waiting": 2.0})
TRIED = {
    **{name: create(name) for name in POLICIES},
    "lodestar with a model": Lodestar(model=MODEL, min_samples=0, near_best=0.05),
    "lodestar that explores": Lodestar(model=MODEL, min_samples=0, explore=0.5),
}
#: The second with endpoints that are alike.
FLEETS = [
    plausible_fleets(3)[2],
    replace(plausible_fleets(1)[0], block=plausible_fleets(1)[0].block[:, [0, 1, 1, 0]]),
]


def decisions(policy: Policy, fleet: Snapshot, shares: list[float] | None, count: int) -> Iterator[Decision]:
    """One request to one fleet, priced and drawn as live under many ids: nothing but the draws differs."""
    template = decided(1)[0][0]
    for number in range(count):
        asked = request(
            f"id-{number}", prompt_tokens=4000, affinity_key="session", prefix_key="prefix", sequence=2
        )
        told = None if shares is None else np.array(shares)
        yield rerun(
            replace(template, id=asked.decision_id, request=asked, fleet=fleet, shares=told), policy, 0.1
        )


@pytest.mark.parametrize("fleet", FLEETS, ids=["unlike", "alike"])
@pytest.mark.parametrize(
    "shares", [None, [0.3, 1.0, 1.0, 0.6], [0.2, 0.5, 0.1, 0.4]], ids=["warm", "two warming", "all warming"]
)
@pytest.mark.parametrize("name", sorted(TRIED))
def test_endpoints_are_chosen_as_often_as_every_record_says(
    name: str, shares: list[float] | None, fleet: Snapshot
) -> None:
    policy, counts = TRIED[name], np.zeros(4)
    many = 400 if draws(policy.name) or shares else 100
    told = None
    for number, decision in enumerate(decisions(policy, fleet, shares, many)):
        counts[decision.chosen] += 1.0
        if number < 60:
            now = np.array(to_record(decision)["probabilities"])
            assert told is None or now == pytest.approx(told, abs=1e-9), "it depends on what was drawn"
            told = now
    assert told is not None
    assert told.sum() == pytest.approx(1.0)
    assert (np.abs(counts - many * told) <= 4.5 * np.sqrt(many * told * (1.0 - told)) + 1e-6).all()


@pytest.mark.parametrize("name", sorted(TRIED))
def test_chances_follow_from_the_record_alone(name: str) -> None:
    for decision in decisions(TRIED[name], FLEETS[0], [0.3, 1.0, 1.0, 0.6], 5):
        record: dict[str, Any] = to_record(decision)
        assert decision_of(record).probabilities().tolist() == record["probabilities"]


def winners(drawn: Drawn, admitted: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Chances among these when nobody else may be chosen, spelled out."""
    count = len(drawn.load if isinstance(drawn, Pair) else drawn.costs)
    result = np.zeros(count)
    if isinstance(drawn, Softmax):
        result[admitted] = np.exp((drawn.costs[admitted].min() - drawn.costs[admitted]) / drawn.width)
        result /= result.sum()
        return result
    if isinstance(drawn, Explored):
        first = min(admitted, key=drawn.costs.__getitem__)
        result[first] = 1.0 - drawn.explore
        for pick in range(count):
            result[pick if pick in admitted else first] += drawn.explore / count
        return result
    pairs = [(one, two) for one in range(count) for two in range(one)]
    for pair in pairs:
        here = [row for row in pair if row in admitted]
        best = [row for row in here if drawn.load[row] == drawn.load[here].min()] or admitted
        result[best] += 1.0 / len(best) / len(pairs)
    return result


COSTS = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.6])


@pytest.mark.parametrize(
    "drawn",
    [
        *(Softmax(COSTS, width) for width in (100.0, 2.0, 0.05, 1e-3, 1e-6)),
        Pair(COSTS),
        Pair(np.array([3.0, 1.0, 1.0, 3.0, 1.0, 0.0])),
        *(Explored(COSTS, explore) for explore in (0.02, 1.0)),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "shares", [[1.0] * 6, [0.1, 0.5, 1.0, 0.9, 1.0, 0.0], [0.1, 0.5, 0.7, 0.9, 0.3, 0.0], [0.0] * 6]
)
def test_slow_start_counts_every_set_that_may_be_admitted(drawn: Drawn, shares: list[float]) -> None:
    expected = np.zeros(6)
    for admitted in product((False, True), repeat=6):
        weight = float(
            np.prod([share if on else 1.0 - share for on, share in zip(admitted, shares, strict=True)])
        )
        rows = [row for row in range(6) if admitted[row]] or list(range(6))
        if weight:
            expected += weight * winners(drawn, rows)
    found = chances(COSTS, np.array(shares), tie_band=0.0, drawn=drawn)
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_draw_that_is_lost_in_rounding_is_one_among_equals() -> None:
    costs = np.array([1000.0, 1000.0 + 1e-12])
    found = chances(costs, None, tie_band=0.0, drawn=Softmax(costs, 0.5e-12))
    assert found.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "drawn", [Softmax(np.zeros(1), 1.0), Pair(np.zeros(1)), Explored(np.zeros(1), 0.1)], ids=repr
)
@pytest.mark.parametrize("shares", [None, [0.0], [0.4]])
def test_one_endpoint_is_certain(drawn: Drawn, shares: list[float] | None) -> None:
    told = None if shares is None else np.array(shares)
    assert chances(np.zeros(1), told, tie_band=0.0, drawn=drawn) == pytest.approx([1.0])


@pytest.mark.parametrize("warming", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["softmax", "pair", "explored"])
def test_chances_of_a_large_pool_sum_to_1(kind: str, warming: float) -> None:
    values = np.random.default_rng(1)
    costs, shares = np.floor(values.random(400) * 100.0), np.ones(400)
    shares[: int(400 * warming)] = 0.9 * values.random(int(400 * warming))
    draws: dict[str, Drawn] = {
        "softmax": Softmax(costs, 50.0),
        "pair": Pair(costs),
        "explored": Explored(costs, 0.1),
    }
    found = chances(costs, shares, tie_band=0.0, drawn=draws[kind])
    assert found.min() >= 0.0
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
