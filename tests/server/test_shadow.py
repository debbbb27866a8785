"""Policies in shadow: they score what was decided, disturb nobody and decide nothing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from epp.feeds.learned import Shadow
from epp.policies.balancing import Random
from epp.policies.registry import create
from tests.kit.fleets import register
from tests.kit.logs import own_lines
from tests.kit.records import decided
from tests.kit.reward_models import linear_model
from tests.server.test_reward_model import app, decision_of, metrics, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from epp.types import Ranking, RequestInfo, Snapshot


def shadow(*names: str, **options: Any) -> Shadow:
    return Shadow([create(name) for name in names], **options)


def counts(scoring: Shadow, policy: str) -> tuple[int, int, int]:
    """Decisions on which a policy agreed, differed and failed."""
    (found,) = (account.counts for account in scoring.accounts if account.policy.name == policy)
    return found["agreed"], found["differed"], found["failed"]


@dataclass(frozen=True, slots=True)
class Broken(Random):
    name: ClassVar[str] = "broken"

    def rank(
        self, request: RequestInfo, snapshot: Snapshot, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        raise ZeroDivisionError(request, snapshot, weights, seed)


async def test_a_policy_that_fails_is_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register(monkeypatch, Broken)
    scoring = shadow("broken", "gorgo")
    with caplog.at_level(logging.ERROR):
        for decision, _ in decided(5):
            await scoring.score(decision)
    assert counts(scoring, "broken") == (0, 0, 5)
    assert sum(counts(scoring, "gorgo")[:2]) == 5
    assert "".join(own_lines(caplog)).count("Traceback") == 1


async def test_a_burst_is_sampled_the_newest_first_and_requests_only_take_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epp.feeds.learned.SHADOW_PER_S", 1000.0)
    scoring = shadow("gorgo")
    decisions = [decision for decision, _ in decided(100)]
    for decision in decisions:
        scoring.decided(decision)
    assert sum(counts(scoring, "gorgo")) == 0
    running = asyncio.get_running_loop().create_task(scoring.run())
    async with asyncio.timeout(240):
        while sum(counts(scoring, "gorgo")) < 8:
            await asyncio.sleep(0.005)
    for _ in range(20):
        await asyncio.sleep(0.002)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sum(counts(scoring, "gorgo")) == 8


async def test_a_model_can_stand_in_shadow_of_another_policy(tmp_path: Path) -> None:
    policy = {"name": "gorgo", "model_file": "reward.json"}
    made = app(tmp_path, policy=policy, shadow=["lodestar", "prefix-cache-and-load"])
    write(made, tmp_path, linear_model({"rtt_ms": -1.0}))
    decision = decision_of(made)
    assert decision.policy == "gorgo"
    assert made._learning is not None
    shadowing = made._learning.shadow
    assert shadowing._tolerance == 0.01
    await shadowing.score(decision)
    found = metrics(made)
    assert found["epp_shadow_decisions_total", "lodestar", "differed"] == 1.0
    assert found["epp_shadow_estimated_difference_seconds", "lodestar"] > 0.1, "its pick is 190 ms farther"
    assert np.isfinite(found["epp_shadow_estimated_difference_seconds", "prefix-cache-and-load"])
