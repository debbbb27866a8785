"""Policies in shadow: they score what was decided, disturb nobody and decide nothing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from epp.errors import ConfigError
from epp.policies.lodestar import Lodestar
from epp.policies.random import Random
from epp.policies.registry import create
from epp.schedule.rerun import rerun
from epp.server.shadow import Shadow, quiet, shadows
from tests.kit.fleets import register
from tests.kit.logs import own_lines
from tests.kit.records import ask_of, decided, picker_of
from tests.kit.reward_models import linear_model
from tests.server.test_reward_model import app, ask, metrics, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epp.types import Ranking, RequestView, Snapshot


def shadow(*names: str, **options: Any) -> Shadow:
    return Shadow([create(name) for name in names], **options)


def counts(scoring: Shadow, policy: str) -> tuple[int, int, int]:
    """Decisions on which a policy agreed, differed and failed."""
    (found,) = (account.counts for account in scoring.accounts if account.policy.name == policy)
    return found["agreed"], found["differed"], found["failed"]


def difference_s(scoring: Shadow, policy: str, judge: str) -> float:
    (found,) = (account.difference_s for account in scoring.accounts if account.policy.name == policy)
    return found[judge]


def test_the_policy_that_decides_agrees_with_itself() -> None:
    scoring = shadow("gorgo", "random")
    for decision, _ in decided(60, "gorgo"):
        scoring.score(decision)
    assert counts(scoring, "gorgo") == (60, 0, 0)
    assert difference_s(scoring, "gorgo", "gorgo-ms") == 0.0
    assert 0 < counts(scoring, "random")[0] < 60
    assert difference_s(scoring, "random", "gorgo-ms") > 0.0


@pytest.mark.parametrize("live", ["gorgo", "least-request"])
@pytest.mark.parametrize("name", ["gorgo", "laar", "llm-d", "lmetric", "mooncake"])
def test_a_policy_in_shadow_picks_what_it_would_have_picked(live: str, name: str) -> None:
    """Ties among them: each policy has its own word on what is equal."""
    for number in range(20):
        decisions = {
            policy: picker_of(policy, prefix=f"{number}", tie_band=1.0).pick(ask_of(number), 0.0, 0.0)
            for policy in (live, name)
        }
        again = rerun(decisions[live], create(name), 1.0)
        assert (again.chosen, again.tie_band) == (decisions[name].chosen, decisions[name].tie_band)


def test_the_reward_model_judges_where_it_knows_both() -> None:
    model = linear_model({"rtt_ms": 2.0}, low={"rtt_ms": 10.0}, high={"rtt_ms": 42.0})
    far = linear_model({"rtt_ms": -1.0})
    decision = picker_of("gorgo").pick(ask_of(1), 0.0, 0.0)
    assert decision.chosen == 0  # 20 ms away
    for judge, policy, seconds in (
        ("model", Lodestar(linear_model({"rtt_ms": -1.0}, high={"rtt_ms": 42.0}, low={"rtt_ms": 0.0})), 0.04),
        ("gorgo-ms", Lodestar(far), None),
    ):
        scoring = Shadow([policy], lambda: model)
        scoring.score(decision)
        difference = difference_s(scoring, "lodestar", judge)
        if seconds is not None:
            assert difference == pytest.approx(seconds)
        else:
            assert difference > 0.0  # 60 ms away: the model does not know such a place


@dataclass(frozen=True, slots=True)
class Broken(Random):
    name: ClassVar[str] = "broken"

    def rank(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int) -> Ranking:
        raise ZeroDivisionError(request, fleet, weights, seed)


def test_a_policy_that_fails_is_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register(monkeypatch, Broken)
    scoring = shadow("broken", "gorgo")
    with caplog.at_level(logging.ERROR):
        for decision, _ in decided(5):
            scoring.score(decision)
    assert counts(scoring, "broken") == (0, 0, 5)
    assert sum(counts(scoring, "gorgo")[:2]) == 5
    assert "".join(own_lines(caplog)).count("Traceback") == 1


def test_a_judge_that_fails_spoils_no_score() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    scoring = shadow("gorgo", model=broken)
    scoring.score(decided(1)[0][0])
    assert counts(scoring, "gorgo")[0] == 1


async def test_a_burst_is_sampled_the_newest_first_and_requests_only_take_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epp.server.shadow.PER_S", 1000.0)
    scoring = shadow("gorgo")
    decisions = [decision for decision, _ in decided(100)]
    for decision in decisions:
        scoring.decided(decision)
    assert sum(counts(scoring, "gorgo")) == 0
    running = asyncio.get_running_loop().create_task(scoring.run())
    async with asyncio.timeout(30.0):
        while sum(counts(scoring, "gorgo")) < 8:
            await asyncio.sleep(0.005)
    for _ in range(20):
        await asyncio.sleep(0.002)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sum(counts(scoring, "gorgo")) == 8


def test_exploration_is_nobodys_opinion() -> None:
    scoring = shadow("gorgo")
    picker = picker_of("lodestar")
    picker.replace_policy(Lodestar(explore=1.0))
    scoring.decided(picker.pick(ask_of(1), 0.0, 0.0))
    assert not scoring._waiting
    assert quiet(Lodestar()) == Lodestar(explore=0.0)
    assert quiet(create("gorgo")) == create("gorgo")


@pytest.mark.parametrize(
    ("names", "key"), [(["gorgo", "gorg"], "shadow[1]"), (["gorgo", "random", "gorgo"], "shadow[2]")]
)
def test_a_list_that_cannot_be_is_refused_by_its_place(names: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shadows(names, "epp.yaml")
    assert (caught.value.source, caught.value.key) == ("epp.yaml", key)


def test_a_model_can_stand_in_shadow_of_another_policy(tmp_path: Path) -> None:
    policy = {"name": "gorgo", "model_file": "reward.json"}
    made = app(tmp_path, policy=policy, shadow=["lodestar", "prefix-cache-and-load"])
    write(made, tmp_path, linear_model({"rtt_ms": -1.0}))
    decision = ask(made)
    assert decision.policy == "gorgo"
    shadowing = made._learning._shadow
    assert shadowing._tie_band == 0.01
    shadowing.score(decision)
    found = metrics(made)
    assert found["epp_shadow_decisions_total", "lodestar", "differed"] == 1.0
    # By the model's own word its pick, 200 ms away, is 190 ms faster than the one 10 ms away.
    difference = found["epp_shadow_estimated_difference_seconds", "lodestar", "model"]
    assert difference == pytest.approx(-0.19)
    assert np.isfinite(found["epp_shadow_estimated_difference_seconds", "prefix-cache-and-load", "model"])
