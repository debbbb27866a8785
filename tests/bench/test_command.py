"""The command's flags: what does not fit together is refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epp.cli import main
from epp.lab.bench import command, index
from epp.lab.bench.figures import load

ROOT, OWN = str(Path(__file__).parents[2]), str(os.getpid())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["server", "--address", "127.0.0.1:9002"], "go together"),
        (["core", "--address", "127.0.0.1:9002", "--pid", "1"], "measure this picker"),
        (["core", "--rounds", "0"], "1 or more"),
        (["core", "--sizes", "18k,2m"], "no 2m"),
        (["core", "--endpoints", "3,x"], "'3,x' are no sizes of a fleet"),
        (["server", "--modes", "duplex,psychic"], "no psychic"),
        (["core", "--against", "/nowhere"], "no source tree"),
        (["core", "--against", ROOT, "--baseline", "base.json"], "leave one out"),
        (["server", "--against", ROOT, "--address", "127.0.0.1:9002", "--pid", OWN], "leave one out"),
        (["server", "--address", "127.0.0.1:9002", "--pid", "-1"], "--pid -1: no such process"),
        (["server", "--address", "127.0.0.1:9002", "--pid", str(2**22 + 1)], "no such process"),
        (["soak", "--requests", "0"], "--requests must be 1 or more"),
        (["server", "--requests", "-4"], "--requests must be 1 or more"),
        (["core", "--save", "/nowhere/figures.json"], "--save /nowhere/figures.json: no file"),
        (["core", "--save", "/"], "--save /: no file"),
    ],
)
def test_flags_that_do_not_fit(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert words in capsys.readouterr().err


def test_a_baseline_that_cannot_be_read_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "core", "--baseline", str(tmp_path / "gone")]) == 2
    said = capsys.readouterr()
    assert "cannot read the baseline" in said.err
    assert "core ..." not in said.out


def test_a_run_prints_goals_saves_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "base.json"
    flags = ["bench", "core", "--rounds", "1", "--sizes", "200", "--endpoints", "3"]
    assert main([*flags, "--save", str(saved)]) == 0
    assert main([*flags, "--baseline", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "core/200/3/warm" in said
    assert "of baseline" in said
    assert "yardstick_ms" in said


def test_every_round_of_the_index_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index, "SIZES", {"1M": 20_000, "10M": 20_000})
    assert main(["bench", "index", "--rounds", "2", "--save", str(tmp_path / "base.json")]) == 0
    saved, _ = load(tmp_path / "base.json")
    assert {len(figure.values) for figure in saved.found.values()} == {2}
    assert "MISSED" not in capsys.readouterr().out


def test_all_with_few_sizes_ends_with_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ALL", ("core", "server"))
    flags = ["--rounds", "1", "--sizes", "200", "--endpoints", "3", "--modes", "constant", "--requests", "2"]
    assert main(["bench", "all", *flags]) == 0
    said = capsys.readouterr().out
    assert "split/200 tokens/transport" in said
    assert "split/72 KB" not in said
