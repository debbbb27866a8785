"""The result as Markdown, and as a page with a plot of each cell over time.

Owns the layout. No file, no run.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from bench.intervals import told
from bench.lodestar_cells import HEURISTIC, LODESTAR
from bench.lodestar_runs import BIN_S
from epp.replay.report.style import STYLE
from epp.replay.report.svg import Drawing, Scale, ms, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lodestar_runs import Summary
    from bench.lodestar_summary import Result, Row

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 300, 62, 20, 22, 44
_STYLES = {LODESTAR: "candidate", HEURISTIC: "s0", "frozen midway": "s1", "offline only": "s2"}


def text_of(result: Result) -> str:
    """Everything as Markdown."""
    parts = [_headline(result), *(_markdown(rows) for rows in tables(result))]
    return "\n\n".join(parts)


def _headline(result: Result) -> str:
    seeds = ", ".join(str(seed) for seed in result.seeds)
    worst = max(
        (row.worst_after_gate for row in result.learned if row.worst_after_gate > 0), default=math.nan
    )
    return (
        f"Size `{result.size}`, seeds {seeds}. Over the steady cells `{HEURISTIC}` (constants tuned, engine "
        f"metrics each 100 ms) has {told(result.mean_ratio)} times the mean TTFT of `{LODESTAR}` and "
        f"{told(result.p99_ratio)} times its p99 (published: 1.41 and 1.47). Without a trial, the worst mean "
        f"since the first model, of any cell and seed: {worst:.2f} times the heuristic's of the same time."
        f"{_after_trials(result)}"
    )


def _after_trials(result: Result) -> str:
    after = [trial.after for trial in result.trials if not math.isnan(trial.after)]
    if not after:
        return ""
    return f" With a trial, the worst mean after its end: {max(after):.2f} times the heuristic's."


def tables(result: Result) -> list[list[list[str]]]:
    """Rows of cells: baselines, ablations, how it learned, and its trials."""
    return [
        table
        for table in (
            _against(result),
            _ablations(result),
            _learning(result),
            _trials(result),
            _classes(result),
        )
        if table
    ]


def _against(result: Result) -> list[list[str]]:
    labels = list(dict.fromkeys(row.entry for row in result.rows if row.entry in _baselines(result)))
    rows = [
        ["cell", f"`{LODESTAR}` mean, p99 ms", *(f"{label}: mean, p99 to it (seeds)" for label in labels)]
    ]
    for cell in _cells(result):
        found = {row.entry: row for row in result.rows if row.cell == cell}
        mine = found[LODESTAR]  # there is no row without it
        rows.append(
            [cell, f"{mine.mean_ms:,.0f}, {mine.p99_ms:,.0f}", *(_ratio(found.get(n)) for n in labels)]
        )
    return rows


def _ablations(result: Result) -> list[list[str]]:
    baselines = _baselines(result)
    found = [row for row in result.rows if row.entry not in baselines and row.entry != LODESTAR]
    rows = [["ablation", "cell", "mean, p99 to `lodestar` (seeds)", "whole run: mean, p99"]]
    for row in found:
        whole = f"{row.whole_mean_ratio:.2f}, {row.whole_p99_ratio:.2f}"
        rows.append([row.entry, row.cell, _ratio(row), whole])
    return rows if found else []


def _learning(result: Result) -> list[list[str]]:
    rows = [
        [
            "cell",
            "first model s",
            "settled s",
            "recovered s (heuristic)",
            "rounds, passed; retreats",
            "worst after gate",
            "out of distribution, in the shift",
            "explored",
        ]
    ]
    for row in result.learned:
        recovered = "-"
        if not math.isnan(row.recovered_s):
            recovered = f"{_whole(row.recovered_s)} ({_whole(row.unlearned_recovered_s)})"
        shift = "" if math.isnan(row.shift_fallback_share) else f", {row.shift_fallback_share:.1%}"
        rows.append(
            [
                row.cell,
                _whole(row.first_model_s),
                _whole(row.settled_s),
                recovered,
                f"{row.rounds:.1f}, {row.passed:.0%}; {row.retreats:.1f}",
                f"{row.worst_after_gate:.2f}",
                f"{row.fallback_share:.1%}{shift}",
                f"{row.explored_share:.1%}",
            ]
        )
    return rows


def _trials(result: Result) -> list[list[str]]:
    rows = [
        [
            "on trial, mean TTFT to the heuristic's",
            "seed",
            "without a trial",
            "tried from, to s",
            "during",
            "after",
            "whole run",
            "what it came to",
        ]
    ]
    for trial in result.trials:
        end = "promoted" if trial.promoted else "the heuristic stays" if trial.after > 0 else "not over"
        last = next((line for line in trial.story if line.startswith(f"{trial.ended_s:,.0f} s")), "")
        rows.append(
            [
                trial.cell,
                str(trial.seed),
                _ratio_of(trial.untried),
                f"{_whole(trial.began_s)}, {_whole(trial.ended_s)}",
                *(_ratio_of(value) for value in (trial.during, trial.after, trial.whole)),
                f"{end} ({last})" if last else end,
            ]
        )
    return rows if result.trials else []


def _ratio_of(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _classes(result: Result) -> list[list[str]]:
    rows = [["cell", "class", f"`{LODESTAR}`: share, mean ms", f"`{HEURISTIC}`: share, mean ms"]]
    for learned in result.learned:
        if len(learned.by_class) > 1:
            for name, (share, mean_ms, its, its_ms) in learned.by_class.items():
                mine, theirs = f"{share:.0%}, {mean_ms:,.0f}", f"{its:.0%}, {its_ms:,.0f}"
                rows.append([learned.cell, f"`{name}`", mine, theirs])
    return rows if len(rows) > 1 else []


def _cells(result: Result) -> list[str]:
    return list(dict.fromkeys(row.cell for row in result.rows))


def _baselines(result: Result) -> set[str]:
    """Those that learn nothing: what has no rounds and no decisions of its own kind."""
    return {run.entry for run in result.runs if not run.picks}


def _ratio(row: Row | None) -> str:
    return "-" if row is None else f"{told(row.mean_ratio)}, {told(row.p99_ratio)} ({row.seeds})"


def _whole(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows[1:])])


def page(result: Result) -> str:
    """A page that stands alone."""
    body = [f"<h1>Lodestar in simulated pools</h1><p>{escape(_headline(result)).replace('`', '')}</p>"]
    for rows in tables(result):
        head = "".join(f"<th>{escape(cell).replace('`', '')}</th>" for cell in rows[0])
        lines = "".join(
            "<tr>" + "".join(f"<td>{escape(cell).replace('`', '')}</td>" for cell in row) + "</tr>"
            for row in rows[1:]
        )
        body.append(f'<div class="card"><table><tr>{head}</tr>{lines}</table></div>')
    body.append('<div class="grid">')
    for cell in _cells(result):
        runs = [run for run in result.runs if run.cell == cell and run.seed == result.seeds[0]]
        body.append(f'<div class="card"><h3>{escape(cell)}</h3>{_plot(runs)}</div>')
    body.append("</div>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Lodestar in simulated pools</title>'
        f"<style>{STYLE}</style><main>{''.join(body)}</main></html>\n"
    )


def _plot(runs: Sequence[Summary]) -> str:
    """Mean TTFT over time, of those with a style of their own."""
    shown = [run for run in runs if run.entry in _STYLES]
    drawing = Drawing(_WIDTH, _HEIGHT, "mean TTFT over time")
    values = [value for run in shown for value in run.bins_ms if value]
    if not values:
        return drawing.render()
    x = Scale(0.0, BIN_S * max(len(run.bins_ms) for run in shown), _LEFT, _WIDTH - _RIGHT)
    y = Scale(*padded(min(values), max(values), log=True), _HEIGHT - _BOTTOM, _TOP, log=True)
    for tick in y.ticks():
        drawing.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid")
        drawing.text(_LEFT - 6, y(tick) + 4, ms(tick), "tick", "end")
    for tick in x.ticks():
        drawing.text(x(tick), _HEIGHT - _BOTTOM + 16, f"{tick:,.0f} s", "tick", "middle")
    for number, run in enumerate(shown):
        style = _STYLES[run.entry]
        points = [(x((i + 0.5) * BIN_S), y(value)) for i, value in enumerate(run.bins_ms) if value]
        drawing.path(points, f"line {style}", run.entry)
        at = _LEFT + 12 + 150 * number
        drawing.line(at, _HEIGHT - 12, at + 18, _HEIGHT - 12, f"line {style}")
        drawing.text(at + 22, _HEIGHT - 8, run.entry, "hint")
    return drawing.render()
