"""Weights rehearsed on a deployment's records, and policies tuned before they are compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.kit import run

#: 627 requests that were served by weights far from what is good there.
RECORDS = Path(__file__).with_name("data") / "deployment"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configure the policy of the records with narrow bounds, one weight pinned by the operator."""
    file = tmp_path / "epp.yaml"
    section = {"name": "gorgo", "bounds": {"rtt_weight": [0.5, 2.0]}}
    names = {"weights_file": "weights.yaml", "overrides_file": "overrides.yaml"}
    file.write_text(json.dumps({"policy": section, **names}), encoding="utf-8")
    pinned = json.dumps({"weights": {"queue_weight": 0.4}})
    (tmp_path / "overrides.yaml").write_text(pinned, encoding="utf-8")
    return file


def rehearsed(*words: str) -> Any:
    """Rehearse a little; what is printed as JSON."""
    return json.loads(run("tune", "--offline", str(RECORDS), "--budget", "4", "--json", *words))


def test_a_rehearsal_says_what_it_simulated_and_what_it_would_try() -> None:
    printed = run("tune", "--offline", str(RECORDS), "--budget", "4")
    for words in ("simulated fleet: ", "recorded; E2E", "rtt_weight: 2 -> ", "would "):
        assert words in printed


def test_a_rehearsal_keeps_to_bounds_and_pins_repeats_and_writes_nothing(config: Path) -> None:
    before = sorted(path.name for path in config.parent.iterdir())
    first, again = rehearsed("--config", str(config)), rehearsed("--config", str(config))
    assert first == again
    assert first["best"]["queue_weight"] == 0.4
    assert 0.5 <= first["best"]["rtt_weight"] <= 2.0
    assert sorted(path.name for path in config.parent.iterdir()) == before


def test_too_few_records_are_no_rehearsal(tmp_path: Path) -> None:
    copied = tmp_path / "records"
    shutil.copytree(RECORDS.with_name("records"), copied)
    printed = run("tune", "--offline", str(copied), status=2)
    assert "not enough evidence (" in printed
    assert "of 400 requests)" in printed


def test_a_rehearsal_goes_with_no_other_action(config: Path) -> None:
    printed = run("tune", "status", "--offline", str(RECORDS), "--config", str(config), status=2)
    assert "--offline" in printed


def test_policies_are_tuned_under_one_budget_before_they_are_compared(tmp_path: Path) -> None:
    run(
        *(
            "lab",
            "compare",
            "--workload",
            "demo",
            "--seconds",
            "40",
            "--warmup",
            "0",
            "--tune",
            "4",
            "--seeds",
            "1",
        ),
        *("--policy", "gorgo,round-robin", "--workers", "1", "--out", str(tmp_path)),
    )
    (tuned,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["cells"][0]["tuning"]
    assert (tuned["policy"], tuned["tried"]) == ("gorgo", 4)
    assert tuned["objective"] <= tuned["objective_at_defaults"]
