"""Hard bounds of the tuner, over all policies."""

from __future__ import annotations

import pytest

from epp.policies.registry import POLICIES, create
from epp.tuner.bounds import HARD, tuner_bounds

#: Weights by which a policy sees how busy an endpoint is; at 0 it goes to the nearest, or to whoever has the prefix.
QUEUES = {
    "queue_weight",
    "queued_weight",
    "queue_ms_per_token",
    "waiting_weight",
    "alpha",
    "decode_ms_per_request",
}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_tuner_may_take_the_queue_out_of_a_policy(name: str) -> None:
    specs = create(name, {}, source="test").weight_specs
    bounds = {weight: (spec.low, spec.high) for weight, spec in specs.items()}
    allowed = tuner_bounds(name, bounds)
    assert set(HARD.get(name, {})) <= set(specs)
    for weight, spec in specs.items():
        low, high = allowed[weight]
        assert spec.low <= low <= spec.default <= high <= spec.high
        if weight in QUEUES:
            assert low >= 0.08 * spec.default
