"""Agents whose contexts outgrow the engines' KV caches: what holding their turns gains, and what it costs.

Recorded sessions of Claude Code in closed loop, with their own think times up to 10 s, contexts up to 128k
tokens, and the tool list and system prompt that all of them share. A load is the sum of contexts over the KV
caches of two engines. Sessions, seeds and loads were written down before there was a policy; cells that are
called ``last`` take the other half of the sessions, for the last run. Traces come from the folder of
``EPP_TRACES``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp_lab.compare.trace import TraceRequest, in_time_order
from epp_lab.experiment import CellRun, Experiment, mean_text, ratio_text
from epp_lab.experiments.queue import MAGAGENT, recorded_sessions, sessions_of
from epp_lab.sim.engine_class import H100, EngineClass
from epp_lab.sim.network import NetworkPath
from epp_lab.sim.run import run_window
from epp_lab.sim.scenario import FleetSpec, PickerOptions, ReplicaSpec, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


SEED = 903
LOADS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: Share of a KV cache that contexts just fill: the rest takes answers, and what ended sessions left.
FILLED = 0.9
#: Turns of each user; what lies between the first and the last fifth of all turns is measured.
TURNS = 50
_MAX_CONTEXT_TOKENS = 128_000
#: Blocks of the trace in one of ours, and where ids begin that all sessions share.
_COARSE, _SHARED = 4, 1 << 60
#: 50 us a token, what an H100 takes for 8B at some 50k tokens of context.
PREFILL_BOUND = replace(
    H100,
    name="prefill-bound",
    prefill_ms_per_token=0.05,
    decode_curve=((1, 23.0), (2, 26.0)),  # 20 ms and .05 ms for each thousand tokens of context
    kv_capacity_tokens=1_000_000,
    context_tokens=140_000,
)
DECODE_BOUND = replace(PREFILL_BOUND, name="decode-bound", decode_curve=((1, 32.0), (2, 44.0)))


#: Short contexts and long answers, as LMCache's other agents have: a tenth of the KV cache.
SMALL = replace(H100, name="small-contexts", kv_capacity_tokens=100_000)


class Load(NamedTuple):
    """What is asked of whom.

    Attributes:
        load: contexts over KV caches.
        engine: of the fleet.
        last: the other half of the sessions.
        chats: requests of chat beside them.
        reported: KV capacity that engines report, over the true one.
        think_s: longest pause.
        patience_s: after which clients give up what waits.
        pickers: that share what they know.
        trace: recorded sessions.
        side_by_side: with sub-agents, which begin with a turn of their session and go on beside it.
    """

    load: float
    engine: EngineClass = PREFILL_BOUND
    last: bool = False
    chats: int = 0
    reported: float = 1.0
    think_s: float = 10.0
    patience_s: float = inf
    pickers: int = 1
    trace: str = "claude_code_sessions"
    side_by_side: bool = False


_FIRST = {f"{load}": Load(load) for load in LOADS}
for _load in (1.0, 2.0):
    _one = Load(_load)
    _FIRST |= {
        f"{_load} decode-bound": _one._replace(engine=DECODE_BOUND),
        f"{_load} and chat": _one._replace(chats=3_000),
        f"{_load} capacity -10 %": _one._replace(reported=0.9),
        f"{_load} capacity +10 %": _one._replace(reported=1.1),
        f"{_load} think to 600 s": _one._replace(think_s=600.0),
        f"{_load} give up after 60 s": _one._replace(patience_s=60.0),
        f"{_load} four pickers": _one._replace(pickers=4),
        f"{_load} sub-agents": _one._replace(side_by_side=True),
        f"{_load} {MAGAGENT}": _one._replace(engine=SMALL, trace=MAGAGENT),
    }
_LAST = {f"{name} last": load._replace(last=True) for name, load in _FIRST.items()}
CELLS: Mapping[str, Load] = _FIRST | _LAST
ENTRIES = ("early", "affinity", "queue", "programs")


class _Session(NamedTuple):
    """Tokens of a block, tokens that all share, turns, and sub-agents by the turn that they begin with."""

    block: int
    shared_tokens: int
    turns: Sequence[list[Any]]
    subs: Mapping[int, Sequence[list[list[Any]]]]


@cache
def _sessions(trace: str, last: bool, side_by_side: bool) -> Sequence[_Session]:
    if trace == MAGAGENT:
        found = [_Session(block, 0, turns, {}) for block, turns in sessions_of(trace)]
    else:
        found = [_recorded(row) for row in recorded_sessions(trace)]
    half = [session for at, session in enumerate(found) if at % 2 == last]
    return [session for session in half if session.subs] if side_by_side else half


def _recorded(row: Mapping[str, Any]) -> _Session:
    turns, subs = list[list[Any]](), dict[int, list[list[list[Any]]]]()
    for one in row["requests"]:
        if isinstance(one, list):
            turns.append(one)
        else:
            subs.setdefault(len(turns), []).append(one["sub"])
    return _Session(row["block"], row["tool_tokens"] + row["system_tokens"], turns, subs)


def chat(count: int) -> Iterator[TraceRequest]:
    """Make a short request of no session each second."""
    for number in range(count):
        yield TraceRequest(
            number * 1e3, "", "chat", 1_024, 100, tuple(range(-4 * number - 4, -4 * number)), 256
        )


def agents(kv_tokens: float, seed: int, load: Load) -> tuple[TraceRequest, ...]:
    """Let users run recorded sessions one after another, `TURNS` turns each.

    There are as many as have mean contexts, beside what all share, that fill so many tokens together.
    """
    requests: list[TraceRequest] = []
    user = 0
    while kv_tokens > 0.0:
        turns = list(_turns(user, seed, len(requests), load))
        own = [one for one in turns if "+" not in one.session]
        kv_tokens -= sum(map(_own_tokens, own)) / TURNS
        requests += turns
        user += 1
    return in_time_order(requests)


def _own_tokens(request: TraceRequest) -> int:
    shared = sum(block >= _SHARED for block in request.block_ids)
    return request.prompt_tokens - shared * request.block_tokens


def _turns(user: int, seed: int, first: int, load: Load) -> Iterator[TraceRequest]:
    sessions = _sessions(load.trace, load.last, load.side_by_side)
    at_s, number, session = 60.0 * keyed_uniform(seed, str(user), "start"), first, 0
    turns_left, after = TURNS, None
    while turns_left > 0:
        row = sessions[int(len(sessions) * keyed_uniform(seed, f"{user} {session}", "session"))]
        own = ((user << 8) + session) << 24
        name = f"u{user}.{session}" + (" cut" if len(row.turns) > turns_left else "")
        for at, turn in enumerate(row.turns):
            if turn[1] > _MAX_CONTEXT_TOKENS or not turns_left:
                break
            pause_s = min(turn[4] or 0.0, load.think_s)
            yield replace(
                _made(row, turn, own, name, f"u{user}"),
                at_ms=at_s * 1e3,
                after=after,
                think_ms=pause_s * 1e3 if after is not None else 0.0,
            )
            before, after, number, turns_left = after, number, number + 1, turns_left - 1
            for which, sub in enumerate(row.subs.get(at, ()) if load.side_by_side else ()):
                started, beside_s = before, at_s  # it begins when this turn does
                for one in sub:
                    made = _made(row, one, own, f"{name}+{at}.{which}", f"u{user}")
                    think_s = min(one[4] or 0.0, load.think_s)
                    yield replace(made, at_ms=beside_s * 1e3, after=started, think_ms=think_s * 1e3)
                    started, number = number, number + 1
                    beside_s += min(one[3] or 0.0, 5.0)
            at_s += min(turn[3] or 0.0, 5.0) + pause_s
        session += 1


def _made(row: _Session, turn: list[Any], own: int, session: str, user: str) -> TraceRequest:
    """Make a turn's request, its blocks by four."""
    prompt, ranges, block = turn[1], turn[5], row.block * _COARSE
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    ids = [at for low, high in pairs for at in range(low, high + 1)][: -(-prompt // row.block)]
    blocks = ids[_COARSE - 1 :: _COARSE] + ids[len(ids) - len(ids) % _COARSE :][-1:]
    return TraceRequest(
        at_ms=0.0,
        session=session,
        user=user,
        prompt_tokens=prompt,
        output_tokens=max(turn[2], 1),
        block_ids=tuple(
            _SHARED + at if (at + 1) * block <= row.shared_tokens else own + one
            for at, one in enumerate(blocks)
        ),
        block_tokens=block,
    )


def fleet(engine: EngineClass, reported: float = 1.0) -> FleetSpec:
    """Make two engines that report so much of their KV capacity."""
    return FleetSpec(
        tuple(
            ReplicaSpec(f"{engine.name}-{n}:8000", engine, NetworkPath(2.0), kv_report_factor=reported)
            for n in (1, 2)
        )
    )


def measures(requests: Sequence[TraceRequest], every: Sequence[Any]) -> dict[str, float]:
    """Sum up a run, simulated or as a client saw it; what is of no session is chat."""
    results = [one for one in every if one.session]
    ends = sorted(one.intended_ms + one.e2e_ms for one in results)
    from_ms, until_ms = ends[len(ends) // 5], ends[4 * len(ends) // 5]
    within = [one for one in results if from_ms < one.intended_ms + one.e2e_ms <= until_ms]
    done = [one for one in within if one.ok and one.ttft_ms is not None]
    ttft_ms = [one.ttft_ms or 0.0 for one in done]
    spans, users = dict[str, list[float]](), dict[str, int]()
    for one in results:
        request = requests[one.index]
        users.setdefault(request.user, 0)
        if not request.session.endswith("cut"):
            span = spans.setdefault(request.session, [one.intended_ms, 0.0])
            span[:] = min(span[0], one.intended_ms), max(span[1], one.intended_ms + one.e2e_ms)
    for one in within:
        users[requests[one.index].user] += one.ok
    job_s = [(end - start) / 1e3 for start, end in spans.values()]
    turns = np.array(list(users.values()), float)
    chats_ms = [
        one.ttft_ms or 0.0
        for one in every
        if not one.session and one.ok and from_ms < one.intended_ms <= until_ms
    ]
    return {
        "turns/s": len(done) / (until_ms - from_ms) * 1e3,
        "hits": sum(one.cached_tokens or 0 for one in done) / max(sum(one.prompt_tokens for one in done), 1),
        "TTFT p50 s": float(np.percentile(ttft_ms, 50)) / 1e3,
        "TTFT p95 s": float(np.percentile(ttft_ms, 95)) / 1e3,
        "JCT p50 s": float(np.percentile(job_s, 50)),
        "JCT p95 s": float(np.percentile(job_s, 95)),
        "TTFT > 30 s %": 100.0 * float(np.mean(np.array(ttft_ms) > 30e3)),
        "held > 30 s %": 100.0 * float(np.mean([getattr(one, "queued_ms", 0.0) > 30e3 for one in within])),
        "longest wait s": max(getattr(one, "queued_ms", 0.0) for one in results) / 1e3,
        "Jain": float(turns.sum() ** 2 / (len(turns) * (turns**2).sum())),
        "failed": float(sum(not one.ok for one in every)),
        "chat TTFT p95 s": float(np.percentile(chats_ms or [np.nan], 95)) / 1e3,
    }


def run(cell: str, entry: str, seed: int) -> dict[str, float]:
    """Run one load under one policy."""
    load = CELLS[cell]
    turns = agents(2.0 * FILLED * load.load * load.engine.kv_capacity_tokens, SEED + seed, load)
    requests = in_time_order([*turns, *chat(load.chats)])
    options = WindowOptions(patience_s=load.patience_s, pickers=PickerOptions(count=load.pickers))
    policy = "session-affinity-bounded" if entry == "affinity" else "gorgo-ms"
    if entry == "queue":
        options = options.with_queue()
    elif entry == "programs":
        options = options.with_programs()
    found = fleet(load.engine, load.reported)
    result = run_window(requests, found, policy, seed=SEED + seed, options=options)
    return measures(requests, result.requests)


#: Columns of `goals`: ratios to early binding, and means with and without.
_RATIOS = ("turns/s", "JCT p50 s", "JCT p95 s", "TTFT p95 s")
_MEANS = ("hits", "TTFT p50 s", "chat TTFT p95 s", "held > 30 s %", "longest wait s", "Jain")


def goals(runs: Sequence[CellRun]) -> str:
    """Write a row for each cell whose turns are held: ratios to early binding, means beside its means."""
    found = {run.key: run for run in runs}
    heads = [
        "cell",
        "seeds",
        *(f"{name}, ratio" for name in _RATIOS),
        *(f"{name} (early)" for name in _MEANS),
    ]
    lines = ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell in dict.fromkeys(run.cell for run in runs if run.entry == "programs"):
        held = [run for run in runs if run.key[:2] == (cell, "programs")]
        early = [found.get((cell, "early", run.seed)) for run in held]
        row = [cell, f"{len(held)}"]
        for name in _RATIOS:
            pairs = [
                (one.value(name), other.value(name)) for one, other in zip(held, early, strict=True) if other
            ]
            row.append(ratio_text(np.log(np.array([one / other for one, other in pairs]))))
        for name in _MEANS:
            text = mean_text(np.array([run.value(name) for run in held]), ".3g")
            without = mean_text(np.array([run.value(name) for run in early if run]), ".3g").split(" ")[0]
            row.append(f"{text} ({without})")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    question="What does holding the turns of agents gain where their contexts outgrow the KV caches?",
    cells=CELLS,
    entries=ENTRIES,
    run=run,
    seeds=10,
    on_request=tuple(_LAST),
    ranges=("failed",),
    minutes=120,
    summary=goals,
)
