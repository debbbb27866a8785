"""Let requests wait in the picker: what it costs below saturation, and what it keeps above.

The first three loads and their capacities were written down before there was a queue. Its constants were set
after a look at them under two other seeds (702 and 703, which no run here meets). The last two loads were
named after that, before the queue met them. Traces come from the folder of ``EPP_TRACES``: Mooncake's
conversations (as many windows as seeds; they overlap), recorded sessions of Claude Code, and LMCache's
of other agents, with long answers and short contexts.

Capacity is the pace up to which four engines without a queue keep up; of Claude Code the number of sessions
whose contexts just fill the engines' KV caches. Of the last two loads it is the largest pace, in steps of a
tenth from a pace at which they do, with a TTFT p95 without a queue of at most three times that at half the
pace (means of seeds 20 and 21, which are not judged).
"""

from __future__ import annotations

import gzip
import math
import os
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp_lab.compare.plan import Source
from epp_lab.compare.trace import TraceRequest, in_time_order
from epp_lab.experiment import CellRun, Experiment, ratio_text
from epp_lab.sim.engine_class import H100
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import FleetSpec, ReplicaSpec, WindowOptions, parse_fleet
from epp_lab.workloads.tenants import Tenancy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


SEED = 711
#: How long requests are sent; the first part does not count.
WINDOW_S, WARMUP_S = 240.0, 60.0
FRACTIONS = (0.6, 0.7, 0.9, 1.1, 1.5)
FLEET = parse_fleet("h100@2*4")
_LONG = replace(H100, context_tokens=140_000, kv_capacity_tokens=1_000_000)
LONG_FLEET = FleetSpec(tuple(ReplicaSpec(f"h100-{n}:8000", _LONG, NetworkPath(2.0)) for n in range(4)))
#: Paces at capacity: of Mooncake's trace, of agents in sessions, of generated loads by their usual pace.
MOONCAKE, SESSIONS, MAGAGENT_SESSIONS = 2.8, 72, 285
GENERATED = {"chat": ("art-chat-apr-7", 6.0), "shared-30": ("shared-30", 3.3)}
MAGAGENT = "lmcache_agent_magagent_hash16"
SHARED = Tenancy(tenants=4, high_share=0.2)
_DEADLINES = (1_000.0, 10_000.0)
_MAX_CONTEXT_TOKENS, _MAX_THINK_S = 128_000, 10.0


class Load(NamedTuple):
    """A load, what part of capacity it asks for, and who shares it."""

    name: str
    fraction: float
    tenancy: Tenancy = SHARED


_DEADLINE_CELLS = {
    "chat 1.1 deadlines one tenant": Load("chat", 1.1, Tenancy(deadline_ms=_DEADLINES)),
    "chat 1.1 deadlines four tenants": Load("chat", 1.1, replace(SHARED, deadline_ms=_DEADLINES)),
}
CELLS: Mapping[str, Load] = {
    f"{name} {fraction}": Load(name, fraction)
    for name in ("mooncake_conversation", "claude_code_sessions", "chat", MAGAGENT, "shared-30")
    for fraction in FRACTIONS
} | {**_DEADLINE_CELLS, "claude_code_sessions 1.0": Load("claude_code_sessions", 1.0)}
ENTRIES = ("off", "on")


def trace_file(name: str, form: str = "jsonl") -> Path:
    """Return where a trace lies."""
    return Path(os.environ.get("EPP_TRACES", "traces"), f"{name}.{form}.gz")


@cache
def recorded_sessions(name: str = "claude_code_sessions") -> Sequence[Mapping[str, Any]]:
    """Read recorded sessions or requests."""
    with gzip.open(trace_file(name)) as lines:
        return [msgspec.json.decode(line) for line in lines]


@cache
def sessions_of(name: str) -> Sequence[tuple[int, Sequence[list[Any]]]]:
    """Read block size and requests of each session, without those of sub-agents."""
    rows = recorded_sessions(name)
    if name == "claude_code_sessions":
        return [(row["block"], [one for one in row["requests"] if isinstance(one, list)]) for row in rows]
    sessions: dict[str, list[list[Any]]] = {}
    for row in rows:
        if row["input_length"]:
            sessions.setdefault(row["session_id"], []).append(
                [
                    row["timestamp"] / 1e3,
                    row["input_length"],
                    row["output_length"],
                    0.0,
                    0.0,
                    [at for one in row["hash_ids"] for at in (one, one)],
                ]
            )
    for requests in sessions.values():  # when it was answered is not recorded: after half of the time
        for one, following in pairwise(requests):
            following[4] = one[3] = (following[0] - one[0]) / 2
    return [(16, requests) for requests in sessions.values()]


def agents(name: str, users: int, seed: int, window_s: float = WINDOW_S) -> tuple[TraceRequest, ...]:
    """Let each user run recorded sessions one after another, for longer than the window."""
    requests: list[TraceRequest] = []
    for user in range(users):
        requests += _turns(name, user, seed, len(requests), window_s + 60.0)
    return in_time_order(requests)


def _turns(name: str, user: int, seed: int, first: int, until_s: float) -> Iterator[TraceRequest]:
    sessions, at_s, after, number = (
        sessions_of(name),
        30.0 * keyed_uniform(seed, str(user), "start"),
        None,
        first,
    )
    for turn in range(20):
        key = f"{user} {turn}"
        which = int(len(sessions) * keyed_uniform(seed, key, "session"))
        block, rows = sessions[which]
        for _, prompt, output, took_s, think_s, ranges in rows:
            if prompt > _MAX_CONTEXT_TOKENS or at_s > until_s:
                break
            pairs = zip(ranges[::2], ranges[1::2], strict=True)
            blocks = [((user * 20 + turn) << 24) + at for low, high in pairs for at in range(low, high + 1)]
            pause_s = min(think_s or 0.0, _MAX_THINK_S)
            yield TraceRequest(
                at_ms=at_s * 1e3,
                session=f"u{user}.{turn}",
                user=f"u{user}",
                prompt_tokens=prompt,
                output_tokens=max(output, 1),
                block_ids=tuple(blocks[: -(-prompt // block)]),
                block_tokens=block,
                after=after,
                think_ms=pause_s * 1e3 if after is not None else 0.0,
            )
            after, number = number, number + 1
            at_s += min(took_s or 0.0, 5.0) + pause_s


def load(cell: Load, seed: int) -> tuple[Sequence[TraceRequest], WindowOptions, FleetSpec]:
    """Make a load's requests, how they are sent, and the fleet."""
    options, fleet, fraction = WindowOptions(), FLEET, cell.fraction
    if cell.name == "claude_code_sessions":
        requests, fleet = agents(cell.name, round(SESSIONS * fraction), seed), LONG_FLEET
    elif cell.name == MAGAGENT:
        requests = agents(cell.name, round(MAGAGENT_SESSIONS * fraction), seed)
    elif cell.name == "mooncake_conversation":
        pace = MOONCAKE * fraction
        stretch_s = WINDOW_S * pace
        from_s = (3_500.0 - stretch_s) * keyed_uniform(seed, "window", "from")
        trace = str(trace_file(cell.name))
        requests = Source(trace=trace, from_s=from_s, until_s=stretch_s).requests(seed)
        options = replace(options, time_scale=1.0 / pace)
    else:
        workload, rate = GENERATED[cell.name]
        requests = Source(workload=workload, until_s=WINDOW_S, rate=rate * fraction).requests(seed)
    return cell.tenancy.apply(requests), options, fleet


def jain(served: Mapping[str, float], asked: Mapping[str, float]) -> float:
    """Return Jain's index of what tenants were served, over their max-min fair share of what all were."""
    left, shares = sum(served.values()), dict[str, float]()
    for at, (name, tokens) in enumerate(sorted(asked.items(), key=lambda item: item[1])):
        shares[name] = min(tokens, left / (len(asked) - at))
        left -= shares[name]
    ratios = np.array([served.get(name, 0.0) / share for name, share in shares.items() if share])
    return float(ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())) if ratios.any() else 1.0


def measures(
    requests: Sequence[TraceRequest],
    results: Sequence[Any],
    at_ms: Sequence[float],
    window_s: float = WINDOW_S,
    warmup_s: float = WARMUP_S,
) -> dict[str, float]:
    """Sum up a run: of the requests that were due between warm-up and end, and of what was served then.

    Args:
        requests: the load.
        results: simulated, or those of a client.
        at_ms: when each request was due.
        window_s: how long requests were sent.
        warmup_s: what does not count of it.
    """
    end_ms, warm_ms = window_s * 1e3, warmup_s * 1e3
    due = [one for one in results if warm_ms <= at_ms[one.index] <= end_ms]
    by_band = {band: [one for one in due if requests[one.index].priority == band] for band in (0, 1)}

    def p95(of: Sequence[Any], name: str) -> float:
        found = [getattr(one, name) for one in of if one.ok and one.ttft_ms is not None]
        return float(np.percentile(found, 95)) if found else np.nan

    asked, served = dict[str, float](), dict[str, float]()
    tokens = turns = 0.0
    for one in results:
        request = requests[one.index]
        size, ended_ms = request.prompt_tokens + one.completion_tokens, one.intended_ms + one.e2e_ms
        ended = one.ok and warm_ms <= ended_ms <= end_ms
        tokens, turns = tokens + size * ended, turns + ended
        if request.priority == 0:
            if at_ms[one.index] <= end_ms:
                size = request.prompt_tokens + request.output_tokens
                asked[request.tenant] = asked.get(request.tenant, 0.0) + size * (at_ms[one.index] >= warm_ms)
            served[request.tenant] = served.get(request.tenant, 0.0) + size * ended
    met = [
        bool(one.ok and one.ttft_ms is not None and one.ttft_ms <= requests[one.index].deadline_ms)
        for one in due
    ]
    prompts = sum(one.prompt_tokens for one in due if one.ok)
    return {
        "waited %": 100.0 * float(np.mean([getattr(one, "queued_ms", 0.0) > 0.0 for one in due])),
        "high TTFT p95 ms": p95(by_band[1], "ttft_ms"),
        "low TTFT p95 ms": p95(by_band[0], "ttft_ms"),
        "TTFT p95 ms": p95(due, "ttft_ms"),
        "E2E p95 ms": p95(due, "e2e_ms"),
        "hits": sum(one.cached_tokens for one in due if one.ok) / max(prompts, 1),
        "tokens/ms": tokens / (end_ms - warm_ms),
        "turns/s": turns / (end_ms - warm_ms) * 1e3,
        "refused %": 100.0 * float(np.mean([not one.ok for one in due])),
        "deadlines met": float(np.mean(met)),
        "Jain": jain(served, asked),
    }


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one load, with a queue or without."""
    requests, options, fleet = load(CELLS[cell], SEED + seed)
    options = options.with_queue() if entry == "on" else options
    result = run_window(requests, fleet, "gorgo-ms", seed=SEED + seed, options=options)
    at_ms = {one.index: one.intended_ms for one in result.requests}
    return measures(requests, result.requests, [at_ms.get(at, np.inf) for at in range(len(requests))])


def at_overload(runs: Sequence[CellRun]) -> str:
    """Set what a load meets at 1.5 of capacity beside 0.7 without a queue, under the same seeds."""
    found, names = {run.key: run for run in runs}, ("high TTFT p95 ms", "hits")
    lines = ["At 1.5 over 0.7 without a queue:", "", f"| load | | {' | '.join(names)} |", "|---|---|---|---|"]
    for load, entry in product(dict.fromkeys(CELLS[run.cell].name for run in runs), ENTRIES):
        busy = [run for run in runs if run.key[:2] == (f"{load} 1.5", entry)]
        pairs = [(run, found.get((f"{load} 0.7", "off", run.seed))) for run in busy]
        row = [load, entry]
        for name in names:
            # A run may have no hit at all: it counts as a thousandth of the usual hits.
            logs = [math.log(max(run.value(name) / usual.value(name), 1e-3)) for run, usual in pairs if usual]
            row.append(ratio_text(np.array(logs)))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="What does a queue in the picker cost below saturation, and what does it keep above?",
    cells=CELLS,
    entries=ENTRIES,
    run=run,
    seeds=20,
    minutes=89,
    summary=at_overload,
)
