"""Who served what, when: one small stacked plot a policy, one colour a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.replay.report.svg import Drawing

if TYPE_CHECKING:
    from epp.replay.document import CellEntry, PolicyEntry

_COLUMNS = 5
_TILE_WIDTH, _TILE_HEIGHT = 236, 116
_PLOT_WIDTH, _PLOT_HEIGHT = 220, 72
#: Replica colours that the page's style sheet knows; more replicas take them again.
COLOURS = 8


def shares_over_time(cell: CellEntry, names: list[str]) -> str:
    """The plots, policies from the most even to the most lopsided.

    Args:
        cell: figures.
        names: replicas, as they are called in hover titles.
    """
    policies = [p for p in cell.policies if p.share_over_time]
    policies.sort(key=lambda p: p.hottest_share)
    rows = -(-len(policies) // _COLUMNS)
    drawing = Drawing(_COLUMNS * _TILE_WIDTH, rows * _TILE_HEIGHT, "share of each replica over time")
    for number, policy in enumerate(policies):
        left = (number % _COLUMNS) * _TILE_WIDTH
        top = (number // _COLUMNS) * _TILE_HEIGHT
        _tile(drawing, policy, names, left, top)
    return drawing.render()


def _tile(drawing: Drawing, policy: PolicyEntry, names: list[str], left: float, top: float) -> None:
    drawing.text(left, top + 14, policy.name, f"name {policy.role}")
    drawing.text(left + _PLOT_WIDTH, top + 14, f"{100 * policy.hottest_share:.0f} %", "tick", "end")
    base = top + 24
    replicas = len(policy.share_over_time[0])
    totals = [max(1, sum(row)) for row in policy.share_over_time]
    width = _PLOT_WIDTH / len(totals)
    lower = [0.0] * len(totals)
    for replica in range(replicas):
        upper = [
            low + row[replica] / total
            for low, row, total in zip(lower, policy.share_over_time, totals, strict=True)
        ]
        edge = [(left + width * (i + 0.5), base + _PLOT_HEIGHT * (1 - v)) for i, v in enumerate(upper)]
        back = [(left + width * (i + 0.5), base + _PLOT_HEIGHT * (1 - v)) for i, v in enumerate(lower)]
        share = policy.share[replica] if replica < len(policy.share) else 0.0
        title = f"{policy.name}: {names[replica] if replica < len(names) else replica} {100 * share:.0f} %"
        drawing.area([*edge, *reversed(back)], f"replica r{replica % COLOURS}", title)
        lower = upper
