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


#: As `make demo-regions`, with shorter pauses between bursts.
REGIONS = """
import sys
from epp_lab.demo import regions
regions.BURSTS = ((0.0, 1), (6.0, 8), (7.0, 4))
sys.exit(regions.main(["--only", "global", "--seconds", "1", "--out", sys.argv[1]]))
"""


def test_the_demo_compares_policies_and_takes_a_replica_from_the_pool(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = run("demo", "--seconds", "1.5", "--against", "random", "--out", str(out))
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
        word in page for word in ("against random", "data-chart", "taken from the pool file", "epp demo")
    )
    run("records", "verify", str(out / "records"))
    assert "gorgo-ms" in run("explain", "--records", str(out / "records"))


def test_a_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    text = run("demo", "--seconds", "1", "--out", str(tmp_path), status=2)
    assert "is not the output of a demo" in text
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_one_picker_reaches_far_regions_with_and_without_relays(tmp_path: Path) -> None:
    command = (sys.executable, "-c", REGIONS, str(tmp_path / "out"))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, f"{ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    text = ran.stdout
    if text.startswith("skipped: "):
        pytest.skip(text)
    for row in ("no relays", "one for all", "72 KB to seoul", "spill-over"):
        assert row in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())
