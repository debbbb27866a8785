"""Decisions of a learned model on file: run again with the versions that are kept, told to people, trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from epp.errors import EppError
from epp.policies.lodestar import Lodestar
from epp.records.model_files import ModelVersions, dump_reward_model, version_path
from epp.records.verify import verify
from epp.schedule.model_watch import WINDOW, ModelWatch
from tests.kit.records import ask_of, command, decided, explained, picker_of, record_all, through_json
from tests.kit.reward_models import linear_model, random_model

if TYPE_CHECKING:
    from pathlib import Path

    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision

MODEL = random_model(4)
OTHER = random_model(5)


def learned(model: RewardModel, count: int = 12, **fields: Any) -> list[Decision]:
    """Decisions of a picker that has such a model from the start."""
    scheduler = picker_of("lodestar")
    scheduler.replace_policy(Lodestar(model, **fields))
    return [scheduler.decide(ask_of(index % 4, 40 + index), float(index), 1e9) for index in range(count)]


def keep(folder: Path, *models: RewardModel) -> None:
    folder.mkdir(exist_ok=True)
    for model in models:
        version_path(folder / "reward.json", model.version).write_bytes(dump_reward_model(model))


def test_run_again_with_the_version_that_decided(tmp_path: Path) -> None:
    keep(tmp_path, MODEL, OTHER)
    records = [through_json(d) for model in (MODEL, OTHER) for d in learned(model, explore=0.3)]
    verdict = verify(records, ModelVersions([tmp_path]))
    assert (verdict.identical, verdict.differences, verdict.models_gone) == (24, [], {})


def test_a_model_that_is_gone_is_no_difference(tmp_path: Path) -> None:
    keep(tmp_path, MODEL)
    version_path(tmp_path / "reward.json", OTHER.version).write_bytes(b"torn")
    records = [through_json(d) for model in (MODEL, OTHER) for d in learned(model)]
    verdict = verify(records, ModelVersions([tmp_path / "nowhere", tmp_path]))
    assert (verdict.identical, verdict.differences) == (12, [])
    assert verdict.models_gone == {OTHER.version: 12}


def test_a_file_that_says_another_version_is_not_it(tmp_path: Path) -> None:
    version_path(tmp_path / "reward.json", OTHER.version).write_bytes(dump_reward_model(MODEL))
    assert ModelVersions([tmp_path]).get(OTHER.version) is None
    assert ModelVersions([tmp_path]).get("../../etc/passwd") is None


def test_the_command_finds_the_versions_above_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ask_of(1)
    record_all(tmp_path / "records", [(d, ask) for model in (MODEL, OTHER) for d in learned(model)])
    with pytest.raises(EppError, match="nothing was verified"):
        command("records", "verify", tmp_path / "records")
    keep(tmp_path / "models", MODEL)
    assert command("records", "verify", tmp_path / "records") == 0
    out = capsys.readouterr().out
    assert f"12 decisions of reward model {OTHER.version} not verifiable" in out
    assert "12 decisions run again: all identical" in out
    (one,) = (tmp_path / "records").iterdir()
    assert command("records", "verify", one) == 0
    assert "12 decisions run again: all identical" in capsys.readouterr().out
    keep(tmp_path / "elsewhere", MODEL, OTHER)
    assert command("records", "verify", tmp_path / "records", "--models", tmp_path / "elsewhere") == 0
    out = capsys.readouterr().out
    assert "24 decisions run again: all identical" in out
    file = version_path(tmp_path / "elsewhere" / "reward.json", OTHER.version)
    assert f"reward model {OTHER.version} is {file}" in out
    file.rename(tmp_path / "other.json")
    assert command("records", "verify", tmp_path / "records", "--models", tmp_path / "other.json") == 0
    out = capsys.readouterr().out
    assert f"reward model {OTHER.version} is {tmp_path / 'other.json'}" in out
    assert "12 decisions run again: all identical" in out
    with pytest.raises(EppError, match="nowhere does not exist"):
        command("records", "verify", tmp_path / "records", "--models", tmp_path / "nowhere")


def test_people_are_told_predictions_and_who_judged() -> None:
    model = linear_model({"rtt_ms": 2.0}, low={"rtt_ms": 20.0}, high={"rtt_ms": 45.0})
    (decision,) = learned(model, 1, explore=0.0)
    text = explained(decision)
    assert f"reward model {model.version}" in text
    assert "predicted ms" in text
    assert "40.0" in text
    assert "out-of-distribution" in text
    assert "100.0%" in text
    (explored,) = learned(model, 1, explore=1.0)
    assert "was chosen by exploring: a draw among all" in explained(explored)
    assert "the heuristic decided: no-model" in explained(decided(1, "lodestar")[0][0])


def test_the_watch_says_nothing_before_it_has_seen_enough() -> None:
    model = linear_model(
        {"rtt_ms": 1.0},
        low={"rtt_ms": 900.0},
        high={"rtt_ms": 1100.0},
        mean=np.array([1000.0]),
        std=np.ones(1),
    )
    watch = ModelWatch(60.0)
    assert watch.withdrawn(0.0) == ""
    watch.watch(model)
    (decision,) = learned(model, 1)
    for _ in range(WINDOW // 2 - 1):
        watch.seen(decision)
    assert watch.withdrawn(model.trained_at_s) == ""
    watch.seen(decision)
    assert watch.withdrawn(model.trained_at_s) == "mismatch"
    assert watch.mismatched() == ("rtt_ms",)
    watch.watch(MODEL)
    assert watch.withdrawn(MODEL.trained_at_s) == ""
    assert watch.withdrawn(MODEL.trained_at_s + 61.0) == "stale"
