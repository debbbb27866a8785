"""A summary as text, and as pages: one for all cells, and the usual report of each cell behind it.

Owns the layout. Writes files when told where.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from bench.policy_entries import CANDIDATE
from bench.policy_summary import BEST_LIVE, BEST_PAPER, BEST_SCRAPED, GORGO, GORGO_TUNED, METRICS, ORACLE
from epp.replay import console
from epp.replay.comparison import cell_entry, fleet_rows
from epp.replay.document import SCHEMA, Document, encode
from epp.replay.report.style import STYLE
from epp.replay.trace_stats import describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.policy_summary import Against, CellRuns, Summary

OPPONENTS = (BEST_PAPER, BEST_SCRAPED, GORGO, GORGO_TUNED, BEST_LIVE, ORACLE)
MARGIN = 0.05


def text_of(summary: Summary, runs: Sequence[CellRuns]) -> str:
    """Everything as Markdown."""
    return "\n\n".join("\n".join(_markdown(table)) for table in tables(summary, runs) if len(table) > 1)


def tables(summary: Summary, runs: Sequence[CellRuns]) -> list[list[list[str]]]:
    """Rows of cells: means over the cells, the cells, and every entry."""
    return [_means(summary), _cells(summary, runs), _entries(summary)]


def _means(summary: Summary) -> list[list[str]]:
    rows = [["against", "TTFT p95", "E2E p95", "worst cell, TTFT", "worst cell, E2E"]]
    rows[0] += ["the oracle against it"] if summary.oracle else []
    for name in OPPONENTS:
        if name in summary.means:
            worst = summary.worst[name]
            ends = [f"{_percent(worst[metric][1])} ({worst[metric][0]})" for metric in METRICS]
            rows.append([name, *(_interval(summary.means[name].ratios[metric]) for metric in METRICS), *ends])
            if summary.oracle:
                found = summary.oracle.get(name)
                both = found and " / ".join(_percent(found.ratios[metric][0]) for metric in METRICS)
                rows[-1].append(f"{both} %" if both else "-")
    return rows


def _cells(summary: Summary, runs: Sequence[CellRuns]) -> list[list[str]]:
    heads = [name for name in OPPONENTS if any(name in row.against for row in summary.rows)]
    rows = [["cell", f"`{CANDIDATE}` TTFT p95 ms, E2E p95 s", *(f"to {name}" for name in heads)]]
    for row, run in zip(summary.rows, runs, strict=True):
        figures = f"{run.figure(CANDIDATE, 'ttft_ms'):,.0f}, {run.figure(CANDIDATE, 'e2e_ms') / 1e3:.2f}"
        rows.append([row.name, figures, *(_against(row.against.get(name), name) for name in heads)])
    return rows


def _entries(summary: Summary) -> list[list[str]]:
    rows = [["entry", "behind the best, TTFT p95", "E2E p95", f"`{CANDIDATE}` to it, TTFT p95", "E2E p95"]]
    for label, gap in summary.places.items():
        to_it = ["-", "-"]
        if label != CANDIDATE and label in summary.means:
            to_it = [_interval(summary.means[label].ratios[metric]) for metric in METRICS]
        rows.append([f"`{label}`", _percent(gap[0]), _percent(gap[1]), *to_it])
    return rows


def _against(found: Against | None, name: str) -> str:
    if found is None:
        return "-"
    both = " / ".join(_interval(found.ratios[metric]) for metric in METRICS)
    return f"{both} (`{found.rival}`)" if name in {BEST_PAPER, BEST_SCRAPED, BEST_LIVE} else both


def _interval(values: tuple[float, float, float]) -> str:
    point, low, high = values
    if math.isnan(low):
        return f"{_percent(point)} %"
    return f"{_percent(point)} % [{_percent(low)}, {_percent(high)}]"


def _percent(ratio: float) -> str:
    return f"{100.0 * (ratio - 1.0):+.1f}"


def _markdown(table: list[list[str]]) -> list[str]:
    head, *rows = table
    return [
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def write_report(out: Path, summary: Summary, runs: Sequence[CellRuns]) -> None:
    """``report.html``, ``results.json`` and a page for each cell."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    seeds = runs[0].seeds
    entries = []
    links = {}
    for run in runs:
        requests = run.cell.cell.source.requests(seeds[0])
        load: dict[str, Any] = asdict(describe(requests)) | {
            "time_scale": run.cell.cell.time_scale,
            "load": run.cell.cell.load,
            "max_in_flight": run.cell.cell.max_in_flight,
            "closed_loop": any(r.after is not None for r in requests),
            "input_tokens_per_s": run.outcomes[CANDIDATE][0].figures.input_tokens_per_s,
        }
        entry = cell_entry(
            run.cell.name,
            load,
            run.outcomes,
            run.weights,
            warmup_s=run.cell.cell.warmup(requests),
            candidate=CANDIDATE,
            margin=MARGIN,
            by_request=False,
            tuning=[],
        )
        entries.append(entry)
        links[run.cell.name] = file = re.sub(r"[^a-z0-9]+", "-", run.cell.name) + ".html"
        fleet = fleet_rows(run.cell.fleet)
        page = Document(
            schema=SCHEMA, fleet=fleet, seeds=list(seeds), candidate=CANDIDATE, margin=MARGIN, cells=[entry]
        )
        (out / "cells" / file).write_text(console.page(page), encoding="utf-8")
    whole = Document(
        schema=SCHEMA, fleet=[], seeds=list(seeds), candidate=CANDIDATE, margin=MARGIN, cells=entries
    )
    (out / "results.json").write_bytes(encode(whole))
    (out / "report.html").write_text(_page(summary, runs, links, seeds), encoding="utf-8")


def _page(summary: Summary, runs: Sequence[CellRuns], links: dict[str, str], seeds: Sequence[int]) -> str:
    heads = ("Means over the cells", "Cells", "Everybody")
    intro = (
        f"{len(seeds)} seeds; every policy on the same requests, the same network and the same draws. "
        "Changes of 95th percentiles in per cent, lower is better, with 95 % intervals over seeds; "
        "of worst cells the upper end."
    )
    body = [f'<h1>{CANDIDATE} on {len(runs)} cells</h1><p class="soft">{intro}</p>']
    for title, table in zip(heads, tables(summary, runs), strict=True):
        head, *rows = table
        cells = "".join(f"<th>{escape(text.replace('`', ''))}</th>" for text in head)
        lines = "".join(f"<tr>{''.join(_td(text, links) for text in row)}</tr>" for row in rows)
        body.append(f'<h2>{title}</h2><div class="card"><table><tr>{cells}</tr>{lines}</table></div>')
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>Policies</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _td(text: str, links: dict[str, str]) -> str:
    plain = escape(text.replace("`", ""))
    return f'<td><a href="cells/{links[text]}">{plain}</a></td>' if text in links else f"<td>{plain}</td>"
