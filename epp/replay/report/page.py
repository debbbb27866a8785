"""The page: what was asked, what may be said, the plots, the figures, and how they came about.

Owns the order of things. Self-contained: no script, nothing fetched from anywhere.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from epp.replay.evidence import LEVEL
from epp.replay.measure import SATURATED_SLIP_P95_MS, SATURATED_UNANSWERED_SHARE
from epp.replay.report.curves import load_curves, percentiles, trade_off
from epp.replay.report.forest import forest
from epp.replay.report.hits import hits
from epp.replay.report.shares import COLOURS, shares_over_time
from epp.replay.report.style import STYLE
from epp.replay.report.tables import figures_table, knees_table, tuning_table
from epp.replay.sweep import KNEE_E2E_FACTOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.replay.document import CellEntry, Document


def render(document: Document) -> str:
    """The whole page."""
    names = [f"{row['region'] or row['address']}, {row['rtt_ms']:g} ms" for row in document.fleet]
    body = [_header(document)]
    if document.sweep is not None:
        body.append(_sweep(document))
        middle = document.cells[len(document.cells) // 2]
        body += [
            _cell(cell, document, names)
            if cell is middle
            else f"<details><summary>{escape(cell.name)}</summary>{_cell(cell, document, names)}</details>"
            for cell in document.cells
        ]
    else:
        body += [_cell(cell, document, names) for cell in document.cells]
    body.append(_method(document))
    title = escape(", ".join(cell.name for cell in document.cells[:3]))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Replay: {title}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _header(document: Document) -> str:
    cells = document.cells
    policies = len(cells[0].policies)
    classes: dict[str, int] = {}
    for row in document.fleet:
        classes[row["engine_class"]] = classes.get(row["engine_class"], 0) + 1
    fleet = ", ".join(f"{count} x {name}" for name, count in classes.items()) or "live gateways"
    seeds = f"{len(document.seeds)} seeds" if len(document.seeds) > 1 else "one run each"
    what = cells[0].name if len(cells) == 1 else f"{len(cells)} loads"
    return (
        f"<h1>{escape(document.candidate)} among {policies} policies on {escape(what)}</h1>"
        f'<p class="soft">{escape(fleet)}; {seeds}; every policy on the same requests, the same network '
        "and the same draws.</p>"
    )


def _says(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="card says"><h3>What may be said</h3><ul>{items}</ul></div>' if items else ""


def _card(title: str, note: str, content: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3><p class="soft">{escape(note)}</p>{content}</div>'


def _cell(cell: CellEntry, document: Document, names: list[str]) -> str:
    load = cell.load
    lead = (
        f"{load['requests']:,} requests in {load['duration_s'] * load['time_scale'] / load['load'] / 60:,.0f} min, "
        f"{load['input_tokens_per_s']:,.0f} input tokens/s, {100 * load['reuse_share']:.0f} % of prompt tokens "
        f"sent before; first {cell.warmup_s:,.0f} s dropped as warm-up"
    )
    if load["max_in_flight"]:
        lead += (
            f"; at most {load['max_in_flight']} requests in flight, the wait for a place counts as latency"
        )
    forests = "".join(
        _card(
            f"{c.label}: each policy against {document.candidate}",
            f"{100 * LEVEL:g} % intervals over {c.units:,} {c.unit}s; a star: may be the best of all (simultaneous)"
            if c.to_best
            else "too few seeds for intervals",
            forest(c, cell, document.candidate),
        )
        for c in cell.comparisons[:2]
        if len(c.to_candidate) > 1
    )
    curves = "".join(
        _card(f"{label} by percentile", "colours: the best five by E2E p95; grey: the others", svg)
        for label, svg in (
            ("TTFT", percentiles(cell, "ttft_ms", "TTFT")),
            ("E2E", percentiles(cell, "e2e_ms", "E2E")),
        )
    )
    more = "".join(
        _card(f"{c.label} against {document.candidate}", "", forest(c, cell, document.candidate))
        for c in cell.comparisons[2:]
        if len(c.to_candidate) > 1
    )
    trade = _card(
        "First token against whole answer",
        "lower left is better; a policy may buy one with the other",
        trade_off(cell),
    )
    parts = [
        f"<h2>{escape(cell.name)}</h2><p class='soft'>{escape(lead)}.</p>".replace("'", '"'),
        _says(cell.conclusion),
        f'<div class="grid">{forests}</div>' if forests else "",
        f'<div class="grid">{trade}{_knowledge(cell)}</div>',
        f'<div class="grid">{curves}</div>',
        _shares(cell, names),
        _card(
            "Figures", f"latencies from the intended send time; {_mean_note(document)}", figures_table(cell)
        ),
    ]
    if cell.tuning:
        parts.append(
            _card(
                "Tuned weights",
                "same budget, same objective, loads that are not judged on",
                tuning_table(cell),
            )
        )
    if more:
        parts.append(
            f'<details><summary>Medians and inter-token latency</summary><div class="grid">{more}</div></details>'
        )
    return "".join(parts)


def _mean_note(document: Document) -> str:
    seeds = len(document.seeds)
    return f"geometric means over {seeds} seeds" if seeds > 1 else "one run"


def _shares(cell: CellEntry, names: list[str]) -> str:
    width = max((len(p.share) for p in cell.policies), default=0)
    called = [names[i] if i < len(names) else f"replica {i + 1}" for i in range(width)]
    key = "".join(
        f'<span><i class="r{i % COLOURS}"></i>{escape(name)}</span>' for i, name in enumerate(called)
    )
    note = "share of requests of each replica over the run (first seed), the figure is the hottest replica's"
    content = f'<div class="key">{key}</div>{shares_over_time(cell, called)}'
    return _card("Who serves what", note, content)


def _knowledge(cell: CellEntry) -> str:
    """Placed beside the trade-off: what pickers believed of the caches, and what was so."""
    return _card(
        "Cache hits: believed and true",
        "share of prompt tokens; a gap means that the picker's index and the engines' caches differ",
        hits(cell),
    )


def _sweep(document: Document) -> str:
    sweep = document.sweep
    if sweep is None:
        return ""
    cards = "".join(
        _card(f"{label} p95 by load", "rings: the knee, the highest load that the policy keeps up with", svg)
        for label, svg in (
            ("TTFT", load_curves(document, "ttft_ms", "TTFT p95")),
            ("E2E", load_curves(document, "e2e_ms", "E2E p95")),
        )
    )
    table = _card("E2E p95 by load, and the knee", "red: cannot keep up in most seeds", knees_table(document))
    return f'<h2>How much load each policy carries</h2>{_says(sweep.conclusion)}<div class="grid">{cards}</div>{table}'


def _method(document: Document) -> str:
    lines = [
        "Every policy runs the production decision code on the same load; requests, network delays and random "
        "draws are keyed, so differences between policies are the policies' own.",
        "The unit of evidence is the seed: log-ratios of a policy's figure to the candidate's, paired by seed, "
        "with a bootstrap-t interval. Within one recorded trace stretches of time are drawn again instead "
        "(stationary bootstrap, block length by Politis and White).",
        "Stars: multiple comparisons with the best (Hsu), one confidence statement for all policies. The "
        "candidate's bound against the best of the others is one-sided, 95 %.",
        f"A run is saturated when more than {100 * SATURATED_UNANSWERED_SHARE:g} % of the requests are still "
        f"unanswered when the last one is due, or the client's slip p95 exceeds {SATURATED_SLIP_P95_MS:,.0f} ms.",
        "Yardsticks see the engines' true state. They decide greedily, one request at a time, and are no bound.",
    ]
    if document.sweep is not None:
        lines.append(
            f"Knee: the highest load up to which a policy is not saturated in most seeds and its E2E p95 is at "
            f"most {KNEE_E2E_FACTOR:g} times that at the lightest load."
        )
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<h2>How to read this</h2><div class="card"><ul class="soft">{items}</ul></div>'
