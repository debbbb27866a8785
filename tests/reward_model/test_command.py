"""`epp learn` as people run it: offline, as a process that is stopped, and asked for its status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from epp.cli import main
from epp.config.plan import Plan, render_plan
from epp.records.model_files import parse_reward_model
from tests.kit.learning import Recorded

if TYPE_CHECKING:
    from pathlib import Path

QUICK = {
    "network": {"features": ["running_requests", "uncached_tokens", "rtt_ms"], "hidden": [8], "epochs": 4},
    "data": {"first": 60, "every": 40, "recent": 100, "replay": 40},
    "gate": {"held_out": 20, "on": False},  # too little to judge by
}


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "learner.yaml"
    path.write_text(json.dumps(QUICK))
    return path


def test_offline_it_trains_on_records_and_writes_the_last_model_that_passed(
    tmp_path: Path, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Recorded(tmp_path / "records").write(150)
    out = tmp_path / "reward.json"
    words = ["learn", "--offline", str(tmp_path / "records"), "--settings", str(settings_file)]
    assert main([*words, "--model", str(out)]) == 0
    told = capsys.readouterr().out
    assert "round 3: trained on" in told
    assert "effective" in told
    assert "calibration" in told
    model = parse_reward_model(out.read_bytes(), "reward.json")
    assert f"model {model.version} written to" in told
    assert main([*words, "--json"]) == 0
    assert [each["number"] for each in json.loads(capsys.readouterr().out)["rounds"]] == [1, 2, 3]


def test_too_few_records_and_no_records_are_told(
    tmp_path: Path, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["learn", "--settings", str(settings_file), "--offline"]
    assert main([*words, str(tmp_path / "none")]) == 2
    assert "not a folder of records" in capsys.readouterr().err
    Recorded(tmp_path / "records").write(30)
    assert main([*words, str(tmp_path / "records")]) == 2
    assert "30 usable requests of 60" in capsys.readouterr().err


@pytest.mark.parametrize("use_model", [0.0, 1.0])
def test_a_trial_of_before_that_keeps_models_from_deciding_is_told(
    use_model: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "epp.yaml"
    config.write_text(
        "policy: {name: lodestar, model_file: reward.json}\nweights_file: weights.yaml\n"
        "records: {folder: records}\n"
    )
    content = render_plan(Plan(weights={"use_model": use_model}, policy="lodestar"))
    (tmp_path / "weights.yaml").write_bytes(content)
    assert main(["learn", "status", "--config", str(config), "--promotion", "screen"]) == 0
    said = capsys.readouterr().out
    assert "no trial: models decide as soon as they pass the gate" in said
    told = f"{tmp_path / 'weights.yaml'} has use_model: 0, of a trial: the heuristic decides" in said
    assert told == (use_model == 0.0)
