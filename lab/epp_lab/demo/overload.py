"""`epp demo --overload`: more than replicas can serve, with requests that wait in the picker and without.

The load was fixed before any run of it. By the replicas' constants a request takes one of them some 290 ms
where contexts are computed once: 240 ms of prefill, 50 ms of all else. Three serve ten requests a second.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from epp_lab.compare.load import objective_of
from epp_lab.compare.measure import figures, from_live
from epp_lab.compare.report import panels
from epp_lab.compare.stats import percentile
from epp_lab.demo.example import exit_status, write_report
from epp_lab.demo.stack import Replica, Stack
from epp_lab.experiments.queue import jain
from epp_lab.page import html
from epp_lab.plot import Panel, figure
from epp_lab.workloads.content import Content, arrivals
from epp_lab.workloads.tenants import Tenancy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from epp_lab.compare.load import RequestResult
    from epp_lab.compare.trace import TraceRequest

NAMES = ("engine-1", "engine-2", "engine-3")
#: How long requests are sent, from when on they count, and how long one waits at most.
LOAD_S, WARMUP_S, TTL_S = 30.0, 5.0, 10.0
#: Requests a second that the replicas can serve, and how many times as many are sent.
CAPACITY, TIMES = 10.0, 1.5
#: The first tenant sends half of it; a fifth of the sessions are of high priority.
SHARED = Tenancy(tenants=4, high_share=0.2)
#: A session: a context that its turns share, two seconds apart, and what each adds.
_TURNS, _PAUSE_S, _CONTEXT_TOKENS, _OWN_TOKENS, _OUTPUT_TOKENS = 4, 2.0, (8_000, 16_000), 1_000, 24
_SECTIONS = {
    "without a queue": {},
    "with it": {"queue": {"enabled": True, "ttl_s": TTL_S, "priorities": {objective_of(1): 1}}},
}


def generate(seed: int) -> tuple[TraceRequest, ...]:
    """Return the load for a seed, in time order, open loop."""
    rng, content = np.random.default_rng(seed), Content(64)
    for number, at_s in enumerate(arrivals(rng, CAPACITY * TIMES * LOAD_S / _TURNS, 0.0, LOAD_S)):
        prompt, name = content.whole_blocks(int(rng.integers(*_CONTEXT_TOKENS))), f"{seed}-{number}"
        for turn in range(_TURNS):
            if (due_s := at_s + turn * _PAUSE_S) < LOAD_S:
                prompt = content.grown(prompt, prompt.tokens + _OWN_TOKENS, (prompt.tokens,))
                content.send(prompt, at_s=due_s, session=name, user=name, output_tokens=_OUTPUT_TOKENS)
    return SHARED.apply(content.in_order())


async def show(arguments: argparse.Namespace) -> int:
    """Send the load without a queue and with it, and print what came of it."""
    console, out = Console(), arguments.out
    requests = generate(arguments.seed)
    text = (
        f"{len(requests)} requests of seed {arguments.seed} within {LOAD_S:g} s, {TIMES:g} times what "
        f"{len(NAMES)} simulated replicas serve, through a real Envoy; one of four tenants sends half of "
        "them, a fifth are of high priority"
    )
    console.print(text, highlight=False)
    runs: dict[str, list[RequestResult]] = {}
    for name, sections in _SECTIONS.items():
        console.print(f"{name} ...", highlight=False)
        policy = {"policy": {"name": arguments.policy}}
        replicas = [Replica(engine, rtt_ms=1.0) for engine in NAMES]
        envoy = {"queue_wait_s": TTL_S}
        async with Stack(out / name.replace(" ", "-"), replicas, policy | sections, envoy=envoy) as stack:
            runs[name] = await stack.send(requests)
    found = {name: served(requests, results) for name, results in runs.items()}
    said, table = verdict(found), served_table(found)
    console.print(table, *said, sep="\n", highlight=False)
    counted = np.array([request.at_ms >= WARMUP_S * 1e3 for request in requests])
    curves = {
        name: asdict(figures(from_live(results, len(requests)), requests, counted, pace=1.0))
        for name, results in runs.items()
    }
    tenants = [*next(iter(found.values())).tokens]
    bars = {
        name: [(at, each.tokens[tenant]) for at, tenant in enumerate(tenants)] for name, each in found.items()
    }
    title, labels = "Tokens served, low priority", dict[float, str](enumerate(tenants))
    by_tenant = Panel(title, "tenant", "tokens", bars, labels, [*labels], drawn="bars")
    charts = figure("The same load", [*panels(curves, NAMES), by_tenant])
    write_report(console, out, "A picker with a queue and without", [html(text), charts, html(table)], said)
    return exit_status(runs)


class Served(NamedTuple):
    """What became of a load, of the requests that count.

    Attributes:
        requests: how many.
        high_ttft_s: high priority's 95th percentile.
        low_ttft_s: the same of low priority.
        tokens: of low priority that were served while the load came, by tenant.
        jain: index of them over their fair share.
        tokens_per_s: of all priorities.
        hits: share of served prompts that was cached.
        refused: requests.
    """

    requests: int
    high_ttft_s: float
    low_ttft_s: float
    tokens: Mapping[str, float]
    jain: float
    tokens_per_s: float
    hits: float
    refused: int


def served(requests: Sequence[TraceRequest], results: Sequence[RequestResult]) -> Served:
    """Sum up a run."""
    due = [(requests[one.index], one) for one in results if one.intended_ms >= WARMUP_S * 1e3]
    ok = [(request, one) for request, one in due if one.ok]
    ttft_s: dict[int, list[float]] = {0: [], 1: []}
    asked, tokens = ({f"t{at}": 0.0 for at in range(SHARED.tenants)} for _ in range(2))
    total = 0.0
    for request, _ in due:
        if not request.priority:
            asked[request.tenant] += request.prompt_tokens + request.output_tokens
    for request, one in ok:
        ttft_s[request.priority].append((one.ttft_ms or 0.0) / 1e3)
        size = request.prompt_tokens + (one.completion_tokens or 0)
        if one.intended_ms + one.e2e_ms <= LOAD_S * 1e3:
            total += size
            tokens[request.tenant] += 0 if request.priority else size
    return Served(
        len(due),
        percentile(ttft_s[1], 95),
        percentile(ttft_s[0], 95),
        tokens,
        jain(tokens, asked),
        total / (LOAD_S - WARMUP_S),
        sum(one.cached_tokens or 0 for _, one in ok) / max(sum(one.prompt_tokens or 0 for _, one in ok), 1),
        len(due) - len(ok),
    )


def served_table(found: Mapping[str, Served]) -> Table:
    """Lay out a row a figure."""
    table = Table("", *found, title="The same load, fresh fleets", title_justify="left")
    rows = {
        "high priority's TTFT p95": "{0.high_ttft_s:.2f} s",
        "low priority's TTFT p95": "{0.low_ttft_s:.2f} s",
        "Jain's index of low priority's tenants": "{0.jain:.3f}",
        "tokens served a second": "{0.tokens_per_s:,.0f}",
        "hits": "{0.hits:.2f}",
        "refused": "{0.refused} of {0.requests}",
    }
    for name, shape in rows.items():
        table.add_row(name, *map(shape.format, found.values()))
    return table


def verdict(found: Mapping[str, Served]) -> list[str]:
    """Say in words what the queue does."""
    without, queued = found.values()
    more = queued.tokens_per_s / without.tokens_per_s - 1.0
    return [
        f"High priority's TTFT p95 is {queued.high_ttft_s:.2f} s with it, {without.high_ttft_s:.2f} s else.",
        f"Jain's index of tenants is {queued.jain:.3f} with it, {without.jain:.3f} without.",
        f"With it {abs(more):.0%} {'more' if more > 0 else 'fewer'} tokens are served while the load comes.",
        f"{queued.refused} of {queued.requests} requests fail with it, {without.refused} without.",
    ]
