"""What watching responses costs, in three parts.

    python -m bench.observe [--rounds 5] [--only ways|filter|receiver]

``ways``: picker, Envoy and added TTFT for each way of observing (`bench.observe_duplex`). ``receiver``: the
picker's cost of a first token and of a report. ``filter``: Envoy's CPU per request with the observing filter
off, without calls and fully on.

One Envoy worker for each way, one picker and one upstream that streams tokens with a pause between them, so
that each is a chunk of its own in Envoy. The ways take turns, round by round; the table shows the median of
the rounds and, for what is added, the median of the differences within a round. CPU is what the kernel
counted for all threads of the Envoy process, so neither the load nor the picker is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import uvloop

from bench.observe_duplex import cpu_us, duplex_cost
from epp.pb.access_log_pb2 import StreamAccessLogsMessage
from epp.server.first_token import FirstTokenReceiver
from epp.server.report import Report, decode
from tests.observe import answers
from tests.observe.conftest import Rig, running
from tests.observe.entries import entry, wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

WAYS: dict[str, dict[str, Any]] = {
    "off": {"observe": False},
    "reports": {"first_token_port": 0},
    "reports and calls": {},
}
TOKENS = (16, 128, 1024)
CONCURRENCY = 24
REQUESTS = {16: 480, 128: 192, 1024: 48}
_PAUSE_S = 0.004


def stream(tokens: int, event: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """An answer of so many tokens, each told by the same event, then its usage and the end mark."""
    piece = answers.chunk(event)

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answers.head())
        for _ in range(tokens):
            writer.write(piece)
            await asyncio.sleep(_PAUSE_S)
        writer.write(answers.chunk(answers.usage() + answers.DONE) + answers.chunk(b""))

    return play


async def load(rig: Rig, requests: int) -> None:
    """Send requests, a fixed number at once."""
    left = iter(range(requests))

    async def one_by_one() -> None:
        for _ in left:
            async with rig.client() as client:
                await client.read_head()
                await client.body()

    await asyncio.gather(*(one_by_one() for _ in range(CONCURRENCY)))


async def envoy_cost(rounds: int) -> None:
    """Print Envoy's CPU per request, per way and answer length."""
    async with AsyncExitStack() as stack:
        rigs = {name: await stack.enter_async_context(running(**changes)) for name, changes in WAYS.items()}
        print(f"{'tokens':>6} {'chunks':>7} " + " ".join(f"{name:>25}" for name in WAYS) + "  (us/request)")
        for tokens in TOKENS:
            found = await in_turns(rigs, tokens, answers.token(" word"), rounds)
            chunks = [r.chunks for r in rigs["reports"].told.reports[-CONCURRENCY:] if r.chunks]
            row = " ".join(f"{cell(values, found['off']):>25}" for values in found.values())
            print(f"{tokens:>6} {statistics.mean(chunks):>7.0f} {row}", flush=True)


async def in_turns(rigs: Mapping[str, Rig], tokens: int, event: bytes, rounds: int) -> dict[str, list[float]]:
    """Envoy's CPU per request in microseconds, by way and round, for answers of so many tokens."""
    found: dict[str, list[float]] = {name: [] for name in rigs}
    for rig in rigs.values():
        rig.plays(stream(tokens, event))
        await load(rig, CONCURRENCY)
    for _ in range(rounds):
        for name, rig in rigs.items():
            before = cpu_us(rig.envoy.pid)
            await load(rig, REQUESTS[tokens])
            found[name].append((cpu_us(rig.envoy.pid) - before) / REQUESTS[tokens])
    return found


def cell(values: list[float], base: list[float]) -> str:
    """A cell of the table: the median, and what is added to the same rounds of another way."""
    added = statistics.median(value - off for value, off in zip(values, base, strict=True))
    return f"{statistics.median(values):.0f} ({added:+.0f})"


class _Nobody:
    def first_token(self, decision_id: str) -> None:
        """Take a first token."""

    def finished(self, report: Report) -> None:
        """Take a report."""


async def receiver_cost(calls: int = 20_000) -> None:
    """Print the picker's CPU for one first token over a connection of its own, and for one report."""
    receiver = FirstTokenReceiver(_Nobody())
    call = (
        b"POST /first-token/0123456789abcdef-1f HTTP/1.1\r\nhost: picker\r\nx-envoy-internal: true\r\n"
        b"x-envoy-expected-rq-timeout-ms: 1000\r\ncontent-length: 0\r\n\r\n"
    )
    begun = time.process_time()
    for _ in range(calls):
        receiver.answer(call[:-2])
    answer_us = (time.process_time() - begun) / calls * 1e6
    usage = '{"prompt_tokens": 1200, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}'
    seen = {"first_us": 1.7e15, "streamed": True, "chunks": 9, "usage": usage}
    message = wire(*(entry(seen=seen, tags={"connect_us": "150", "fresh_us": "-"}) for _ in range(10)))
    begun = time.process_time()
    for _ in range(calls // 10):
        for log_entry in StreamAccessLogsMessage.FromString(message).http_logs.log_entry:
            decode(log_entry)
    report_us = (time.process_time() - begun) / calls * 1e6
    print(f"picker: {answer_us:.1f} us to answer a first token, {report_us:.1f} us to decode a report")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["ways", "filter", "receiver"], help="one part, all by default")
    parser.add_argument("--tokens", default="16,128,1024", help="answer lengths of the ways")
    options = parser.parse_args()
    if options.only in (None, "ways"):
        uvloop.run(duplex_cost(options.rounds, [int(text) for text in options.tokens.split(",")]))
    if options.only in (None, "receiver"):
        uvloop.run(receiver_cost())
    if options.only in (None, "filter"):
        uvloop.run(envoy_cost(options.rounds))


if __name__ == "__main__":
    main()
