"""Demonstrations end well, print their main figures and leave the files that they name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import run

if TYPE_CHECKING:
    from pathlib import Path


def demo(module: str, *words: str, timeout_s: float = 110) -> str:
    """Run an example to its end; what it printed."""
    command = (sys.executable, "-m", module, *words)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ran.returncode == 0, f"{module}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def decisions(folder: Path) -> int:
    """Count decisions on record."""
    return sum(file.read_text().count('"kind":"decision"') for file in folder.iterdir())


def test_the_demo_compares_policies_and_takes_a_replica_from_the_pool(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = run("demo", "--seconds", "1.5", "--against", "random", "--out", str(out), timeout_s=110)
    for figure in ("TTFT p95", "cached share", "gorgo-ms", "random", "client p50"):
        assert figure in text
    title, _, _ = " ".join(text.split()).partition(" taken from the pool file under load, and put in again: ")
    rows = [line.split("│") for line in text.partition("requests served by")[2].splitlines()]
    before, without, again = next(row[2:5] for row in rows if title.split()[-1] in " ".join(row))
    assert "no request failed" in text
    assert min(int(before), int(again)) > int(without) == 0
    assert "The tuner ran beside it, in phase baseline" in text
    assert len((out / "results.jsonl").read_text().splitlines()) > 5
    assert (out / "random" / "results.jsonl").exists()
    page = (out / "report.html").read_text()
    assert text.split()[-1] == (out / "report.html").as_uri()
    assert all(
        word in page
        for word in ("against random", "percentile 95</title>", "taken from the pool file", "epp demo")
    )
    run("records", "verify", str(out / "records"))
    assert "gorgo-ms" in run("explain", "--records", str(out / "records"))


def test_a_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    text = run("demo", "--seconds", "1", "--out", str(tmp_path), status=2)
    assert "is not the output of a demo" in text
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_models_that_answer_wrongly_are_asked_until_one_is_right(tmp_path: Path) -> None:
    words = ("--questions", "1", "--streams", "1", "--policy", "laar", "--out", str(tmp_path / "out"))
    text = demo("epp.lab.demo.laar", *words)
    assert "time to the first correct answer" in text
    (row,) = (line.split("│") for line in text.splitlines() if line.startswith("│ laar"))
    assert float(row[2]) > 0
    assert "success" in (tmp_path / "out" / "capability.yaml").read_text()
    assert '"kind":"feedback"' in "".join(
        file.read_text() for file in (tmp_path / "out" / "laar" / "records").iterdir()
    )


def test_a_learner_runs_beside_the_picker(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = demo("epp.lab.demo.lodestar", "--seconds", "2", "--out", str(out))
    for figure in ("TTFT ms: mean, p99", "who decided, and for whom", "no-model", "The learner says:"):
        assert figure in text
    assert decisions(out / "lodestar" / "records") > 5
    assert decisions(out / "prefix-cache-and-load" / "records") > 5


def test_a_tuner_freezes_on_good_weights(tmp_path: Path) -> None:
    words = ("--start", "defaults", "--measurements", "1", "--recorded", "1200")
    text = demo("epp.lab.demo.tuner", *words, "--out", str(tmp_path / "out"))
    assert "0 promoted, 0 demoted; frozen; weights in force: " in text
    assert json.loads((tmp_path / "out" / "tuner.json").read_text())["history"]
    assert "TTFT p95" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_regions_behind_long_links_answer_over_relays(tmp_path: Path) -> None:
    text = demo("epp.lab.demo.wan", "--loss", "0", "--no-faults", "--out", str(tmp_path / "out"))
    if text.startswith("skipped: "):
        pytest.skip(text)
    for figure in ("ashburn", "frankfurt", "seoul", "TTFT p50", "two tiers"):
        assert figure in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())
