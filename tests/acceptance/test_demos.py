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


#: As `make demo`, with shorter phases.
DEMO = """
import sys
from epp.cli import main
from epp_lab.demo import load
load.PHASE_S, load.PAUSE_S = 2.5, 0.5
sys.exit(main(["demo", "--against", "round-robin", "--out", sys.argv[1]]))
"""
#: As `make demo-regions`, with shorter pauses between bursts.
REGIONS = """
import sys
from epp_lab.demo import regions
regions.BURSTS = ((0.0, 1), (6.0, 8), (7.0, 4))
sys.exit(regions.main(["--only", "global", "--seconds", "1", "--out", sys.argv[1]]))
"""


def test_the_demo_shows_faults_behind_the_picker_and_behind_plain_envoy(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = subprocess.run(
        (sys.executable, "-c", DEMO, str(out)), capture_output=True, text=True, timeout=280, check=False
    )
    text = ran.stdout
    assert ran.returncode == 0, ran.stderr
    for words in ("gorgo-ms beside plain round-robin: ", "TTFT p95 is ", "plain round-robin: failing"):
        assert words in text
    served = {
        folder: [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        for folder in (out, out / "plain")
    }
    for results in served.values():
        assert {result["served_by"] for result in results if result["error"]} <= {"engine-3"}
        last = [result["served_by"] for result in results if result["intended_ms"] > 14_400]
        assert last
        assert "engine-4" not in last
    page = (out / "report.html").read_text()
    assert text.split()[-1] == (out / "report.html").as_uri()
    assert all(word in page for word in ("Failed requests by phase", "engine-4 leaves the pool", "seed 1"))
    run("records", "verify", str(out / "records"))
    assert "gorgo-ms" in run("explain", "--records", str(out / "records"))


def test_a_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    text = run("demo", "--out", str(tmp_path), status=2)
    assert "is not the output of a demo" in text
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_one_picker_reaches_far_regions_with_and_without_relays(tmp_path: Path) -> None:
    command = (sys.executable, "-c", REGIONS, str(tmp_path / "out"))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    assert ran.returncode == 0, f"{ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    text = ran.stdout
    if text.startswith("skipped: "):
        pytest.skip(text)
    for row in ("no relays", "one for all", "72 KB to seoul", "spill-over"):
        assert row in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())
