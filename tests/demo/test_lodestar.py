"""The demo of a picker that learns: what it says of its records and results."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from epp.config.load import parse_config
from epp.demo.lodestar import HEURISTIC, SETTINGS, comparison, main, who_decided
from epp.demo.lodestar_fleet import KINDS, LodestarFleet
from epp.learner.settings import LearnerKeys
from epp.replay.load import RequestResult
from epp.replay.workloads.tool_agent import ToolAgent, generate
from epp.sim.engine_class import ENGINE_CLASSES
from epp.sim.scenario import parse_fleet
from tests.kit.envoy import require_envoy
from tests.kit.simrecords import record_simulation

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table


def shown(table: Table) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(table)
    out = console.file
    assert isinstance(out, StringIO)
    return " ".join(out.getvalue().split())


def result(index: int, at_ms: float, ttft_ms: float | None, error: str = "") -> RequestResult:
    return RequestResult(
        index=index,
        session="s",
        user="u",
        intended_ms=at_ms,
        slip_ms=0.0,
        ttft_ms=ttft_ms,
        e2e_ms=1.0,
        itl_ms=None,
        status=200,
        error=error,
    )


def test_halves_stand_side_by_side_and_failures_are_counted() -> None:
    results = [result(0, 0.0, 100.0), result(1, 9_000.0, 300.0), result(2, 9_500.0, None, "reset")]
    text = shown(comparison({HEURISTIC: results}, 10.0))
    assert f"{HEURISTIC} │ 100, 100 │ 300, 300 │ 1" in text


def test_who_decided_is_counted_by_class(tmp_path: Path) -> None:
    load = generate(ToolAgent(duration_s=10.0, rate_rps=6.0, divisor=4), 1)
    record_simulation(tmp_path, load, parse_fleet("a30,v100"), "lodestar")
    text = shown(who_decided(tmp_path))
    assert "no-model" in text
    assert "a30" in text
    assert "v100" in text


def test_the_demo_learns_within_its_own_load_by_what_production_does() -> None:
    usual = LearnerKeys()
    assert SETTINGS.data.first * 2 < 100.0 * 8.0  # of the usual load
    assert SETTINGS.network.hidden == usual.network.hidden
    assert SETTINGS.gate.on
    assert all(kind.engine_class in ENGINE_CLASSES for kind in KINDS)


@pytest.mark.parametrize("policy", [HEURISTIC, "lodestar"])
def test_its_configuration_is_one(policy: str, tmp_path: Path) -> None:
    fleet = LodestarFleet(tmp_path, policy, SETTINGS)
    config = parse_config(fleet._config().encode(), "epp.yaml")
    assert config.policy.name == policy
    assert bool(config.policy.model_file) is fleet.learns is (policy == "lodestar")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("kept")
    assert main(["--out", str(tmp_path)]) == 2
    assert "not the output of a demo" in capsys.readouterr().err
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_load_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_envoy()
    assert main(["--out", str(tmp_path / "out"), "--seconds", "0.001"]) == 2
    assert "the load is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seconds", "nan"], "--seconds and --rate must be above 0"),
        (["--rate", "-1"], "--seconds and --rate must be above 0"),
        (["--seed", "-1"], "--seed must be 0 or more"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_runs(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_envoy()
    assert main(["--out", str(tmp_path / "out"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
