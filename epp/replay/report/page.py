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

    from epp.replay.document import CellEntry, Comparison, Document


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
            else _folded(cell.name, _cell(cell, document, names))
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
    same = "every policy on the same requests, the same network and the same draws"
    if not document.fleet:
        same = "the same requests to each, one after the other"
    seeds = f"{len(document.seeds)} seeds" if len(document.seeds) > 1 else "one run each"
    what = cells[0].name if len(cells) == 1 else f"{len(cells)} loads"
    return (
        f"<h1>{escape(document.candidate)} among {policies} policies on {escape(what)}</h1>"
        f'<p class="soft">{escape(fleet)}; {seeds}; {same}.</p>'
    )


def _says(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="card says"><h3>What may be said</h3><ul>{items}</ul></div>' if items else ""


def _card(title: str, note: str, content: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3><p class="soft">{escape(note)}</p>{content}</div>'


def _cell(cell: CellEntry, document: Document, names: list[str]) -> str:
    compared = [c for c in cell.comparisons if len(c.to_candidate) > 1]
    forests = [
        _card(
            f"{c.label}: each policy against {document.candidate}",
            _evidence_note(c),
            forest(c, cell, document.candidate),
        )
        for c in compared
    ]
    trade = _card(
        "First token against whole answer",
        "lower left is better; a policy may buy one with the other",
        trade_off(cell),
    )
    note = "colours: the best five by E2E p95; grey: the others"
    curves = [
        _card("TTFT by percentile", note, percentiles(cell, "ttft_ms", "TTFT")),
        _card("E2E by percentile", note, percentiles(cell, "e2e_ms", "E2E")),
    ]
    figures = f"latencies from the intended send time; {_mean_note(document)}"
    parts = [
        f'<h2>{escape(cell.name)}</h2><p class="soft">{escape(_lead(cell))}.</p>',
        _says(cell.conclusion),
        _grid(forests[:2]),
        _grid([trade, _knowledge(cell)]),
        _grid(curves),
        _shares(cell, names),
        _card("Figures", figures, figures_table(cell)),
    ]
    if cell.tuning:
        note = "same budget, same objective, loads that are not judged on"
        parts.append(_card("Tuned weights", note, tuning_table(cell)))
    if forests[2:]:
        parts.append(_folded("Medians and inter-token latency", _grid(forests[2:])))
    return "".join(parts)


def _grid(cards: Sequence[str]) -> str:
    found = [card for card in cards if card]
    return f'<div class="grid">{"".join(found)}</div>' if found else ""


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _lead(cell: CellEntry) -> str:
    load = cell.load
    parts = [
        f"{load['requests']:,} requests in {_length(cell)}",
        f"{load['input_tokens_per_s']:,.0f} input tokens/s",
        f"{100 * load['reuse_share']:.0f} % of prompt tokens sent before",
    ]
    text = f"{', '.join(parts)}; first {cell.warmup_s:,.0f} s dropped as warm-up"
    limit = load["max_in_flight"]
    return text if not limit else f"{text}; at most {limit} in flight, the wait for a place counts as latency"


def _length(cell: CellEntry) -> str:
    seconds = cell.load["duration_s"] * cell.load["time_scale"] / cell.load["load"]
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:,.0f} s"


def _evidence_note(comparison: Comparison) -> str:
    if not comparison.to_best:
        return "too few seeds for intervals"
    units = f"{comparison.units:,} {comparison.unit}s"
    return f"{100 * LEVEL:g} % intervals over {units}; a star: may be the best of all (simultaneous)"


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
        "share of prompt tokens; bars are true, marks what the picker believed",
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
    return (
        f"<h2>How much load each policy carries</h2>{_says(sweep.conclusion)}"
        f'<div class="grid">{cards}</div>'
        + _card("E2E p95 by load, and the knee", "red: cannot keep up in most seeds", knees_table(document))
    )


#: How the figures came about, in the order of the plots.
METHOD = (
    """Every policy runs the production decision code on the same load. Requests, network delays and random
    draws are keyed, so that differences between policies are the policies' own.""",
    """The unit of evidence is the seed: log-ratios of a policy's figure to the candidate's, paired by seed,
    with a bootstrap-t interval. Within one recorded trace stretches of time are drawn again instead
    (stationary bootstrap, block length by Politis and White).""",
    """Stars: multiple comparisons with the best (Hsu), one confidence statement for all policies. The
    candidate's bound against the best of the others is one-sided, 95 %.""",
    f"""A run is saturated when more than {100 * SATURATED_UNANSWERED_SHARE:g} % of the requests are still
    unanswered when the last one is due, or the client's slip p95 exceeds {SATURATED_SLIP_P95_MS:,.0f} ms; its
    points are hollow.""",
    """Yardsticks see the engines' true state. They decide greedily, one request at a time, and are no
    bound.""",
)
METHOD_OF_SWEEPS = f"""Knee: the highest load up to which a policy is not saturated in most seeds and its
    E2E p95 is at most {KNEE_E2E_FACTOR:g} times that at the lightest load."""


def _method(document: Document) -> str:
    lines = list(METHOD if document.fleet else METHOD[1:-1])
    if document.sweep is not None:
        lines.append(METHOD_OF_SWEEPS)
    items = "".join(f"<li>{escape(' '.join(line.split()))}</li>" for line in lines)
    return f'<h2>How to read this</h2><div class="card"><ul class="soft">{items}</ul></div>'
