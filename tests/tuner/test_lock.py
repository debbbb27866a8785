"""One process a shared file: the second is refused, the lock of a killed one is free."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from epp.learn.sidecar.process import LockHeldError, holder_of, process_lock

if TYPE_CHECKING:
    from pathlib import Path

_HOLD = """
import sys
from pathlib import Path
from epp.learn.sidecar.process import process_lock
with process_lock(Path(sys.argv[1]), "tuner"):
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
            process_lock(path, "tuner"),
        ):
            pass
        assert holder_of(path).startswith(f"pid {process.pid} on ")
        process.kill()
        process.wait()
    assert holder_of(path) == ""
    with process_lock(path, "tuner"):
        assert holder_of(path).startswith(f"pid {os.getpid()} on ")
    assert holder_of(path) == ""
