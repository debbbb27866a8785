"""The page that shows a tuner's life: weights plane, evidence by candidate with bounds, objective over time.

Owns the plots and their order. Self-contained: no script, nothing fetched from anywhere. Pure; text out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from epp.replay.report.style import STYLE
from epp.replay.report.svg import Drawing, Scale, ms, padded
from epp.replay.stats import percentile
from epp.tuner.betting import interval
from epp.tuner.verdict import uncorrelated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.demo.tuner_world import Piece
    from epp.tuner.samples import Sample
    from epp.tuner.state import Change, Note

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 24, 24, 46
_MOST_POINTS = 120
_BINS = 80
_FEW = 20
_WORDS = 'style="text-align: left; white-space: normal"'


@dataclass(frozen=True, slots=True)
class Story:
    """What is told.

    Attributes:
        title: heading.
        lead: one sentence under it.
        plane: names of the two weights of the plane, x and y.
        tried: weights measured in rehearsals.
        history: incumbents, oldest first.
        notes: what the tuner said.
        evidence: number of the candidate and its stage -> units.
        samples: every request.
        begin_wall_s: when it began.
        bound: to what differences are winsorised.
        level: chance with which a bound may err.
    """

    title: str
    lead: str
    plane: tuple[str, str]
    tried: Sequence[Mapping[str, float]]
    history: Sequence[Change]
    notes: Sequence[Note]
    evidence: Mapping[tuple[int, str], Sequence[Piece]]
    samples: Sequence[Sample]
    begin_wall_s: float
    bound: float
    level: float


def render(story: Story) -> str:
    """The whole page."""
    trials = [
        _card(
            f"Candidate {number}: {stage.split()[0]}",
            "mean difference of the share of slow requests, newer weights less older; "
            "outer lines: bounds that hold at all times",
            evidence_plot(story, pieces),
        )
        for (number, stage), pieces in story.evidence.items()
        if stage.split()[0] in ("switchback", "probation")
    ]
    body = [
        f'<h1>{escape(story.title)}</h1><p class="soft">{escape(story.lead)}</p>',
        '<div class="grid">',
        _card("Weights", "rings: tried in rehearsals; diamonds: in force, numbered", plane_plot(story)),
        _card(
            "Objective over time", "p95 of all requests; lines: promotions, freezes", objective_plot(story)
        ),
        *trials,
        "</div>",
        _card("What happened", "times in hours since the beginning", _table(story)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(story.title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def plane_plot(story: Story) -> str:
    """Two weights against each other: what rehearsals tried, and what was in force."""
    first, second = story.plane
    drawing = Drawing(_WIDTH, _HEIGHT, f"{first} against {second}")
    points = [*story.tried, *(change.weights for change in story.history)]
    xs, ys = [p[first] for p in points], [p[second] for p in points]
    if min(*xs, *ys) <= 0.0:
        return drawing.render()
    x = Scale(*padded(min(xs), max(xs), log=True), _LEFT, _WIDTH - _RIGHT, log=True)
    y = Scale(*padded(min(ys), max(ys), log=True), _HEIGHT - _BOTTOM, _TOP, log=True)
    _axes(drawing, x, y, (first, second))
    for weights in story.tried:
        title = ", ".join(f"{name} {value:.3g}" for name, value in weights.items())
        drawing.dot(x(weights[first]), y(weights[second]), 3.5, "ring", title)
    path = [(x(change.weights[first]), y(change.weights[second])) for change in story.history]
    drawing.path(path, "line candidate")
    for change, (at_x, at_y) in zip(story.history, path, strict=True):
        drawing.diamond(at_x, at_y, 7.0, "mark candidate", f"{change.how}: {change.reason}")
        drawing.text(at_x + 10, at_y + 4, f"{change.number} {change.how}", "end candidate")
    return drawing.render()


def evidence_plot(story: Story, pieces: Sequence[Piece]) -> str:
    """The mean difference as it became known, with its bounds."""
    drawing = Drawing(_WIDTH, _HEIGHT, "evidence by pair")
    slow = [piece.slow for piece in pieces]
    step = max(1, math.ceil(len(slow) / _MOST_POINTS))
    counts = sorted({*range(min(_FEW, len(slow)), len(slow) + 1, step), len(slow)} - {0})
    if not counts:
        return drawing.render()
    ends = [interval(uncorrelated(slow[:n]), alpha=story.level, bound=story.bound) for n in counts]
    means = [100.0 * sum(slow[:n]) / n for n in counts]
    lows, highs = [100.0 * low for low, _ in ends], [100.0 * high for _, high in ends]
    x = Scale(0.0, max(1.0, float(len(slow))), _LEFT, _WIDTH - _RIGHT)
    y = Scale(*padded(min(0.0, *lows), max(0.0, *highs), log=False), _HEIGHT - _BOTTOM, _TOP)
    _axes(drawing, x, y, ("pairs of blocks", "points"))
    for edge in (lows, highs):
        drawing.path([(x(n), y(value)) for n, value in zip(counts, edge, strict=True)], "line faint")
    drawing.line(_LEFT, y(0.0), _WIDTH - _RIGHT, y(0.0), "unity")
    drawing.path([(x(n), y(v)) for n, v in zip(counts, means, strict=True)], "line candidate")
    last = f"{means[-1]:+.2f} [{lows[-1]:+.2f}, {highs[-1]:+.2f}] points"
    drawing.text(_WIDTH - _RIGHT, _TOP - 8, last, "figure", "end")
    return drawing.render()


def objective_plot(story: Story) -> str:
    """p95 of TTFT and E2E over time, with the moments at which the incumbent changed."""
    drawing = Drawing(_WIDTH, _HEIGHT, "p95 over time")
    last_s = max((s.dispatched_wall_s for s in story.samples), default=0.0) - story.begin_wall_s
    width_s = max(last_s / _BINS, 1.0)
    bins: list[tuple[list[float], list[float]]] = [([], []) for _ in range(_BINS + 1)]
    for sample in story.samples:
        if sample.answered:
            ttft, e2e = bins[int((sample.dispatched_wall_s - story.begin_wall_s) / width_s)]
            ttft.append(sample.ttft_ms)
            e2e.append(sample.e2e_ms)
    rows = [
        ((place + 0.5) * width_s / 3600.0, percentile(ttft, 95), percentile(e2e, 95))
        for place, (ttft, e2e) in enumerate(bins)
        if len(ttft) >= _FEW
    ]
    if not rows:
        return drawing.render()
    values = [value for row in rows for value in row[1:]]
    x = Scale(0.0, last_s / 3600.0, _LEFT, _WIDTH - _RIGHT)
    y = Scale(*padded(min(values), max(values), log=True), _HEIGHT - _BOTTOM, _TOP, log=True)
    _axes(drawing, x, y, ("hours", "p95"), milliseconds=True)
    for change in story.history[1:]:
        at = x((change.at_wall_s - story.begin_wall_s) / 3600.0)
        drawing.line(at, _TOP, at, _HEIGHT - _BOTTOM, "unity")
        drawing.text(at + 4, _TOP + 12, change.how, "end candidate")
    for note in story.notes:
        if note.after == "frozen" != note.before:
            at = x((note.at_wall_s - story.begin_wall_s) / 3600.0)
            drawing.line(at, _TOP, at, _HEIGHT - _BOTTOM, "unity")
            drawing.text(at - 4, _TOP + 28, "frozen", "end candidate", "end")
    for place, (label, style) in enumerate((("TTFT", "candidate"), ("E2E", "s0")), start=1):
        drawing.path([(x(row[0]), y(row[place])) for row in rows], f"line {style}", label)
        drawing.text(x(rows[-1][0]) - 4, y(rows[-1][place]) - 8, label, f"end {style}", "end")
    return drawing.render()


def _axes(
    drawing: Drawing, x: Scale, y: Scale, labels: tuple[str, str], *, milliseconds: bool = False
) -> None:
    for tick in x.ticks():
        drawing.line(x(tick), _TOP, x(tick), _HEIGHT - _BOTTOM, "grid")
        drawing.text(x(tick), _HEIGHT - _BOTTOM + 16, f"{tick:g}", "tick", "middle")
    for tick in y.ticks():
        drawing.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid")
        drawing.text(_LEFT - 8, y(tick) + 4, ms(tick) if milliseconds else f"{tick:g}", "tick", "end")
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, labels[0], "hint", "middle")
    drawing.text(_LEFT - 8, _TOP - 8, labels[1], "hint", "end" if len(labels[1]) < _FEW // 2 else "start")


def _card(title: str, note: str, content: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3><p class="soft">{escape(note)}</p>{content}</div>'


def _table(story: Story) -> str:
    rows = "".join(
        f"<tr><td>{(note.at_wall_s - story.begin_wall_s) / 3600.0:.2f}</td>"
        f"<td {_WORDS}>{escape(note.after)}</td><td {_WORDS}>{escape(note.reason)}</td></tr>"
        for note in story.notes
    )
    head = f"<th {_WORDS}>phase</th><th {_WORDS}>why</th>"
    return f'<div class="scroll"><table><tr><th>h</th>{head}</tr>{rows}</table></div>'
