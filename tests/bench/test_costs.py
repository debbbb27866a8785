"""Benches of single parts: what they divide by, and what they send, is what they say."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench import footprint, recorder
from bench.observe_duplex import cpu_us
from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path

BUSY_THREAD = """
import sys, threading, time
def work():
    while time.thread_time() < 0.2: pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(1, flush=True)
sys.stdin.read()
"""


def test_a_record_has_the_same_size_whatever_number_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = []
    for requests in ("100", "150", "90"):
        words = ["--endpoints", "3", "--prompt-tokens", "64", "--rounds", "1", "--seconds", "0.1"]
        monkeypatch.setattr(sys, "argv", ["recorder", *words, "--requests", requests])
        assert recorder.main() == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if " none " in line)
        sizes.append(int(row.split()[5].replace(",", "")))
    assert max(sizes) < 1.1 * min(sizes)


def test_cpu_of_threads_that_have_ended_is_counted() -> None:
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY_THREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        assert cpu_us(busy.pid) > 200_000
        busy.communicate()


async def test_a_footprint_is_of_one_picker_under_load(tmp_path: Path) -> None:
    seen = await footprint.under_load(tmp_path, 20.0, 1.0)
    assert seen["picker"].peak_mib > 20.0
    assert (tmp_path / "out" / "epp.yaml").exists()
    assert not list((tmp_path / "out").glob("*/epp.yaml"))


async def test_a_demo_that_fails_has_no_footprint(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something").touch()
    with pytest.raises(EppError, match=r"the demo failed: .* is not the output of a demo"):
        await footprint.under_load(tmp_path, 20.0, 1.0)
