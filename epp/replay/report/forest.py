"""Forest plot: every policy's figure over the candidate's, with its interval."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from epp.replay.conclusion import change
from epp.replay.report.svg import Drawing, Scale, padded

if TYPE_CHECKING:
    from epp.replay.document import AgainstCandidate, CellEntry, Comparison, PolicyEntry

_WIDTH = 640
_LABELS = 186
_FIGURES = 138
_ROW = 23
_TOP = 30
# Beyond these a policy is far off, and showing how far would flatten all the others; an arrow says so.
_FLOOR, _CEILING = 0.55, 2.6


def forest(comparison: Comparison, cell: CellEntry, candidate: str) -> str:
    """The plot; rows from best to worst, stars on those that may be the best."""
    rows = [(p, comparison.to_candidate[p.name]) for p in cell.policies if p.name in comparison.to_candidate]
    rows.sort(key=lambda row: row[1].ratio)
    height = _TOP + _ROW * len(rows) + 34
    drawing = Drawing(_WIDTH, height, f"{comparison.label} of each policy over that of {candidate}")
    scale = _scale([entry for _, entry in rows])
    bottom = _TOP + _ROW * len(rows)
    for tick in _ticks(scale):
        x = scale(tick)
        drawing.line(x, _TOP - 6, x, bottom, "unity" if abs(tick - 1.0) < 1e-9 else "grid")
        label = "equal" if abs(tick - 1.0) < 1e-9 else f"{100 * (tick - 1):+.3g} %"
        drawing.text(x, bottom + 16, label, "tick", "middle")
    drawing.text(scale(1.0) - 8, _TOP - 13, "lower, better", "hint", "end")
    drawing.text(scale(1.0) + 8, _TOP - 13, "higher, worse", "hint")
    for number, (policy, entry) in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        best = comparison.to_best.get(policy.name)
        _row(drawing, scale, y, policy, entry, possible=best is not None and best.possibly_best)
    return drawing.render()


def _scale(entries: list[AgainstCandidate]) -> Scale:
    ends = [v for e in entries for v in (e.ratio, e.low, e.high) if isfinite(v) and v > 0]
    low = max(_FLOOR, min([*ends, 0.97]))
    high = min(_CEILING, max([*ends, 1.03]))
    low, high = padded(low, high, log=True, share=0.04)
    return Scale(low, high, _LABELS + 10, _WIDTH - _FIGURES - 8, log=True)


def _ticks(scale: Scale) -> list[float]:
    wide = scale.high / scale.low > 1.8
    candidates = (
        (0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5) if wide else (0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4)
    )
    ticks = [t for t in candidates if scale.holds(t)]
    kept: list[float] = []
    for tick in ticks:
        if not kept or scale(tick) - scale(kept[-1]) > 50:
            kept.append(tick)
        elif tick == 1.0:  # never without it
            kept[-1] = tick
    return kept


def _row(
    drawing: Drawing, scale: Scale, y: float, policy: PolicyEntry, entry: AgainstCandidate, *, possible: bool
) -> None:
    role = policy.role
    star = "\u2605 " if possible else ""
    drawing.text(_LABELS, y + 4, f"{star}{policy.name}", f"name {role}", "end")
    interval = ""
    if isfinite(entry.low) and isfinite(entry.high) and role != "candidate":
        interval = f" [{change(entry.low)}, {change(entry.high)}]".replace(" %", "")
    title = f"{policy.name}: {change(entry.ratio)}{interval}"
    if role == "candidate":
        drawing.diamond(scale(1.0), y, 6, "mark candidate", title)
        drawing.text(_WIDTH - _FIGURES, y + 4, "judged against", "figure")
        return
    if interval and entry.low <= scale.high and entry.high >= scale.low:
        drawing.line(scale(entry.low), y, scale(entry.high), y, f"whisker {role}")
    if entry.ratio > scale.high:
        x = scale.end
        drawing.area([(x - 7, y - 5), (x + 2, y), (x - 7, y + 5)], f"mark {role}", title)
    elif entry.ratio < scale.low:
        x = scale.start
        drawing.area([(x + 7, y - 5), (x - 2, y), (x + 7, y + 5)], f"mark {role}", title)
    elif role == "yardstick":
        drawing.diamond(scale(entry.ratio), y, 5, "mark yardstick", title)
    else:
        hollow = " saturated" if policy.saturated_seeds else ""
        drawing.dot(scale(entry.ratio), y, 4.4, f"mark {role}{hollow}", title)
    drawing.text(_WIDTH - _FIGURES, y + 4, f"{change(entry.ratio)}{interval}", "figure")
