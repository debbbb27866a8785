"""Operators' words to a tuner that does not run."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import xxhash
import yaml

from epp.cli import main
from epp.policies.registry import create
from epp.tune.places import Places
from epp.tuner.verdict import PASS, Verdict
from tests.kit.tunework import GOOD, STARTING, World

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
    monkeypatch.setattr("epp.tuner.trials.judge_switchback", lambda *_: Verdict(PASS, "all of them fast"))
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


def test_a_memory_of_brackets_is_a_torn_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    (tmp_path / "weights.tuner-a.json").write_text('{"count": 1, "state": ' + "[" * 100_000)
    assert main(["tune", "status", "--config", config]) == 0
    said = capsys.readouterr()
    assert "weights.tuner-a.json: torn: " in said.err
    assert "no tuner has run on this file" in said.out


def test_a_memory_of_another_version_is_not_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path)
    (tmp_path / "records").mkdir()
    assert main(["tune", "freeze", "--config", config]) == 0  # number 1, in one half
    capsys.readouterr()
    places = Places(tmp_path / "weights.yaml")
    now, later = places.states if places.states[0].exists() else places.states[::-1]
    text = json.dumps({"version": 2, "held": {"by": "request"}}).encode()  # of a version that is to come
    envelope = b'{"count":9,"digest":"%b","state":%b}'
    later.write_bytes(envelope % (xxhash.xxh3_64_hexdigest(text).encode(), text))
    before = {path: path.read_bytes() for path in (now, later, places.weights)}
    said = f"{later}: the state has version 2, this program reads 1; start the version of epp that wrote it"
    for words in (("tune",), ("tune", "status"), ("tune", "thaw"), ("weights", "history")):
        assert main([*words, "--config", config]) == 2
        assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    later.write_bytes(envelope.replace(b"9", b"0") % (xxhash.xxh3_64_hexdigest(text).encode(), text))
    assert main(["tune", "status", "--config", config]) == 0, "what was written after it counts"
