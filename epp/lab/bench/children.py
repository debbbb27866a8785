"""Processes that are measured: a picker of ours, the bare server; started, awaited, never left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.config.pool import EndpointSpec, dump_pool
from epp.envoy.launch import tied_to_parent
from epp.errors import EppError
from epp.lab.bench.bare import NOBODY
from epp.lab.bench.cpu import prefer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epp.lab.bench.bare import Transport

_START_S, _STOP_S = 30.0, 10.0
_LOG_TAIL = 3000
#: As by default, but for addresses and for what would reach out: the endpoints of these benches do not exist.
CONFIG: dict[str, Any] = {
    "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "first_token": "127.0.0.1:0"},
    "pool": {"file": "endpoints.yaml", "warmup_s": 0},
    "probe": {"interval_s": 0},
    "scrape": {"interval_s": 0},
    "prefix": {"secret_file": "secret"},
    "records": {"folder": "records"},
    "drain_s": 1,
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        pid: its process.
        grpc: its ext_proc listener.
        http: where its metrics are, ``""`` for nowhere.
        first_token: where it takes first tokens, ``""`` for nowhere.
        log: what it has printed so far; None for a process that is not ours.
    """

    pid: int
    grpc: str
    http: str = ""
    first_token: str = ""
    log: Path | None = None


def pool_of(endpoints: int) -> list[EndpointSpec]:
    """A pool of so many endpoints that do not exist."""
    return [
        EndpointSpec(address=f"10.{at >> 8}.{at & 255}.7:8000", region=f"region-{at % 5}")
        for at in range(endpoints)
    ]


@contextmanager
def picker(pool: Sequence[EndpointSpec], **config: Any) -> Iterator[Server]:
    """`epp serve` in a folder of its own, recorder and metrics on.

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
        ready, log = folder / "ready.json", folder / "picker.log"
        (folder / "epp.yaml").write_text(json.dumps({**CONFIG, **config}))
        command = ("-m", "epp", "serve", "--config", str(folder / "epp.yaml"), "--ready-file", str(ready))
        with log.open("wb") as output, _child(command, output) as process:
            _until(ready.exists, process, log)
            prefer(process.pid)
            found: dict[str, str] = json.loads(ready.read_text())
            yield Server(process.pid, found["grpc"], found["http"], found["first_token"], log)


@contextmanager
def bare(transport: Transport = "grpcio", destination: str = NOBODY) -> Iterator[Server]:
    """The server that only answers, on grpc.aio or on the picker's own transport.

    Args:
        transport: what it speaks gRPC with.
        destination: the endpoint that it picks for everybody.

    Raises:
        EppError: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
        log = Path(name) / "bare.log"
        with (
            log.open("wb") as output,
            _child(("-m", "epp.lab.bench.bare", transport, destination), output) as process,
        ):
            _until(lambda: b"\n" in log.read_bytes(), process, log)
            prefer(process.pid)
            yield Server(process.pid, log.read_text().split()[0])


@contextmanager
def _child(arguments: Sequence[str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603  # our own interpreter
        tied_to_parent(sys.executable, *arguments),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C in the terminal is for the parent
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(ready: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise EppError(f"a server did not come up\n{log.read_text(errors='replace')[-_LOG_TAIL:]}")
        time.sleep(0.02)
