"""What a request takes from others is part of its cost, at the model's price."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from epp.policies.lodestar import Lodestar
from tests.kit.fleets import fleet_view, request
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from epp.types import Ranking, Snapshot


def ranked(policy: Lodestar, fleet: Snapshot) -> Ranking:
    return policy.rank(ASK, fleet, policy.default_weights(), 7)


ASK = request(prompt_tokens=1000)
FLEET = fleet_view(2, running_requests=[3, 1], uncached_tokens=[100, 1000])
WEIGHTS = {"running_requests": 10.0, "uncached_tokens": 0.0}


def test_what_a_request_takes_from_others_is_paid_beside_its_own_latency() -> None:
    model = linear_model(WEIGHTS, congestion_ms=0.05)
    ranking = ranked(Lodestar(model, explore=0.0), FLEET)
    assert ranking.terms["predicted_ms"].tolist() == [30.0, 10.0]
    assert ranking.terms["congestion_ms"].tolist() == pytest.approx([5.0, 50.0])
    assert ranking.costs.tolist() == pytest.approx([35.0, 60.0])


def test_without_a_price_the_best_for_the_request_alone_is_picked() -> None:
    ranking = ranked(Lodestar(linear_model(WEIGHTS), explore=0.0), FLEET)
    assert ranking.costs.tolist() == [30.0, 10.0]
    assert "congestion_ms" not in ranking.terms


@pytest.mark.parametrize(("weights", "price"), [({"rtt_ms": 1.0}, 1.0), (WEIGHTS, -1.0), (WEIGHTS, math.nan)])
def test_a_price_that_means_nothing_is_refused(weights: dict[str, float], price: float) -> None:
    with pytest.raises(ValueError, match="congestion_ms"):
        linear_model(weights, congestion_ms=price)
