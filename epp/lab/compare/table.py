"""Policies side by side, as a table for people. Pure: runs in, a rich table out."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.lab.compare.stats import Summary


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One column of a comparison.

    Attributes:
        policy: name.
        summary: of its run.
        ttft_p95_interval_ms: interval of TTFT p95, NaN twice when unknown.
        e2e_p95_interval_ms: interval of E2E p95, NaN twice when unknown.
    """

    policy: str
    summary: Summary
    ttft_p95_interval_ms: tuple[float, float] = (float("nan"), float("nan"))
    e2e_p95_interval_ms: tuple[float, float] = (float("nan"), float("nan"))


def comparison_table(runs: Sequence[PolicyRun], title: str = "Same load, fresh fleets") -> Table:
    """Lay policies side by side, one column each; brackets are 95 % intervals within this load."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for run in runs:
        table.add_column(run.policy, justify="right")
    summaries = [run.summary for run in runs]
    table.add_row("requests (failed)", *(f"{s.requests} ({s.errors})" for s in summaries))
    table.add_row("TTFT p50", *(_ms(s.ttft_ms.p50) for s in summaries))
    table.add_row("TTFT p95", *(_ms(r.summary.ttft_ms.p95) + _range(r.ttft_p95_interval_ms) for r in runs))
    table.add_row("E2E p50", *(_ms(s.e2e_ms.p50) for s in summaries))
    table.add_row("E2E p95", *(_ms(r.summary.e2e_ms.p95) + _range(r.e2e_p95_interval_ms) for r in runs))
    table.add_row("ITL p50", *(_ms(s.itl_ms.p50) for s in summaries))
    table.add_row("cached share", *(_share(s.cached_share) for s in summaries))
    table.add_row("hottest replica", *(_share(s.hottest_share) for s in summaries))
    for place in sorted({place for s in summaries for place in s.share_by_place}):
        table.add_row(f"  {place}", *(_share(s.share_by_place.get(place, 0.0)) for s in summaries))
    return table


def _ms(value: float) -> str:
    if isnan(value):
        return "-"
    return (
        f"{value / 1000.0:.2f} s"
        if value >= 1000.0
        else f"{value:.0f} ms"
        if value >= 100
        else f"{value:.1f} ms"
    )


def _share(value: float) -> str:
    return "-" if isnan(value) else f"{100.0 * value:.0f} %"


def _range(ends: tuple[float, float]) -> str:
    return f" [{_ms(ends[0])}, {_ms(ends[1])}]".replace("[", r"\[") if all(map(isfinite, ends)) else ""
