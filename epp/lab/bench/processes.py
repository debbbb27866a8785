"""Processes that are measured - a picker of ours, a bare server - and what a process has used.

The kernel's own account of any process of the same user, ours or another picker's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.launch import tied_to_parent
from epp.errors import EppError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_START_S, _STOP_S, _LOG_TAIL = 30.0, 10.0, 3000
#: As by default, but for addresses and for what would reach out: the endpoints do not exist.
CONFIG: dict[str, Any] = {
    "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "first_token": "127.0.0.1:0"},
    "pool": {"file": "endpoints.yaml", "warmup_s": 0},
    "probe": {"interval_s": 0},
    "scrape": {"interval_s": 0},
    "prefix": {"secret_file": "secret"},
    "records": {"folder": "records"},
    "drain_s": 1,
}


class Held(NamedTuple):
    """What a process holds at one moment."""

    rss_bytes: int
    descriptors: int
    threads: int


class Server(NamedTuple):
    """A running server: its process, its ext_proc listener, and where it takes first tokens, if anywhere."""

    pid: int
    grpc: str
    http: str = ""
    first_token: str = ""


def cpu_s(pid: int) -> float:
    """Return user plus system CPU seconds of a running process, all of its threads, ended ones included.

    The kernel's per-process CPU clock (clock_getcpuclockid(3): the complemented pid above the clock's three
    low bits) counts in nanoseconds.

    Raises:
        OSError: there is no such process.
    """
    return time.clock_gettime((~pid << 3) | 2)


def held(pid: int) -> Held:
    """Return what a process holds now.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    root = Path(f"/proc/{pid}")
    pages = int((root / "statm").read_text(encoding="ascii").split()[1])
    counts = (sum(1 for _ in (root / part).iterdir()) for part in ("fd", "task"))
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), *counts)


def pool_of(endpoints: int) -> list[EndpointSpec]:
    """Make a pool of endpoints that do not exist."""
    return [
        EndpointSpec(address=f"10.{at >> 8}.{at & 255}.7:8000", region=f"region-{at % 5}")
        for at in range(endpoints)
    ]


@contextmanager
def picker(pool: Sequence[EndpointSpec], **config: Any) -> Iterator[Server]:
    """Run `epp serve` in a folder of its own, recorder and metrics on.

    Args:
        pool: its endpoints.
        config: sections laid over `CONFIG`.

    Raises:
        EppError: it did not come up; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
        folder = Path(name)
        (folder / "endpoints.yaml").write_bytes(dump_pool(list(pool)))
        (folder / "secret").write_text("a secret of benchmarks")
        (folder / "epp.yaml").write_text(json.dumps({**CONFIG, **config}))
        ready = folder / "ready.json"
        words = ("serve", "--config", str(folder / "epp.yaml"), "--ready-file", str(ready))
        with child((sys.executable, "-m", "epp", *words), folder / "log", ready.exists) as pid:
            listening = json.loads(ready.read_text())
            yield Server(pid, listening["grpc"], listening["http"], listening["first_token"])


@contextmanager
def bare(transport: str) -> Iterator[Server]:
    """Run the server that only answers, on ``grpcio`` or on ``builtin``.

    Raises:
        EppError: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
        log = Path(name) / "log"
        command = (sys.executable, "-m", "epp.lab.bench.bare", transport)
        with child(command, log, lambda: b"\n" in log.read_bytes()) as pid:
            yield Server(pid, log.read_text().split()[0])


@contextmanager
def child(command: Sequence[str], log: Path, ready: Callable[[], bool]) -> Iterator[int]:
    """Run a command until it is ready, and stop it at the end; its process id.

    Raises:
        EppError: it ended, or is not ready in time; with the end of its log.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own words
            tied_to_parent(*command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the parent
        )
    deadline_s = time.monotonic() + _START_S
    try:
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise EppError(f"a server did not come up\n{log.read_text(errors='replace')[-_LOG_TAIL:]}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
