"""What pickers believed of the caches, and what was so: one bar and one mark a policy."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from epp.replay.report.svg import Drawing, Scale

if TYPE_CHECKING:
    from epp.replay.document import CellEntry

_WIDTH = 640
_LABELS = 186
_ROW = 19
_TOP = 20


def hits(cell: CellEntry) -> str:
    """Bars are true hits, marks what was believed; most true hits first."""
    rows = [p for p in cell.policies if isfinite(p.true_hit_share)]
    rows.sort(key=lambda p: -p.true_hit_share)
    bottom = _TOP + _ROW * len(rows)
    drawing = Drawing(_WIDTH, bottom + 26, "believed and true cache hits of each policy")
    scale = Scale(0.0, 1.0, _LABELS + 10, _WIDTH - 56)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.line(scale(tick), _TOP - 4, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 16, f"{100 * tick:g} %", "tick", "middle")
    for number, policy in enumerate(rows):
        y = _TOP + _ROW * number
        true, believed = policy.true_hit_share, policy.believed_hit_share
        title = f"{policy.name}: true {100 * true:.1f} %"
        drawing.text(_LABELS, y + 13, policy.name, f"name {policy.role}", "end")
        if isfinite(believed):
            title += f", believed {100 * believed:.1f} %"
        box = (scale.start, y + 3, scale(true) - scale.start, _ROW - 6)
        drawing.rect(box, f"bar {policy.role}", title)
        if isfinite(believed):
            drawing.diamond(scale(believed), y + _ROW / 2, 4.5, "mark belief", title)
        drawing.text(_WIDTH - 50, y + 13, f"{100 * true:.0f} %", "figure")
    return drawing.render()
