"""Every policy of the registry keeps the contract, so a new one is held to it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from epp.policies.base import Policy
from epp.policies.contract import breaches
from epp.policies.lodestar import Lodestar
from epp.policies.registry import POLICIES, create
from epp_lab.baselines.lodestar_paper import LodestarPaper
from tests.kit.reward_models import linear_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms
    from epp.types import RequestInfo, Snapshot

#: A learned policy is another one with a model: once without (its entry in the registry), once with.
MODEL = linear_model(
    {"running_requests": 3.0, "engine_waiting": -2.0, "uncached_tokens": 0.25, "rtt_ms": 1.0},
    low={"uncached_tokens": 1500.0},
    high={"uncached_tokens": 3000.0},
)
WITH_MODEL = (Lodestar(MODEL, near_best=0.0), LodestarPaper(MODEL))
#: Turn over the order given: the only policies whose answer depends on it.
ORDERED = {"round-robin", "session-affinity-hash256"}
#: There is none to use without a model.
IDLE = {name: {"weight use_model does nothing"} for name in ("lodestar", "lodestar-paper")}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_keeps_the_contract(name: str) -> None:
    assert set(breaches(create(name), in_order=name in ORDERED)) == IDLE.get(name, set())


@pytest.mark.parametrize("policy", WITH_MODEL, ids=lambda policy: policy.name)
def test_a_learned_policy_keeps_the_contract(policy: Lodestar) -> None:
    assert set(breaches(policy, tolerance=1e-5)) <= IDLE[policy.name]


class Wrong(Policy):
    name = "wrong"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Mapping[str, float]) -> Terms:  # noqa: ARG002
        return {"rtt": -snapshot.rtt_ms, "place": np.arange(len(snapshot), dtype=np.float64)}


def test_what_is_wrong_is_told() -> None:
    assert set(breaches(Wrong())) == {
        "the order of the endpoints decides",
        "a value that is not known makes an endpoint cheaper",
    }
