"""A policy that learns while it serves, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from epp.cli import main
from epp.policies.lodestar import Lodestar
from epp_lab.baselines.lodestar_paper import LodestarPaper
from epp_lab.compare.learned import (
    LEARNERS,
    PUBLISHED,
    UNTRIED,
    LearnedSim,
    Learning,
    Lesson,
    run_learned,
)
from epp_lab.reward_model.settings import DataKeys, Gate, LearnerSettings, Network
from epp_lab.sim.fleet import ZERO_WALL_S
from epp_lab.sim.scenario import FleetSpec, parse_fleet
from epp_lab.workloads.tool_agent import ToolAgent, generate

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from epp_lab.sim.results import WindowResult

SETTINGS = LearnerSettings(
    network=Network(hidden=(16,), epochs=8, learning_rate=3e-3, min_class_rows=10),
    data=DataKeys(first=250, every=150, recent=400, replay=200),
    gate=Gate(held_out=60, min_effective=5.0),
)
LOAD = generate(ToolAgent(duration_s=60.0, rate_rps=12.0, divisor=4), 1)
TRAINING_S = 3.0


def pool() -> FleetSpec:
    return replace(parse_fleet("a30*2,v100*3"), scrape_interval_s=0.2)


@cache
def learned() -> tuple[WindowResult, Lesson]:
    return run_learned(LOAD, pool(), Lodestar(), Learning(SETTINGS, TRAINING_S), seed=1)


def test_it_begins_with_the_heuristic_and_goes_on_with_its_own_model() -> None:
    result, lesson = learned()
    assert all(request.ok for request in result.requests)
    first = lesson.rounds[0]
    assert first.seen == SETTINGS.data.first
    began_s = first.at_wall_s - ZERO_WALL_S - 5.0  # a window starts five seconds after its picker
    assert lesson.first_model_s >= began_s + TRAINING_S - 1e-3
    words = [(at_s, code) for at_s, code, _ in lesson.chosen]
    assert {code for at_s, code in words if at_s < lesson.first_model_s} == {1}  # no model
    after = [code for at_s, code in words if at_s >= lesson.first_model_s]
    assert after.count(0) > len(after) / 2
    assert sum(lesson.picks.values()) == len(LOAD)
    assert 0.5 < lesson.share("model") <= 1.0


def test_equal_runs_are_equal() -> None:
    again, lesson = run_learned(LOAD, pool(), Lodestar(), Learning(SETTINGS, TRAINING_S), seed=1)
    result, first = learned()
    assert again.digest() == result.digest()
    assert lesson.picks == first.picks


def test_the_published_learner_has_its_features_and_no_price_and_no_gate() -> None:
    doubtful = Gate(held_out=60, min_effective=1e6, on=PUBLISHED.gate.on)
    network = msgspec.structs.replace(SETTINGS.network, features=PUBLISHED.network.features)
    settings = msgspec.structs.replace(PUBLISHED, network=network, data=SETTINGS.data, gate=doubtful)
    sim = LearnedSim(LOAD, pool(), LodestarPaper(), Learning(settings, TRAINING_S), seed=1)
    sim.run()
    assert sim.lesson.passed == len(sim.lesson.rounds) > 1
    assert sim.lesson.picks["model"] > 50
    assert sim.learner.incumbent is not None
    assert sim.learner.incumbent.congestion_ms == 0.0
    assert not {"rtt_ms", "body_bytes", "uncached_tokens"} & set(sim.learner.incumbent.features)


def test_a_comparison_says_what_was_learned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = msgspec.structs.replace(UNTRIED, data=DataKeys(first=200, every=200))
    monkeypatch.setitem(LEARNERS, Lodestar.name, soon)
    words = (
        "lab compare --workload toolagent-like --fleet a30*2,v100*3 --policy lodestar,prefix-cache-and-load"
    )
    words += " --seconds 25 --warmup 5 --seeds 1 --workers 1 --out"
    assert main([*words.split(), str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Against lodestar" in text
    assert "lodestar learned within each run: of" in text
    assert "lodestar learned within" in (tmp_path / "report.html").read_text()
