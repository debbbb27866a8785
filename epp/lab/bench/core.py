"""The decision alone: what parsing, deciding and observing a request cost without any transport.

CPU time of this thread over a batch of requests, divided by their number. Prompts are `warm` - an endpoint
has nine tenths of them cached, as of a conversation that goes on - or `cold`. A decision is from the body
to the reservation; what is observed is all that is told after it: metrics, two records, first token, access
log.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.lab.bench.prompts import conversation
from epp.lab.bench.reports import first_token_call, log_message
from epp.lab.bench.rig import Rig, recorded, request
from epp.server.als import AccessLogReceiver
from epp.server.first_token import FirstTokenReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp.extproc.types import HttpRequest
    from epp.lab.bench.figures import Figures

#: Prompt length by name, with the requests in a batch.
SIZES = {"200": (200, 200), "1k": (1_000, 120), "18k": (18_000, 48), "100k": (100_000, 10)}
ENDPOINTS = (3, 100, 1000)


@dataclass(slots=True)
class Batch:
    """Requests of one length: each conversation's turn before, and the turn that is measured."""

    earlier: list[bytes]
    requests: list[HttpRequest]


def batch(tokens: int, count: int, seed: int) -> Batch:
    """Conversations of their own for every seed."""
    pairs = [conversation(tokens, seed * 1000 + number) for number in range(1, count + 1)]
    return Batch([before for before, _ in pairs], [request(whole) for _, whole in pairs])


def cpu_us(work: Callable[[], object], count: int) -> float:
    """CPU microseconds of this thread for each of so many requests."""
    gc.collect()
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) / count * 1e6


def decision_us(rig: Rig, requests: Sequence[HttpRequest]) -> tuple[float, float]:
    """Microseconds to read (parse, count, hash) and to decide (filter, look up, price, draw, reserve)."""
    found = []

    def read() -> None:
        for one in requests:
            parsed = rig.parse(one)
            found.append((parsed, rig.measure(parsed)))

    read_us = cpu_us(read, len(requests))
    asks = [rig.ask(parsed, prompt, 0) for parsed, prompt in found]
    decided = []

    def decide() -> None:
        now_s = rig.clock.mono_s()
        for ask in asks:
            decided.append(rig.picker.pick(ask, now_s, 1.7e9))  # noqa: PERF401  # as a server does, one by one

    decide_us = cpu_us(decide, len(asks))
    for decision in decided:
        rig.picker.end(decision.id, "stream-end", rig.clock.mono_s())
    return read_us, decide_us


def whole_us(rig: Rig, requests: Sequence[HttpRequest]) -> tuple[float, float]:
    """Microseconds from request to answer in the core, and of all reports after it."""
    core, answers = rig.core, []

    def ask() -> None:
        for one in requests:
            answers.append(core.decide(one))  # noqa: PERF401

    ask_us = cpu_us(ask, len(requests))
    told = []
    for answer in answers:
        if not hasattr(answer, "decision"):
            raise EppError("a request was refused")
        told.append((answer.decision.id, answer.decision.endpoint))
    calls = [first_token_call(decision_id)[:-2] for decision_id, _ in told]
    messages = [log_message(told[at : at + 10]) for at in range(0, len(told), 10)]
    first_tokens, access_log = FirstTokenReceiver(core.outcomes), AccessLogReceiver(core.outcomes)

    def report() -> None:
        for call in calls:
            first_tokens.answer(call)
        for decision_id, _ in told:
            core.outcomes.stream_ended(decision_id, "stream-end")
        for message in messages:
            access_log.take(message)

    report_us = cpu_us(report, len(requests))
    if access_log.failed or access_log.malformed or first_tokens.malformed:
        raise EppError("reports of this bench were not understood")
    return ask_us, report_us


def measure(figures: Figures, number: int, sizes: Sequence[str], endpoints: Sequence[int]) -> None:
    """One round; ``number`` says which, so that no round meets another's prompts."""
    for name in sizes:
        tokens, count = SIZES[name]
        for size in endpoints:
            given = batch(tokens, count, number + 1)
            cold = Rig(size)
            read_us, decide_us = decision_us(cold, given.requests)
            figures.add(f"core/{name}/{size}/cold", "ms", (read_us + decide_us) / 1e3)
            warm = Rig(size)
            for body in given.earlier:
                warm.cache(body)
            read_us, decide_us = decision_us(warm, given.requests)
            figures.add(f"core/{name}/{size}/warm", "ms", (read_us + decide_us) / 1e3)
            figures.add(f"core/{name}/{size}/warm: parse", "ms", read_us / 1e3)
            figures.add(f"core/{name}/{size}/warm: decide", "ms", decide_us / 1e3)


def measure_observing(figures: Figures, number: int, sizes: Sequence[str], endpoints: Sequence[int]) -> None:
    """One round of what comes after a decision."""
    for name in sizes:
        tokens, count = SIZES[name]
        for size in endpoints:
            given = batch(tokens, count, number + 1)
            with recorded() as recorder:
                rig = Rig(size, recorder)
                for body in given.earlier:
                    rig.cache(body)
                ask_us, report_us = whole_us(rig, given.requests)
            figures.add(
                f"core/{name}/{size}/answer", "ms", ask_us / 1e3, "parse to reply, counted and queued"
            )
            figures.add(f"core/{name}/{size}/reports", "ms", report_us / 1e3, "first token, end, access log")
