"""Tables for people: what is going on during a run, and policies side by side after it.

Owns: the accumulated state of a live run and how runs are laid out. Pure: state in, rich renderables out;
whoever has the terminal prints them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.lab.compare.stats import Summary, percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from epp.lab.compare.load import RequestResult

_KEPT = 10_000  # latest values behind the live percentiles
_BAR_CELLS = 12


def _recent() -> deque[float]:
    return deque(maxlen=_KEPT)


@dataclass(slots=True)
class _Place:
    """What one region (or endpoint) has served."""

    requests: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    ttft_ms: deque[float] = field(default_factory=_recent)
    e2e_ms: deque[float] = field(default_factory=_recent)


@dataclass(slots=True)
class LiveState:
    """A run so far. Feed it `sent` and `result`; memory is bounded.

    Attributes:
        title: heading of the table, e.g. the policy's name.
        total: requests planned, 0 when not known.
        regions: region names by ``served_by``.
    """

    title: str
    total: int = 0
    regions: Mapping[str, str] = field(default_factory=dict)
    sent_count: int = 0
    done: int = 0
    errors: int = 0
    last_error: str = ""
    places: dict[str, _Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Known regions have a row from the start: a table that grows is hard to read."""
        for region in self.regions.values():
            self.places.setdefault(region, _Place())

    @property
    def in_flight(self) -> int:
        """Sent and not finished."""
        return self.sent_count - self.done

    def sent(self, index: int) -> None:  # noqa: ARG002 - has the shape of the load generator's callback
        """A request goes out."""
        self.sent_count += 1

    def result(self, result: RequestResult) -> None:
        """A request has finished."""
        self.done += 1
        if not result.ok:
            self.errors += 1
            self.last_error = result.error
            return
        name = self.regions.get(result.served_by, result.served_by) or "unknown"
        place = self.places.setdefault(name, _Place())
        place.requests += 1
        place.e2e_ms.append(result.e2e_ms)
        if result.ttft_ms is not None:
            place.ttft_ms.append(result.ttft_ms)
        if result.cached_tokens is not None and result.prompt_tokens:
            place.cached_tokens += result.cached_tokens
            place.prompt_tokens += result.prompt_tokens


def live_table(state: LiveState) -> RenderableType:
    """The state as a table: one row a region, totals below."""
    planned = f" of {state.total}" if state.total else ""
    table = Table(
        title=f"{state.title}: {state.done}{planned} answered, {state.in_flight} in flight",
        title_justify="left",
    )
    # In 80 columns, a terminal's usual width, the bar gives way and no figure does.
    table.add_column("region", no_wrap=True)
    for heading in ("reqs", "share", "", "TTFT\np50", "TTFT\np95", "E2E\np50", "E2E\np95", "cached"):
        bar = heading == ""
        table.add_column(heading, justify="right", no_wrap=not bar, max_width=_BAR_CELLS if bar else None)
    served = sum(place.requests for place in state.places.values())
    for name, place in state.places.items():
        share = place.requests / served if served else 0.0
        table.add_row(name, *_place_cells(place, share))
    table.add_section()
    table.add_row("all", *_place_cells(_merged(state.places.values()), 1.0 if served else 0.0), style="bold")
    if not state.errors:
        return table
    return Group(table, Text(f"{state.errors} failed, last: {state.last_error[:100]}", style="red"))


def _merged(places: Iterable[_Place]) -> _Place:
    total = _Place()
    for place in places:
        total.requests += place.requests
        total.cached_tokens += place.cached_tokens
        total.prompt_tokens += place.prompt_tokens
        total.ttft_ms.extend(place.ttft_ms)
        total.e2e_ms.extend(place.e2e_ms)
    return total


def _place_cells(place: _Place, share: float) -> list[RenderableType]:
    cached = place.cached_tokens / place.prompt_tokens if place.prompt_tokens else float("nan")
    return [
        str(place.requests),
        _share(share),
        Bar(1.0, 0.0, share),
        *(_ms(percentile(values, q)) for values in (place.ttft_ms, place.e2e_ms) for q in (50, 95)),
        _share(cached),
    ]


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
