"""The load of `epp demo`: generated chat, or the head of a trace file."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.errors import EppError
from epp.lab.compare.files import load_trace
from epp.lab.compare.trace import select
from epp.lab.workloads.art_chat import DEMO, generate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from epp.lab.compare.load import RequestResult
    from epp.lab.compare.trace import TraceRequest

#: Longest prompt taken from a trace: what a simulated replica's context holds, less the answer.
MAX_PROMPT_TOKENS = 24_000
OUTPUT_TOKENS = 64
MOST_REQUESTS = 100_000


def load_of(arguments: argparse.Namespace) -> Sequence[TraceRequest]:
    """Make the load that the arguments ask for.

    Raises:
        EppError: the trace cannot be read, or there is nothing to send, or too much.
    """
    if arguments.seconds * arguments.rate > MOST_REQUESTS:
        raise EppError(
            f"a demo sends at most {MOST_REQUESTS:,} requests; `epp replay` simulates longer loads"
        )
    if arguments.trace is None:
        parameters = replace(DEMO, duration_s=arguments.seconds, rate_rps=arguments.rate)
        requests: Sequence[TraceRequest] = generate(parameters, arguments.seed)
    else:
        requests = _head(arguments.trace, arguments.seconds, arguments.rate, arguments.seed)
    if not requests:
        raise EppError("the load is empty: more --seconds, or another --trace")
    return requests


def exit_status(runs: Mapping[str, Sequence[RequestResult]]) -> int:
    """Report policies under which every request failed, as nothing was shown of them; 1 if there are any."""
    failed = [policy for policy, results in runs.items() if not any(result.ok for result in results)]
    for policy in failed:
        last = runs[policy][-1].error
        print(f"epp: {policy}: no request was answered, the last one because of: {last}", file=sys.stderr)
    return 1 if failed else 0


def _head(path: Path, seconds: float, rate_rps: float, seed: int) -> Sequence[TraceRequest]:
    """Take as many requests as ``rate_rps`` for ``seconds`` makes, sped up to fit, answers cut short."""
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
