"""The folder that a demo writes into."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from epp.demo.output import output
from epp.errors import EppError

if TYPE_CHECKING:
    from pathlib import Path

HOLDS = """
import sys
from pathlib import Path
from epp.demo.output import output
with output(Path(sys.argv[1])):
    Path(sys.argv[1], "records").write_text("mine")
    print("held", flush=True)
    sys.stdin.read()
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


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with (
        pytest.raises(EppError, match=r"not the output of a demo .*: empty it, or choose another with --out"),
        output(tmp_path),
    ):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/nowhere", "n" * 300])
def test_a_folder_that_cannot_be_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = r"cannot be the folder for output: .*; choose another with --out"
    with pytest.raises(EppError, match=words) as error, output(tmp_path / name):
        pass
    assert str(tmp_path / name) in str(error.value)


def test_a_demo_that_runs_keeps_its_output(tmp_path: Path) -> None:
    """The second one is refused while the first one runs, and not after it."""
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
