"""Processes that are measured - a picker of ours, a bare server - and what a process has used.

The kernel's own account of any process of the same user, ours or another picker's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.child import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

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


async def spent_s(work: Awaitable[object], *groups: Sequence[int]) -> list[float]:
    """Await some work; return how long it lasted and the CPU of each group of processes, NaN for none."""

    def used_s() -> list[float]:
        return [time.monotonic(), *(sum(map(cpu_s, group)) if group else nan for group in groups)]

    before_s = used_s()
    await work
    return [now_s - then_s for now_s, then_s in zip(used_s(), before_s, strict=True)]


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


@asynccontextmanager
async def picker(pool: Sequence[EndpointSpec], **config: Any) -> AsyncIterator[Server]:
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
        file, ready = folder / "epp.yaml", folder / "ready.json"
        file.write_text(json.dumps({**CONFIG, **config}))
        words = ["serve", "--config", str(file), "--ready-file", str(ready)]
        async with Child("picker", words, folder) as child:
            await child.until(ready.exists)
            listening = json.loads(ready.read_text())
            yield Server(child.pid, listening["grpc"], listening["http"], listening["first_token"])


@asynccontextmanager
async def bare(transport: str) -> AsyncIterator[Server]:
    """Run the server that only answers, on ``grpcio`` or on ``builtin``.

    Raises:
        EppError: it did not come up.
    """
    words = ["-m", "epp_lab.bench.bare", transport]
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
        async with Child("bare", words, Path(name), (sys.executable,)) as child:
            await child.until(lambda: "\n" in child.log())
            yield Server(child.pid, child.log().split()[0])
