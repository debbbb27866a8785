"""What the flight recorder costs: ``python -m bench.recorder``.

Real decisions of a real picker, each with its outcome, are handed to a real recorder that writes to a disk.
Three figures for each size of fleet, plain and compressed:

* CPU per request: user plus system time of the whole process per request (two records), the recorder's own
  loop included, divided by requests; what the request path itself spends in handing over, apart.
* requests per second sustained: how many go through before the recorder drops any, one core's worth.
* the longest that the event loop is kept from running while records are written at a usual rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from epp.config.schema import Records
from epp.decide.picker import Ask, Picker, PickerSettings
from epp.decide.record_files import record_files
from epp.decide.recorder import FileRecorder
from epp.decide.records import Decision, Outcome
from epp.decide.weights import WeightBook
from epp.policies.registry import create
from epp.prompt.blocks import BlockHasher
from epp.prompt.types import MeasuredPrompt
from epp.prompt.usage import Usage
from epp.signals.endpoint import Endpoint
from epp.signals.fleet import Fleet
from epp.signals.prefix_index import PrefixIndex

BLOCK_TOKENS = 64.0
_HASHER = BlockHasher(b"any secret will do here")
_BATCH = 100
#: What may wait while throughput is measured: the writer never idles and nothing is dropped.
_AHEAD_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Row:
    """One fleet size and compression; medians over the rounds.

    Attributes:
        endpoints: candidates of every decision.
        prompt_tokens: tokens of every prompt.
        compress: ``none`` or ``zstd``.
        handover_us: wall time of the two calls on the request path, each request.
        cpu_us: CPU of the process per request while it does nothing but record.
        requests_per_s: sustained without a drop.
        bytes_per_request: on disk.
        loop_delay_ms: 99.9th percentile of how late a timer fires at ``rate`` requests per second.
        idle_delay_ms: the same without a recorder.
        rate: that rate.
    """

    endpoints: int
    prompt_tokens: int
    compress: str
    handover_us: float = 0.0
    cpu_us: float = 0.0
    requests_per_s: float = 0.0
    bytes_per_request: float = 0.0
    loop_delay_ms: float = 0.0
    idle_delay_ms: float = 0.0
    rate: int = 0


def requests_of(
    endpoints: int, prompt_tokens: int, number: int = 1000
) -> list[tuple[Decision, Ask, Outcome]]:
    policy, numbers = create("gorgo"), count()
    picker = Picker(
        fleet=Fleet(PrefixIndex()),
        policy=policy,
        balance=create("least-request"),
        weights=WeightBook(policy="gorgo", specs=policy.weight_specs, configured={}, bounds={}, source=""),
        settings=PickerSettings(warmup_s=0.0),
        new_id=lambda: f"0123456789abcdef-{next(numbers):x}",
        name_block=_HASHER.export_id,
    )
    pool = [Endpoint(f"10.{i >> 8}.{i & 255}.7:8000", region=f"region-{i % 5}") for i in range(endpoints)]
    picker.set_pool(pool, 0.0)
    for index, endpoint in enumerate(pool):
        picker.fleet.assume_rtt(endpoint.address, 20.0 + index * 0.7313)
    found, chance = [], random.Random(1)
    for index in range(number):
        # No two prompts share a block: the dearest case, for ids as for compression.
        blocks = [chance.getrandbits(64) for _ in range(round(prompt_tokens / BLOCK_TOKENS))]
        session = _HASHER.export_name(f"session {index}")
        ask = Ask(
            model="model", prompt=MeasuredPrompt(0, prompt_tokens, blocks, BLOCK_TOKENS), session=session
        )
        for slot in range(endpoints):
            picker.fleet.rtt.observe(slot, chance.uniform(20.0, 200.0), index * 0.01)
        decision = picker.pick(ask, index * 0.01, 1.7e9 + index * 0.01)
        usage = Usage(prompt_tokens, 200, prompt_tokens // 2)
        ttft_ms, e2e_ms = chance.uniform(50, 500), chance.uniform(1e3, 1e4)
        outcome = Outcome(decision.id, decision.endpoint, "completed", 200, ttft_ms, e2e_ms, usage)
        found.append((decision, ask, outcome))
    return found


def wait_below(recorder: FileRecorder, waiting_bytes: int) -> None:
    while recorder.waiting_bytes > waiting_bytes:
        time.sleep(0.001)


def throughput(row: Row, rounds: int, batches: int) -> None:
    """Fill in what so many batches of requests cost."""
    number = batches * _BATCH
    requests = requests_of(row.endpoints, row.prompt_tokens)
    handover, cpu, rate, size = [], [], [], 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            settings = Records(folder=folder, compress=row.compress)  # type: ignore[arg-type]  # one of its two
            dropped: list[int] = []
            recorder = FileRecorder(Path(folder), settings=settings, hasher=_HASHER, on_drop=dropped.append)
            spent, wall_s, cpu_s = 0.0, time.perf_counter(), time.process_time()
            for start in range(0, number, _BATCH):
                before = time.perf_counter()
                for index in range(start, start + _BATCH):
                    decision, ask, outcome = requests[index % len(requests)]
                    recorder.decision(decision, ask)
                    recorder.outcome(outcome, 1.7e9)
                spent += time.perf_counter() - before
                wait_below(recorder, _AHEAD_BYTES)
            wait_below(recorder, 0)
            recorder.close()
            handover.append(spent / number * 1e6)
            cpu.append((time.process_time() - cpu_s) / number * 1e6)
            rate.append(number / (time.perf_counter() - wall_s))
            size = sum(path.stat().st_size for path in record_files(Path(folder))) / number
            if dropped:
                raise RuntimeError(f"{sum(dropped)} records were dropped")
    row.handover_us, row.cpu_us = statistics.median(handover), statistics.median(cpu)
    row.requests_per_s, row.bytes_per_request = statistics.median(rate), size


async def loop_delay_ms(row: Row, seconds: float, recorder: FileRecorder | None) -> float:
    """How late a timer of 1 ms fires while requests are recorded at a steady rate: 99.9th percentile."""
    requests, delays, done = requests_of(row.endpoints, row.prompt_tokens), [], 0
    start_s = time.perf_counter()
    while (now_s := time.perf_counter()) - start_s < seconds:
        wanted = int((now_s - start_s) * row.rate)
        for index in range(done, wanted):
            if recorder is None:
                break
            decision, ask, outcome = requests[index % len(requests)]
            recorder.decision(decision, ask)
            recorder.outcome(outcome, 1.7e9)
        done = wanted
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        delays.append((time.perf_counter() - before) * 1e3 - 1.0)
    return statistics.quantiles(delays, n=1000)[-1]


def delays(row: Row, seconds: float) -> None:
    row.idle_delay_ms = asyncio.run(loop_delay_ms(row, seconds, None))
    with tempfile.TemporaryDirectory() as folder:
        settings = Records(folder=folder, compress=row.compress)  # type: ignore[arg-type]  # one of its two
        recorder = FileRecorder(Path(folder), settings=settings, hasher=_HASHER, on_drop=lambda _: None)
        row.loop_delay_ms = asyncio.run(loop_delay_ms(row, seconds, recorder))
        recorder.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="What the flight recorder costs.")
    parser.add_argument("--endpoints", default="3,32,256", help="sizes of the fleet (%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=8000, help="tokens per prompt (%(default)s)")
    parser.add_argument(
        "--requests",
        type=int,
        default=5000,
        help="requests per round, in hundreds; fewer of large fleets (%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--rate", type=int, default=500, help="rate for the loop's delay (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of it (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = []
    for endpoints in (int(size) for size in arguments.endpoints.split(",")):
        for compress in ("none", "zstd"):
            row = Row(endpoints, arguments.prompt_tokens, compress, rate=arguments.rate)
            wanted = arguments.requests // max(endpoints // 32, 1)
            throughput(row, arguments.rounds, max(round(wanted / _BATCH), 1))
            delays(row, arguments.seconds)
            rows.append(row)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    print(
        f"{platform.machine()}, Python {platform.python_version()}, {arguments.prompt_tokens} tokens a prompt"
    )
    print(
        "endpoints compress  handover us  CPU us/request  requests/s  bytes/request  loop p99.9 ms (without)"
    )
    for row in rows:
        print(
            f"{row.endpoints:9} {row.compress:8} {row.handover_us:12.1f} {row.cpu_us:15.1f}"
            f" {row.requests_per_s:11,.0f} {row.bytes_per_request:14,.0f}"
            f" {row.loop_delay_ms:14.2f} ({row.idle_delay_ms:.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
