"""Operators' words to a tuner that does not run."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
import yaml

from epp.cli import main
from epp.learn.tuner.verdict import PASS, Verdict
from epp.policies.registry import create
from tests.kit.tunework import GOOD, STARTING, World

if TYPE_CHECKING:
    from pathlib import Path


def configured(folder: Path) -> str:
    path = folder / "epp.yaml"
    path.write_text("policy: {name: gorgo}\nweights_file: weights.yaml\nrecords: {folder: records}\n")
    return str(path)


def test_a_reason_of_any_bytes_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    reason = os.fsdecode(b"Pr\xfcfung")  # as an argument that is no UTF-8 comes in
    assert main(["tune", "freeze", "--reason", reason, "--config", config]) == 0
    assert "by request: Pr?fung" in capsys.readouterr().out


def test_a_word_to_a_tuner_that_stopped_judges_nothing_that_nobody_has_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, world = configured(tmp_path), World(tmp_path, [GOOD])
    world.start()
    world.until("switchback")
    world.run(30)
    world.die()  # with blocks of which some requests have been read
    monkeypatch.setattr(
        "epp.learn.tuner.trials.judge_switchback", lambda *_: Verdict(PASS, "all of them fast")
    )
    assert main(["tune", "freeze", "--reason", "it does harm", "--config", config]) == 0
    assert "done, no tuner is running: frozen: by request: it does harm\n" in capsys.readouterr().out
    world.start()
    assert (world.state.phase, world.state.incumbent) == ("frozen", STARTING)
    assert [change.how for change in world.state.history] == ["start"]


def test_what_operators_pin_at_the_same_moment_is_all_pinned(tmp_path: Path) -> None:
    config = tmp_path / "epp.yaml"
    config.write_text("policy: {name: laar}\nweights_file: w.yaml\noverrides_file: overrides.yaml\n")
    names = create("laar").weight_specs
    start = Barrier(len(names))

    def pin(name: str) -> int:
        start.wait()
        return main(["weights", "pin", f"{name}=2", "--config", str(config)])

    with ThreadPoolExecutor(len(names)) as operators:
        assert set(operators.map(pin, names)) == {0}
    pinned = yaml.safe_load((tmp_path / "overrides.yaml").read_text())["weights"]
    assert pinned == dict.fromkeys(names, 2.0)


@pytest.mark.parametrize("text", ['{"count": 1, "state": ' + "[" * 100_000, "{}", ""])
def test_a_memory_that_is_damaged_is_not_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    config = configured(tmp_path)
    (tmp_path / "records").mkdir()
    memory = tmp_path / "weights.tuner.json"
    memory.write_text(text)
    for words in (("tune",), ("tune", "status"), ("tune", "thaw"), ("weights", "history")):
        assert main([*words, "--config", config]) == 2
        said = capsys.readouterr().err
        assert f"{memory}: " in said
        assert (
            "it is damaged, or of another version of epp: start that version, or move the file away" in said
        )
    assert memory.read_text() == text
