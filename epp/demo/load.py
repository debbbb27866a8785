"""The demo's load: generated chat by default, the head of a trace file when asked for one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.replay.files import load_trace
from epp.replay.trace import select
from epp.replay.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.replay.load import RequestResult
    from epp.replay.trace import TraceRequest

#: Longest prompt taken from a trace: what a simulated replica's context holds, less the answer.
MAX_PROMPT_TOKENS = 24_000
OUTPUT_TOKENS = 64
#: What a demo holds in memory and on the clock at most; longer loads are `epp replay`'s.
MOST_REQUESTS, MOST_SECONDS = 100_000, 86_400.0


def check_load(arguments: argparse.Namespace) -> None:
    """Refuse a length, a rate or a seed that no load has.

    Raises:
        EppError: naming the flags.
    """
    if not (0 < arguments.seconds < math.inf and 0 < arguments.rate < math.inf):
        raise EppError("--seconds and --rate must be above 0")
    if arguments.seconds > MOST_SECONDS or arguments.seconds * arguments.rate > MOST_REQUESTS:
        raise EppError(
            f"--seconds and --rate: a demo takes at most {MOST_SECONDS:,.0f} s and sends at most "
            f"{MOST_REQUESTS:,} requests; `epp replay` simulates longer loads"
        )
    if arguments.seed < 0:
        raise EppError("--seed must be 0 or more")


def load_of(arguments: argparse.Namespace) -> Sequence[TraceRequest]:
    """The load that the arguments ask for.

    Raises:
        EppError: the trace cannot be read, or there is nothing to send, or a flag that makes no sense.
    """
    check_load(arguments)
    if arguments.trace is None:
        parameters = replace(DEMO, duration_s=arguments.seconds, rate_rps=arguments.rate)
        requests: Sequence[TraceRequest] = generate(parameters, arguments.seed)
    else:
        requests = _head(arguments.trace, arguments.seconds, arguments.rate, arguments.seed)
    if not requests:
        raise EppError("the load is empty: more --seconds, or another --trace")
    return requests


def unanswered(runs: Mapping[str, Sequence[RequestResult]]) -> list[str]:
    """A sentence for each policy under which every request failed: such a demo has shown nothing."""
    return [
        f"{policy}: no request was answered, the last one because of: {results[-1].error}"
        for policy, results in runs.items()
        if not any(result.ok for result in results)
    ]


def _head(path: Path, seconds: float, rate_rps: float, seed: int) -> Sequence[TraceRequest]:
    """As many requests as ``rate_rps`` for ``seconds`` makes, arrivals sped up to fit, answers cut short."""
    requests = select(load_trace(path, seed=seed), max_prompt_tokens=MAX_PROMPT_TOKENS)
    wanted = round(seconds * rate_rps)
    requests = select(requests, until_ms=requests[wanted].at_ms) if wanted < len(requests) else requests
    last_ms = max((request.at_ms for request in requests), default=0.0)
    speed = seconds * 1e3 / last_ms if last_ms > 0 else 1.0
    return [
        replace(
            request,
            at_ms=request.at_ms * speed,
            think_ms=request.think_ms * speed,
            output_tokens=min(request.output_tokens, OUTPUT_TOKENS),
        )
        for request in requests
    ]
