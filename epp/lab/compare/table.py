"""Tables of requests over HTTP: what is going on during a run, and policies side by side after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.compare.compare import interval
from epp.lab.compare.resample import Statistic
from epp.lab.compare.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from epp.lab.compare.load import RequestResult


@dataclass(slots=True)
class LiveState:
    """A run so far.

    Attributes:
        title: heading of the table, e.g. the policy's name.
        total: requests planned.
        regions: names by which answers say who served them; a row each from the start.
        results: of the requests that have finished.
    """

    title: str
    total: int
    regions: Sequence[str]
    results: list[RequestResult] = field(default_factory=list)


def live_table(state: LiveState) -> RenderableType:
    """Lay a run out: one row a region, totals below."""
    table = Table(
        title=f"{state.title}: {len(state.results)} of {state.total} answered", title_justify="left"
    )
    table.add_column("region", no_wrap=True)
    for heading in ("reqs", "share", "TTFT\np50", "TTFT\np95", "E2E\np50", "E2E\np95", "cached"):
        table.add_column(heading, justify="right", no_wrap=True)
    ok = [r for r in state.results if r.ok]
    for region in dict.fromkeys((*state.regions, *(r.served_by or "unknown" for r in ok))):
        table.add_row(region, *_cells([r for r in ok if (r.served_by or "unknown") == region], len(ok)))
    table.add_section()
    table.add_row("all", *_cells(ok, len(ok)), style="bold")
    failed = [r.error for r in state.results if not r.ok]
    if not failed:
        return table
    return Group(table, Text(f"{len(failed)} failed, last: {failed[-1][:100]}", style="red"))


def _cells(results: Sequence[RequestResult], served: int) -> list[str]:
    return [
        str(len(results)),
        _share(len(results) / served if served else 0.0),
        *(_ms(_percentile(results, metric, q)) for metric in ("ttft_ms", "e2e_ms") for q in (50, 95)),
        _share(_cached(results)),
    ]


def comparison_table(runs: Mapping[str, Sequence[RequestResult]]) -> Table:
    """Lay policies side by side, one column each; brackets are 95 % intervals within this load."""
    table = Table(title="Same load, fresh fleets", title_justify="left")
    table.add_column("")
    for policy in runs:
        table.add_column(policy, justify="right")
    answered = [[r for r in results if r.ok] for results in runs.values()]
    failed = (f"{len(results)} ({sum(not r.ok for r in results)})" for results in runs.values())
    table.add_row("requests (failed)", *failed)
    for name, metric in (("TTFT", "ttft_ms"), ("E2E", "e2e_ms")):
        table.add_row(f"{name} p50", *(_ms(_percentile(ok, metric, 50)) for ok in answered))
        p95 = (_ms(_percentile(ok, metric, 95)) + _range(ok, metric) for ok in answered)
        table.add_row(f"{name} p95", *p95)
    table.add_row("ITL p50", *(_ms(_percentile(ok, "itl_ms", 50)) for ok in answered))
    table.add_row("cached share", *(_share(_cached(ok)) for ok in answered))
    for place in sorted({r.served_by for ok in answered for r in ok if r.served_by}):
        served = (sum(r.served_by == place for r in ok) / max(1, len(ok)) for ok in answered)
        table.add_row(f"  {place}", *map(_share, served))
    return table


def _percentile(results: Sequence[RequestResult], metric: str, q: float) -> float:
    return percentile([value for r in results if (value := getattr(r, metric)) is not None], q)


def _cached(results: Sequence[RequestResult]) -> float:
    known = [(r.cached_tokens, r.prompt_tokens) for r in results if r.cached_tokens is not None]
    prompts = sum(prompt or 0 for _, prompt in known)
    return sum(cached for cached, _ in known) / prompts if prompts else nan


def _ms(value: float) -> str:
    if isnan(value):
        return "-"
    if value >= 1000.0:
        return f"{value / 1000.0:.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def _share(value: float) -> str:
    return "-" if isnan(value) else f"{100.0 * value:.0f} %"


def _range(results: Sequence[RequestResult], metric: str) -> str:
    low, high = interval(results, metric, Statistic(95))
    return rf" \[{_ms(low)}, {_ms(high)}]" if isfinite(low) else ""
