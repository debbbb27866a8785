"""What every policy owes, whatever its formula: proved over the registry, so a new one is held to it too."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.policies.base import Policy
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.lodestar import Lodestar
from epp.policies.registry import POLICIES, create
from epp.types import NUMERIC_COLUMNS
from tests.kit.fleets import (
    copied,
    fleet_view,
    fleets,
    permuted,
    plausible_fleets,
    request,
    requests,
    with_unknown,
)
from tests.kit.reward_models import WIDE, linear_model

if TYPE_CHECKING:
    from epp.types import Ranking, RequestView, Snapshot

#: A learned policy is another one with a model: once without (its entry in the registry), once with.
WITH_MODEL = Lodestar(
    model=linear_model(
        {"running_requests": 3.0, "engine_waiting": -2.0, "uncached_tokens": 0.25, "rtt_ms": 1.0},
        low={"uncached_tokens": 1500.0},
        high={"uncached_tokens": 3000.0},
    ),
    near_best=0.0,
)
every_policy = pytest.mark.parametrize(
    "policy",
    [*(create(name) for name in POLICIES), WITH_MODEL],
    ids=lambda p: f"{p.name} with a model" if p is WITH_MODEL else p.name,
)

#: Turn over the order given: the only policies whose answer depends on it.
ORDERED = {"round-robin", "session-affinity-hash256"}
FILLABLE = (
    "rtt_ms",
    "engine_running",
    "engine_waiting",
    "engine_kv_usage",
    "engine_used_tokens",
    "engine_age_ms",
)


def is_sum(policy: Policy) -> bool:
    """Whether the cost is the sum of the terms."""
    kind = type(policy)
    return kind.combine is Policy.combine and kind.rank in (Policy.rank, GorgoMs.rank)


def rank(policy: Policy, ask: RequestView, fleet: Snapshot, seed: int = 7) -> Ranking:
    return policy.rank(ask, fleet, policy.default_weights(), seed)


def last_bits(policy: Policy, fleet: Snapshot) -> float:
    """How far apart two costs may be that are equal: a product of matrices adds up differently by place."""
    if policy is not WITH_MODEL:
        return 0.0
    largest = max(float(getattr(fleet, name).max()) for name in NUMERIC_COLUMNS)
    return 1e-5 * min(max(largest, 1.0), 4.0 * WIDE)  # inputs are clipped to the bounds


@every_policy
@settings(max_examples=30)
@given(ask=requests(), fleet=fleets(), seed=st.integers(0, 2**64 - 1))
def test_every_endpoint_gets_a_finite_cost(
    policy: Policy, ask: RequestView, fleet: Snapshot, seed: int
) -> None:
    ranking = rank(policy, ask, fleet, seed)
    assert ranking.costs.shape == (len(fleet),)
    assert ranking.costs.dtype == np.float64
    assert np.isfinite(ranking.costs).all()
    assert ranking.terms
    for name, term in ranking.terms.items():
        assert term.shape == (len(fleet),), name
        assert np.isfinite(term).all(), name


@every_policy
@settings(max_examples=30)
@given(ask=requests(), fleet=fleets())
def test_same_inputs_same_answer_and_inputs_untouched(
    policy: Policy, ask: RequestView, fleet: Snapshot
) -> None:
    before = copied(fleet)
    weights = policy.default_weights()
    first = policy.rank(ask, fleet, weights, 3)
    again = policy.rank(ask, fleet, weights, 3)
    assert first.costs.tolist() == again.costs.tolist()
    assert weights == policy.default_weights()
    for name, column in before.items():
        assert getattr(fleet, name).tolist() == column.tolist(), name


@every_policy
@settings(max_examples=30)
@given(ask=requests(), fleet=fleets(min_size=2), data=st.data())
def test_the_order_of_endpoints_decides_nothing(
    policy: Policy, ask: RequestView, fleet: Snapshot, data: st.DataObject
) -> None:
    if policy.name in ORDERED:
        return
    order = data.draw(st.permutations(range(len(fleet))))
    straight = rank(policy, ask, fleet).costs
    turned = rank(policy, ask, permuted(fleet, order)).costs
    np.testing.assert_allclose(turned, straight[list(order)], rtol=0.0, atol=last_bits(policy, fleet))


@every_policy
@settings(max_examples=30)
@given(ask=requests(), fleet=fleets())
def test_terms_that_are_not_combined_otherwise_sum_to_the_cost(
    policy: Policy, ask: RequestView, fleet: Snapshot
) -> None:
    ranking = rank(policy, ask, fleet)
    if is_sum(policy):
        total = sum(ranking.terms.values())
        np.testing.assert_allclose(total, ranking.costs, rtol=1e-12)


@every_policy
@settings(max_examples=30)
@given(ask=requests(), fleet=fleets(min_size=2), data=st.data())
def test_a_value_not_known_never_makes_an_endpoint_cheaper(
    policy: Policy, ask: RequestView, fleet: Snapshot, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(fleet) - 1))
    column = data.draw(st.sampled_from(FILLABLE))
    values = getattr(fleet, column)
    others = [value for i, value in enumerate(values) if i != index]
    # The true value of the silent endpoint is any that some candidate could have shown.
    values[index] = data.draw(st.sampled_from(others))
    known = rank(policy, ask, fleet).costs
    filled = rank(policy, ask, with_unknown(fleet, column, index)).costs
    slack = last_bits(policy, fleet)
    assert filled[index] >= known[index] - slack
    if is_sum(policy):
        assert np.delete(filled, index).tolist() == np.delete(known, index).tolist()
    # Costs that are places move with each other; what counts is who stands before whom.
    assert (filled < filled[index] + slack).sum() >= (known < known[index] - slack).sum()


@every_policy
@pytest.mark.parametrize("count", [1, 1000])
def test_any_size_of_fleet(policy: Policy, count: int) -> None:
    ask = request(affinity_key="s", prefix_key="p", prompt_tokens=4000, sequence=12345)
    costs = rank(policy, ask, fleet_view(count)).costs
    assert np.isfinite(costs).all()
    assert len(costs) == count


@every_policy
def test_every_weight_moves_some_cost_and_holds_at_its_bounds(policy: Policy) -> None:
    seen = plausible_fleets(60)
    ask = request(
        affinity_key="s",
        prefix_key="p",
        prompt_tokens=4000,
        expected_output_tokens=100.0,
        tried_models=("m-1",),
    )
    for name, spec in policy.weight_specs.items():
        if name == "use_model" and policy is not WITH_MODEL:
            continue  # there is none to use
        answers = set()
        for value in (spec.low, spec.default, spec.high):
            weights = {**policy.default_weights(), name: value}
            costs = [policy.rank(ask, fleet, weights, 1).costs for fleet in seen]
            assert all(np.isfinite(column).all() for column in costs), name
            answers.add(tuple(tuple(column.tolist()) for column in costs))
        assert len(answers) > 1, f"{name} does nothing"


@every_policy
def test_weights_that_a_policy_does_not_name_mean_nothing_to_it(policy: Policy) -> None:
    fleet = fleet_view(3, rtt_ms=[1, 2, 3], uncached_tokens=[5, 0, 1], queued_tokens=[0, 9, 0])
    more = {**policy.default_weights(), "rtt_wieght": 99.0}
    ask = request(affinity_key="s")
    assert policy.rank(ask, fleet, more, 1).costs.tolist() == rank(policy, ask, fleet, 1).costs.tolist()


@every_policy
def test_weights_have_defaults_within_bounds_and_words(policy: Policy) -> None:
    for name, spec in policy.weight_specs.items():
        assert spec.low <= spec.default <= spec.high, name
        assert spec.help, name


@every_policy
def test_a_policy_cannot_be_changed(policy: Policy) -> None:
    assert is_dataclass(policy)
    for field in fields(policy):
        with pytest.raises(FrozenInstanceError):
            setattr(policy, field.name, None)
    with pytest.raises(TypeError):
        policy.weight_specs["x"] = None


@every_policy
def test_the_name_is_the_one_in_the_registry(policy: Policy) -> None:
    assert POLICIES[policy.name].load() is type(policy)
