"""Runs over HTTP side by side."""

from __future__ import annotations

from math import isfinite, isnan, nan
from typing import TYPE_CHECKING

from rich.table import Table

from epp.lab.compare.compare import interval
from epp.lab.compare.resample import Statistic
from epp.lab.compare.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.lab.compare.load import RequestResult


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
