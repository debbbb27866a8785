"""laar and laar-paper: what a wrong answer costs, and whom a retry goes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epp.policies.gorgo_ms import GorgoMs
from epp.policies.laar import Laar
from epp.policies.laar_paper import LaarPaper
from epp.view import length_bucket
from tests.kit.fleets import default_weights, fleet_view, plausible_fleets, request

BOTH = pytest.mark.parametrize("policy", [Laar(), LaarPaper()], ids=lambda policy: policy.name)


def order(policy: Any, fleet: Any, **asked: Any) -> list[int]:
    ask = request(**{"prompt_tokens": 4000, "expected_output_tokens": 40.0} | asked)
    costs = policy.rank(ask, fleet, default_weights(policy), 0).costs
    found: list[int] = np.argsort(costs, kind="stable").tolist()
    return found


@BOTH
def test_tried_models_come_last_whatever_their_price_and_keep_their_order(policy: Any) -> None:
    for fleet in plausible_fleets(40):
        fresh = order(policy, fleet)
        for tried in (["m-0"], ["m-1", "m-3"], ["m-0", "m-1", "m-2", "m-3"]):
            again = order(policy, fleet, tried_models=tuple(tried))
            failed = {int(name[-1]) for name in tried}
            assert again == [i for i in fresh if i not in failed] + [i for i in fresh if i in failed]


@BOTH
def test_names_that_no_endpoint_has_change_nothing(policy: Any) -> None:
    for fleet in plausible_fleets(10):
        assert order(policy, fleet, tried_models=("gpt-17", "")) == order(policy, fleet)


@BOTH
def test_every_replica_of_a_tried_model_is_a_tried_one(policy: Any) -> None:
    fleet = fleet_view(3, models=("a", "a", "b"), decode_base_ms=[1, 1, 9], prefill_ms_per_token=[1, 1, 9])
    assert order(policy, fleet)[-1] == 2
    assert order(policy, fleet, tried_models=("a",))[0] == 2


def test_without_chances_laar_is_gorgo_ms() -> None:
    for fleet in plausible_fleets(10):
        even = fleet_view(
            4,
            **{name: getattr(fleet, name) for name in ("rtt_ms", "uncached_tokens", "running_requests")},
            prefill_ms_per_token=fleet.prefill_ms_per_token,
        )
        ask = request(prompt_tokens=4000)
        weights = default_weights(Laar())
        ours = Laar().rank(ask, even, weights, 0)
        plain = GorgoMs().rank(ask, even, weights, 0)
        assert ours.costs.tolist() == plain.costs.tolist()


def test_laar_divides_every_term_by_the_chance() -> None:
    for fleet in plausible_fleets(10):
        ask = request(prompt_tokens=4000, expected_output_tokens=40.0)
        ranking = Laar().rank(ask, fleet, default_weights(Laar()), 0)
        time = sum(ranking.terms[name] for name in GorgoMs.additive_terms)
        assert ranking.costs == pytest.approx(time / fleet.success)


def test_a_cached_prompt_is_worth_a_less_likely_model() -> None:
    columns: dict[str, Any] = {"prefill_ms_per_token": [0.1, 0.1], "success": [0.8, 0.5]}
    cold = fleet_view(2, uncached_tokens=[64_000, 64_000], **columns)
    warm = fleet_view(2, uncached_tokens=[64_000, 4_000], cached_tokens=[0, 60_000], **columns)
    assert order(Laar(), cold, prompt_tokens=64_000)[0] == 0
    assert order(Laar(), warm, prompt_tokens=64_000)[0] == 1


@pytest.mark.parametrize("policy", [Laar, LaarPaper])
@pytest.mark.parametrize("least", [0.0, 1.5, "x"])
def test_a_least_chance_must_be_one(policy: Any, least: Any) -> None:
    with pytest.raises(ValueError, match="least_success"):
        policy(least_success=least)


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [
        (0, 1024),
        (1024, 1024),
        (1449, 2048),
        (2896, 2048),
        (2897, 4096),
        (4500, 4096),
        (5793, 8192),
        (65_000, 65_536),
    ],
)
def test_length_buckets_are_the_nearest_power_of_two(tokens: int, bucket: int) -> None:
    assert length_bucket(tokens) == bucket
    assert length_bucket(10**30) == 1 << 30
