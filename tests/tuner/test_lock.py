"""One process a shared file: the second is refused, the lock of a killed one is free."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from epp.errors import EppError
from epp.learn.sidecar.files import Files
from epp.learn.sidecar.lock import LockHeldError, ProcessLock, holder_of
from epp.learn.sidecar.paths import WeightsPaths
from epp.learn.tuner.operator_requests import read_requests

if TYPE_CHECKING:
    from pathlib import Path

_HOLD = """
import sys
from pathlib import Path
from epp.learn.sidecar.lock import ProcessLock
with ProcessLock(Path(sys.argv[1]), "tuner"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_refused_and_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    words = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(LockHeldError, match=f"a tuner runs on this file already: pid {process.pid} on "),
            ProcessLock(path, "tuner"),
        ):
            pass
        assert holder_of(path).startswith(f"pid {process.pid} on ")
        process.kill()
        process.wait()
    assert holder_of(path) == ""
    with ProcessLock(path, "tuner"):
        assert holder_of(path).startswith(f"pid {os.getpid()} on ")
    assert holder_of(path) == ""


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    path.mkdir()
    with (
        pytest.raises(EppError, match=r"weights\.lock: Is a directory; a tuner must be able to write here"),
        ProcessLock(path, "tuner"),
    ):
        pass


def test_requests_that_are_no_text_ask_for_nothing(tmp_path: Path) -> None:
    paths = WeightsPaths(tmp_path / "weights.yaml")
    paths.requests.write_bytes(b'[{"id": "\xff", "what": "freeze"}]')
    assert read_requests(paths, Files()) == []
