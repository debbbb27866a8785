"""What `epp replay` prints: a progress bar while it runs, tables and the conclusion after.

Owns the layout for terminals. The report has the plots.
"""

from __future__ import annotations

import contextlib
import sys
from math import isfinite
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from epp.replay.conclusion import change
from epp.replay.progress_lines import ProgressLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from epp.replay.document import CellEntry, Document, PolicyEntry


@contextlib.contextmanager
def progress(stream: TextIO) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal; on anything else a line every 30 seconds."""
    console = Console(file=stream)
    if not console.is_terminal:
        with ProgressLines(lambda line: print(line, file=stream, flush=True)) as lines:
            yield lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks = {}

        def step(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total)
            bar.update(tasks[title], completed=done)

        yield step


def cell_tables(cell: CellEntry, document: Document) -> list[RenderableType]:
    """One load: figures, comparisons, and what may be said."""
    seeds = len(document.seeds)
    of_seeds = f"mean of {seeds} seeds, " if seeds > 1 else ""
    table = Table(
        title=f"{cell.name}: {of_seeds}first {cell.warmup_s:,.0f} s dropped as warm-up, "
        f"{cell.load['input_tokens_per_s']:,.0f} input tokens/s",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for heading in ("TTFT ms\np50 / p95 / p99", "E2E ms\np50 / p95 / p99", "ITL ms\np50 / p95 / p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("hits\nbelieved / true", "hottest", "slip\np95 ms", "failed", "saturated"):
        table.add_column(heading, justify="right")
    for policy in sorted(cell.policies, key=lambda p: p.value("e2e_ms", "p95")):
        table.add_row(*_figures(policy), style="bold" if policy.role == "candidate" else "")
    return [table, _comparisons(cell, document), *sentences(cell.conclusion)]


def _figures(policy: PolicyEntry) -> list[str]:
    def three(metric: str) -> str:
        return " / ".join(_number(policy.value(metric, q)) for q in ("p50", "p95", "p99"))

    hits = f"{_share(policy.believed_hit_share)} / {_share(policy.true_hit_share)}"
    seeds = len(policy.per_seed)
    saturated = "-"
    if policy.saturated_seeds:
        saturated = "yes" if seeds == 1 else f"{policy.saturated_seeds}/{seeds}"
    name = f"({policy.name})" if policy.role == "yardstick" else policy.name
    return [
        name,
        three("ttft_ms"),
        three("e2e_ms"),
        three("itl_ms"),
        hits,
        _share(policy.hottest_share),
        _number(policy.slip_ms["p95"]),
        str(policy.errors),
        saturated,
    ]


def _comparisons(cell: CellEntry, document: Document) -> Table:
    table = Table(
        title=f"Against {document.candidate}: above 0 % is higher (worse); 95 % intervals; "
        "* may be the best (Hsu)",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for comparison in cell.comparisons:
        table.add_column(comparison.label, justify="right")
    for policy in cell.policies:
        cells = []
        for comparison in cell.comparisons:
            found = comparison.to_candidate.get(policy.name)
            best = comparison.to_best.get(policy.name)
            mark = "*" if best is not None and best.possibly_best else " "
            if found is None:
                cells.append("-")
            elif policy.role == "candidate":
                cells.append(f"0 %{mark}")
            else:
                interval = f" [{change(found.low)}, {change(found.high)}]" if isfinite(found.low) else ""
                cells.append(f"{change(found.ratio)}{interval.replace(' %', '')}{mark}")
        table.add_row(policy.name, *(Text(text) for text in cells))
    return table


def sweep_table(document: Document) -> Table:
    """Policies' knees and their E2E p95 at every load."""
    sweep = document.sweep
    table = Table(title="E2E p95 s by offered input tokens/s; ! cannot keep up", title_justify="left")
    table.add_column("policy", no_wrap=True)
    if sweep is None:
        return table
    for load in sweep.loads:
        table.add_column(f"{load:,.0f}", justify="right")
    table.add_column("knee", justify="right")
    for policy in document.cells[0].policies:
        row = []
        for cell in document.cells:
            entry = cell.policy(policy.name)
            mark = "!" if 2 * entry.saturated_seeds > len(entry.per_seed) else ""
            row.append(f"{entry.value('e2e_ms', 'p95') / 1000:.2f}{mark}")
        knee = sweep.knees[policy.name]
        table.add_row(policy.name, *row, "-" if knee is None else f"{knee:,.0f}")
    return table


def sentences(conclusion: list[str]) -> list[Text]:
    """What may be said, one line each."""
    return [Text(f"- {sentence}") for sentence in conclusion]


def tell(failed: Sequence[str]) -> int:
    """Say on standard error, a line each, what was not answered; the status of the command: 1 if anything."""
    for line in failed:
        print(f"epp: {line}", file=sys.stderr)
    return 1 if failed else 0


def _number(value: float) -> str:
    if not isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if isfinite(value) else "-"
