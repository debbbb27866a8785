"""What a process has used, by the system's own account: CPU time, instructions, memory, descriptors, threads.

Owns the reading of `/proc` and of `perf stat`. Works on any process of the same user, ours or another
picker's. What the machine does not offer is None, never 0.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

_EVENT = "instructions:u"
_ATTACH_S, _STOP_S = 0.15, 5.0
PREFER_VARIABLE = "EPP_BENCH_PREFER"
"""Set where `prefer` is to do something; inherited by processes that measure other trees."""
_PREFERRED = "-19"


def cpu_s(pid: int) -> float:
    """User plus system CPU seconds of a running process, all of its threads, ended ones included.

    The kernel's per-process CPU clock (clock_getcpuclockid(3): the complemented pid above the clock's three
    low bits) counts in nanoseconds; /proc/PID/stat, for machines without it, counts in ticks of 10 ms.

    Raises:
        OSError: there is no such process.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prefer(pid: int) -> None:
    """Have the scheduler run a process's session before those of others, where that was asked for.

    By the nice value of its autogroup (sched(7)): the process's own counts only among those of its session.
    Without autogroups or the right to do so nothing changes.
    """
    if os.environ.get(PREFER_VARIABLE):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(_PREFERRED, encoding="ascii")


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds at one moment: resident bytes, open descriptors, threads."""

    rss_bytes: int
    descriptors: int
    threads: int


def held(pid: int) -> Held:
    """What a process holds now.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    root = Path(f"/proc/{pid}")
    pages = int((root / "statm").read_text(encoding="ascii").split()[1])
    return Held(
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=len(os.listdir(root / "fd")),  # noqa: PTH208  # names alone are wanted
        threads=len(os.listdir(root / "task")),  # noqa: PTH208
    )


@cache
def instructions_offered() -> bool:
    """Whether `perf stat` can count instructions here: it is installed, permitted, and has a counter."""
    perf = shutil.which("perf")
    if perf is None:
        return False
    try:
        done = subprocess.run(  # noqa: S603  # a fixed command
            (perf, "stat", "-x", ",", "-e", _EVENT, "true"),
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and _counted(done.stderr) is not None


class Instructions:
    """Counts a process's instructions in user space while the block runs; a context manager.

    Attributes:
        count: what was counted, None where the machine offers no counter.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._perf: subprocess.Popen[bytes] | None = None
        self._report: Path | None = None
        self.count: int | None = None

    def __enter__(self) -> Self:
        """Attach."""
        if instructions_offered():
            handle, name = tempfile.mkstemp(prefix="epp-perf-")
            os.close(handle)
            self._report = Path(name)
            self._perf = subprocess.Popen(  # noqa: S603  # a fixed command
                ("perf", "stat", "-x", ",", "-e", _EVENT, "-o", name, "-p", str(self._pid)),  # noqa: S607
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(_ATTACH_S)  # it says nothing when it has attached
        return self

    def __exit__(self, *_: object) -> None:
        """Detach and read."""
        if self._perf is None or self._report is None:
            return
        self._perf.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._perf.wait(_STOP_S)
        if self._perf.poll() is None:
            self._perf.kill()
            self._perf.wait()
        self.count = _counted(self._report.read_text(encoding="utf-8", errors="replace"))
        self._report.unlink(missing_ok=True)


def _counted(report: str) -> int | None:
    """The count in `perf stat -x ,`'s report: its first field, a word where nothing was counted."""
    for line in report.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith("instructions") and fields[0].isdigit():
            return int(fields[0])
    return None
