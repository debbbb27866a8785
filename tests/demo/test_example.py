"""What every demo begins with: the folder that it writes into, its arguments, its end."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from epp.errors import EppError
from epp.lab.demo.example import at_least, output
from tests.kit.wan import require_network

HOLDS = """
import sys
from pathlib import Path
from epp.lab.demo.example import output
with output(Path(sys.argv[1])):
    Path(sys.argv[1], "records").write_text("mine")
    print("held", flush=True)
    sys.stdin.read()
"""
WAITS = """
import asyncio
from epp.lab.demo.example import end_like_ctrl_c
from epp.lab.wan.network import Network
from epp.lab.wan.shape import Shape
end_like_ctrl_c()
async def wait():
    print("made", flush=True)
    await asyncio.Event().wait()
with Network({"one": Shape()}):
    asyncio.run(wait())
"""


def test_what_an_earlier_demo_left_is_removed_and_nothing_behind_its_links(tmp_path: Path) -> None:
    folder, kept = tmp_path / "new" / "out", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    with output(folder):
        (folder / "records").mkdir()
        (folder / "records" / "1.jsonl").touch()
        (folder / "linked").symlink_to(kept)
    with output(folder):
        assert [path.name for path in folder.iterdir()] == [".epp-demo"]
    assert (kept / "file").exists()


def test_a_folder_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = r"file/below cannot be the folder for output: .*; choose another with --out"
    with pytest.raises(EppError, match=words), output(tmp_path / "file" / "below"):
        pass


def test_a_demo_that_runs_keeps_its_output(tmp_path: Path) -> None:
    command = (sys.executable, "-c", HOLDS, str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(EppError, match="another demo is writing to"), output(tmp_path):
            pass
        assert (tmp_path / "records").read_text() == "mine"
        first.communicate()
    with output(tmp_path):
        assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("text", ["-1", "0", "nan", "inf"])
def test_a_length_is_a_number_above_0(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be 0\.1 or more"):
        at_least(0.1)(text)


def test_a_demo_that_is_ended_leaves_no_namespace() -> None:
    require_network()
    command = (sys.executable, "-c", WAITS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"made\n"
        assert list(Path("/run/netns").glob(f"epp-wan-{child.pid}-*"))
        child.send_signal(signal.SIGTERM)
    assert not list(Path("/run/netns").glob(f"epp-wan-{child.pid}-*"))
