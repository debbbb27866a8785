"""`make demo-wan`: what is decided before anything is measured."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from epp.demo.wan import main
from tests.kit.wan import require_network


def test_a_folder_with_files_of_others_is_not_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_network()
    (tmp_path / "thesis.tex").write_text("years")
    assert main(["--out", str(tmp_path)]) == 2
    assert "is not the output of a demo" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--loss", "half"], "--loss takes numbers of percent from 0 to 100, such as 0,0.5, not 'half'"),
        (["--loss", "0,200"], "--loss takes numbers"),
        (["--loss", "nan"], "--loss takes numbers"),
        (["--rounds", "-1"], "--rounds must be 1 or more"),
        (["--congestion", "renoo"], "--congestion: this kernel does not take 'renoo'"),
        (["--ways", "three-tier"], "no such way: three-tier"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_runs(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_network()
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out"), *flags])
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


RUNS = """
import asyncio
from epp.demo.wan import end_like_ctrl_c
from epp.wan.network import Network, Site
from epp.wan.shape import Shape
end_like_ctrl_c()
async def wait():
    print("made", flush=True)
    await asyncio.Event().wait()
with Network([Site("one", Shape())]):
    asyncio.run(wait())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_no_namespace(number: signal.Signals) -> None:
    require_network()
    command = (sys.executable, "-c", RUNS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"made\n"
        assert list(Path("/run/netns").glob(f"epp-wan-{child.pid}-*"))
        child.send_signal(number)
    assert not list(Path("/run/netns").glob(f"epp-wan-{child.pid}-*"))
