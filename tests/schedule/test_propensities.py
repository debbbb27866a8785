"""Recorded chances are those of the draws: of every policy's own, of slow start's and of those among equals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from epp.policies.base import Explored, Pair, Softmax
from epp.policies.lodestar import Lodestar
from epp.policies.registry import POLICIES, create, draws
from epp.records.schema import decision_of
from epp.schedule.decision import rerun, to_record
from epp.schedule.propensities import propensities
from tests.kit.fleets import plausible_fleets, request
from tests.kit.records import decided
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.policies.base import Drawn, Policy
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


def decisions(
    policy: Policy, snapshot: Snapshot, shares: list[float] | None, count: int
) -> Iterator[Decision]:
    """One request to one fleet, priced and drawn as live under many ids: nothing but the draws differs."""
    template = decided(1)[0][0]
    for number in range(count):
        asked = request(
            f"id-{number}", prompt_tokens=4000, affinity_key="session", prefix_key="prefix", sequence=2
        )
        told = None if shares is None else np.array(shares)
        yield rerun(replace(template, request=asked, snapshot=snapshot, slow_start_weights=told), policy, 0.1)


@pytest.mark.parametrize(
    ("snapshot", "shares"),
    [(FLEETS[0], None), (FLEETS[1], [0.3, 1.0, 1.0, 0.6])],
    ids=["unlike", "alike and warming"],
)
@pytest.mark.parametrize("name", sorted(TRIED))
def test_endpoints_are_chosen_as_often_as_records_say(
    name: str, snapshot: Snapshot, shares: list[float] | None
) -> None:
    policy = TRIED[name]
    many = 400 if draws(policy.name) or shares else 100
    counts, told, variance = np.zeros(4), np.zeros(4), np.zeros(4)
    for decision in decisions(policy, snapshot, shares, many):
        counts[decision.chosen] += 1.0
        now = np.array(to_record(decision)["probabilities"])
        assert now.sum() == pytest.approx(1.0)
        told += now
        variance += now * (1.0 - now)
    assert (np.abs(counts - told) <= 4.5 * np.sqrt(variance) + 1e-6).all()


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
@pytest.mark.parametrize("held_back", [(), (5,), (0, 1, 3), (0, 1, 2, 3, 4)])
def test_chances_are_those_among_the_admitted(drawn: Drawn, held_back: tuple[int, ...]) -> None:
    rows = [row for row in range(6) if row not in held_back]
    found = propensities(COSTS, tolerance=0.0, slow_start_excluded=held_back, drawn=drawn)
    assert found == pytest.approx(winners(drawn, rows), abs=1e-9)


def test_a_draw_that_is_lost_in_rounding_is_one_among_equals() -> None:
    costs = np.array([1000.0, 1000.0 + 1e-12])
    assert propensities(costs, tolerance=0.0, drawn=Softmax(costs, 0.5e-12)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "drawn", [Softmax(np.zeros(1), 1.0), Pair(np.zeros(1)), Explored(np.zeros(1), 0.1)], ids=repr
)
def test_one_endpoint_is_certain(drawn: Drawn) -> None:
    assert propensities(np.zeros(1), tolerance=0.0, drawn=drawn).tolist() == [1.0]
