"""Plots of lines and points: latency by percentile, TTFT against E2E, latency against load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.replay.measure import CURVE_POINTS
from epp.replay.report.svg import Drawing, Scale, ms, padded, spread_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.replay.document import CellEntry, Document, PolicyEntry

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 168, 22, 44
_SHOWN = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5)
_LAST = 99.5
_LABEL_GAP = 14.5
_TALL, _SHORT = 460, 330
_FEW = 8  # policies up to which a plot with a label for each may be short
#: Lines with a colour of their own beside the candidate and the yardsticks.
COLOURED = 5


def coloured(cell: CellEntry, limit: int = COLOURED) -> dict[str, str]:
    """Style class of each policy's line: the candidate, the yardsticks and the best baselines stand out."""
    out: dict[str, str] = {}
    baselines = sorted(
        (p for p in cell.policies if p.role == "baseline"), key=lambda p: p.value("e2e_ms", "p95")
    )
    for policy in cell.policies:
        if policy.role != "baseline":
            out[policy.name] = policy.role
    for number, policy in enumerate(baselines):
        out[policy.name] = f"s{number}" if number < limit else "faint"
    return out


def percentiles(cell: CellEntry, metric: str, label: str) -> str:
    """Latency by percentile, the tail stretched: each further step right is a tenth of the requests left."""
    classes = coloured(cell)
    field = metric.replace("_ms", "_curve_ms")
    curves = [(p, getattr(p, field)) for p in cell.policies if getattr(p, field)]
    values = [v for _, curve in curves for q, v in zip(CURVE_POINTS, curve, strict=True) if 1 <= q <= _LAST]
    drawing = Drawing(_WIDTH, _HEIGHT, f"{label} by percentile")
    if not values:
        return drawing.render()
    x = Scale(_stretched(0.0), _stretched(_LAST), _LEFT, _WIDTH - _RIGHT)
    y = Scale(*padded(min(values), max(values), log=True), _HEIGHT - _BOTTOM, _TOP, log=True)
    _y_axis(drawing, y, label)
    for q in _SHOWN:
        at = x(_stretched(q))
        drawing.line(at, _TOP, at, _HEIGHT - _BOTTOM, "grid")
        drawing.text(at, _HEIGHT - _BOTTOM + 16, f"{q:g} %", "tick", "middle")
    drawing.text(
        (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "share of requests answered faster", "hint", "middle"
    )
    lines = []
    for policy, curve in _back_to_front(curves, classes):
        points = [
            (x(_stretched(q)), y(v)) for q, v in zip(CURVE_POINTS, curve, strict=True) if 0 < q <= _LAST
        ]
        drawing.path(points, f"line {classes[policy.name]}", policy.name)
        lines.append((policy.name, points[-1]))
    _end_labels(drawing, [(name, at) for name, at in lines if classes[name] != "faint"], classes)
    return drawing.render()


def trade_off(cell: CellEntry) -> str:
    """TTFT p95 against E2E p95, one point a policy: lower left is better in both."""
    classes = coloured(cell)
    points = [(p, p.value("ttft_ms", "p95"), p.value("e2e_ms", "p95")) for p in cell.policies]
    points = [point for point in points if point[1] > 0 and point[2] > 0]
    tall = _TALL if len(points) > _FEW else _SHORT
    drawing = Drawing(_WIDTH, tall, "TTFT p95 against E2E p95")
    if not points:
        return drawing.render()
    xs, ys = [point[1] for point in points], [point[2] for point in points]
    x = Scale(*padded(min(xs), max(xs), log=True), _LEFT, _WIDTH - _RIGHT, log=True)
    y = Scale(*padded(min(ys), max(ys), log=True), tall - _BOTTOM, _TOP, log=True)
    _y_axis(drawing, y, "E2E p95")
    for tick in x.ticks():
        drawing.line(x(tick), _TOP, x(tick), tall - _BOTTOM, "grid")
        drawing.text(x(tick), tall - _BOTTOM + 16, ms(tick), "tick", "middle")
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, tall - 8, "TTFT p95", "hint", "middle")
    gap = min(_LABEL_GAP, (tall - _TOP - 12) / len(points))
    label_ys = spread_labels([y(v) for v in ys], gap, _TOP, tall - 12)
    edge = _WIDTH - _RIGHT + 10
    for (policy, at_x, at_y), label_y in zip(points, label_ys, strict=True):
        cls = classes[policy.name]
        drawing.path([(x(at_x), y(at_y)), (edge - 4, label_y), (edge, label_y)], "leader")
        drawing.text(edge + 3, label_y + 4, policy.name, f"end {cls}")
    for policy, at_x, at_y in points:
        title = f"{policy.name}: TTFT p95 {ms(at_x)}, E2E p95 {ms(at_y)}"
        drawing.dot(x(at_x), y(at_y), 5.0, f"mark {classes[policy.name]}", title)
    return drawing.render()


def load_curves(document: Document, metric: str, label: str) -> str:
    """A latency's p95 against offered load, one line a policy; rings mark where it still keeps up."""
    cells, sweep = document.cells, document.sweep
    drawing = Drawing(_WIDTH, _TALL, f"{label} against offered load")
    if sweep is None:
        return drawing.render()
    classes = coloured(cells[len(cells) // 2])
    series = [(p, [cell.policy(p.name).value(metric, "p95") for cell in cells]) for p in cells[0].policies]
    values = [v for _, row in series for v in row if math.isfinite(v) and v > 0]
    x = Scale(*padded(sweep.loads[0], sweep.loads[-1], log=False, share=0.03), _LEFT, _WIDTH - _RIGHT)
    y = Scale(*padded(min(values), max(values), log=True), _TALL - _BOTTOM, _TOP, log=True)
    _y_axis(drawing, y, label)
    for tick in x.ticks(7):
        drawing.line(x(tick), _TOP, x(tick), _TALL - _BOTTOM, "grid")
        drawing.text(x(tick), _TALL - _BOTTOM + 16, f"{tick / 1000:g}k", "tick", "middle")
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, _TALL - 8, "offered input tokens/s", "hint", "middle")
    lines = []
    for policy, row in _back_to_front(series, classes):
        points = [(x(load), y(v)) for load, v in zip(sweep.loads, row, strict=True) if v > 0]
        drawing.path(points, f"line {classes[policy.name]}", policy.name)
        lines.append((policy.name, points[-1]))
        knee = sweep.knees.get(policy.name)
        if knee is not None and classes[policy.name] != "faint":
            at = sweep.loads.index(knee)
            title = f"{policy.name} keeps up to {knee:,.0f} input tokens/s"
            drawing.dot(x(knee), y(row[at]), 5.0, f"ring {classes[policy.name]}", title)
    _end_labels(drawing, [line for line in lines if classes[line[0]] != "faint"], classes)
    return drawing.render()


def _stretched(q: float) -> float:
    return -math.log10(1.0 - q / 100.0)


def _y_axis(drawing: Drawing, y: Scale, label: str) -> None:
    right = _WIDTH - _RIGHT
    for tick in y.ticks(7):
        drawing.line(_LEFT, y(tick), right, y(tick), "grid")
        drawing.text(_LEFT - 8, y(tick) + 4, ms(tick), "tick", "end")
    drawing.text(_LEFT - 8, _TOP - 8, label, "hint", "end")


_DEPTH = {"faint": 0, "candidate": 2}


def _back_to_front(
    rows: Sequence[tuple[PolicyEntry, list[float]]], classes: dict[str, str]
) -> list[tuple[PolicyEntry, list[float]]]:
    """Faint lines first, the candidate's last."""
    return sorted(rows, key=lambda row: _DEPTH.get(classes[row[0].name], 1))


def _end_labels(
    drawing: Drawing, lines: Sequence[tuple[str, tuple[float, float]]], classes: dict[str, str]
) -> None:
    placed = spread_labels([at[1] for _, at in lines], _LABEL_GAP, _TOP, drawing.height - _BOTTOM)
    edge = _WIDTH - _RIGHT + 10
    for (name, at), y in zip(lines, placed, strict=True):
        drawing.path([at, (edge - 4, y), (edge, y)], "leader")
        drawing.text(edge + 3, y + 4, name, f"end {classes[name]}")
