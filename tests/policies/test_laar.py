"""laar and laar-paper: what a wrong answer costs, and whom a retry goes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epp.policies.gorgo_ms import GorgoMs
from epp.policies.laar import Laar
from epp.types import length_bucket
from epp_lab.baselines.laar_paper import LaarPaper
from tests.kit.fleets import fleet_view, plausible_fleets, request

BOTH = pytest.mark.parametrize("policy", [Laar(), LaarPaper()], ids=lambda policy: policy.name)


def order(policy: Any, fleet: Any, **asked: Any) -> list[int]:
    ask = request(**{"prompt_tokens": 4000, "expected_output_tokens": 40.0} | asked)
    costs = policy.rank(ask, fleet, policy.default_weights(), 0).costs
    found: list[int] = np.argsort(costs, kind="stable").tolist()
    return found


@BOTH
def test_tried_models_come_last_whatever_their_price(policy: Any) -> None:
    for snapshot in plausible_fleets(40):
        for tried in (["m-0"], ["m-1", "m-3"], ["m-0", "m-1", "m-2"]):
            again = order(policy, snapshot, tried_models=tuple(tried))
            failed = {int(name[-1]) for name in tried}
            assert set(again[-len(failed) :]) == failed
        everybody = ("m-0", "m-1", "m-2", "m-3")
        assert order(policy, snapshot, tried_models=everybody) == order(policy, snapshot)


def test_without_chances_laar_is_gorgo_ms() -> None:
    for snapshot in plausible_fleets(10):
        even = fleet_view(
            4,
            **{name: getattr(snapshot, name) for name in ("rtt_ms", "uncached_tokens", "running_requests")},
            prefill_ms_per_token=snapshot.prefill_ms_per_token,
        )
        ask = request(prompt_tokens=4000)
        weights = Laar.default_weights()
        ours = Laar().rank(ask, even, weights, 0)
        plain = GorgoMs().rank(ask, even, weights, 0)
        assert ours.costs.tolist() == plain.costs.tolist()


def test_laar_adds_what_a_wrong_answer_costs() -> None:
    for snapshot in plausible_fleets(10):
        ask = request(prompt_tokens=4000, expected_output_tokens=40.0, tried_models=("m-1",))
        weights = {**Laar.default_weights(), "tried_penalty": 1.0}
        terms = Laar().rank(ask, snapshot, weights, 0).terms
        ranking = Laar().rank(ask, snapshot, {**weights, "retry_weight": 3.0, "tried_penalty": 100.0}, 0)
        own = terms["network"] + terms["prefill"] + terms["decode"]
        again = min((own / snapshot.success)[[0, 2, 3]])
        costs = own + terms["waiting"] + terms["stall"] + 3.0 * again * (1.0 - snapshot.success)
        assert ranking.costs == pytest.approx(costs * [1.0, 100.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("patience_s", "worth"), [(60.0, [1, 1, 0]), (10.0, [1, 0, 0]), (1.0, [0, 0, 0]), (0.0, [1, 1, 1])]
)
def test_a_retry_is_worth_it_while_a_right_answer_takes_less_than_ones_patience(
    patience_s: float, worth: list[int]
) -> None:
    snapshot = fleet_view(
        3,
        rtt_ms=[0, 0, 0],
        uncached_tokens=[64_000] * 3,
        pending_uncached_tokens=[10**6] * 3,  # queues pass
        prefill_ms_per_token=[0.1] * 3,
        success=[0.9, 0.2, 0.05],
    )
    ask = request(prompt_tokens=64_000, expected_output_tokens=0.0)
    policy = Laar(patience_s=patience_s)
    terms = policy.rank(ask, snapshot, policy.default_weights(), 0).terms
    assert terms["worth"].tolist() == worth


@pytest.mark.parametrize(
    ("reach", "tried", "worth"),
    [
        (0.85, (), [1, 1, 0, 0]),  # 0.4, then 0.58 of 0.62
        (0.85, ("a",), [0, 1, 0, 0]),
        (0.85, ("a", "b"), [0, 0, 0, 0]),
        (0.85, ("c",), [1, 1, 0, 0]),
        (0.6, (), [1, 0, 0, 0]),
        (0.95, (), [1, 1, 1, 1]),  # every replica of a model
        (0.0, (), [0, 0, 0, 0]),
        (0.85, ("gpt-17",), [1, 1, 0, 0]),
    ],
)
def test_beyond_ones_patience_models_are_worth_it_until_most_of_the_chance_was_asked_for(
    reach: float, tried: tuple[str, ...], worth: list[int]
) -> None:
    snapshot = fleet_view(
        4,
        rtt_ms=[0] * 4,
        uncached_tokens=[64_000] * 4,
        prefill_ms_per_token=[0.1] * 4,
        success=[0.4, 0.3, 0.1, 0.1],
        models=("a", "b", "c", "c"),
    )
    ask = request(prompt_tokens=64_000, expected_output_tokens=0.0, tried_models=tried)
    policy = Laar(patience_s=1.0, reach=reach)
    terms = policy.rank(ask, snapshot, policy.default_weights(), 0).terms
    assert terms["worth"].tolist() == worth
    quick = Laar(patience_s=25.0, reach=reach)  # 6.4 s over 0.3
    first, second = quick.rank(ask, snapshot, quick.default_weights(), 0).terms["worth"][:2].tolist()
    assert (first, second) == (1, 1)


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
