"""Charts of points and lines as SVG for a page, in panels side by side; values show under a pointer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Of Okabe and Ito (2008): distinct to color-blind readers, too.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
#: Height of a panel, its margin on each side, and the height of a line of text, in px.
_HEIGHT, _MARGIN, _LINE = 220, 42, 16


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes:
        title: above it.
        x: what its x axis shows.
        y: what its y axis shows.
        series: points ``(x, y)`` by name; those that are not finite are left out.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def figure(
    title: str,
    panels: Sequence[Panel],
    *,
    columns: int = 5,
    log_x: bool = False,
    joined: bool = True,
    width: int = 260,
) -> str:
    """Draw panels below one legend.

    Args:
        title: above them.
        panels: row by row; each has axes of its own, linear ones from 0 where nothing is below.
        columns: panels in a row.
        log_x: whether x axes are logarithmic.
        joined: whether a line joins the points of a series.
        width: of a panel, in px.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    color = {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(names)}
    columns = min(columns, len(panels))
    rows, top = -(-len(panels) // columns), (2 + len(names)) * _LINE
    parts = [_text(4, _LINE, title, "start")]
    parts += [_text(4, (2 + at) * _LINE, f"● {name}", "start", color[name]) for at, name in enumerate(names)]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        inner = "".join(_panel(panel, color, width, log_x=log_x, joined=joined))
        parts.append(f'<g transform="translate({column * width} {top + row * _HEIGHT})">{inner}</g>')
    across, down = columns * width, top + rows * _HEIGHT
    size = f'width="{across}" height="{down}" viewBox="0 0 {across} {down}"'
    font = 'font-family="sans-serif" font-size="11"'
    return f"<svg {size} {font}>{''.join(parts)}</svg>"


def _panel(panel: Panel, color: Mapping[str, str], width: int, *, log_x: bool, joined: bool) -> list[str]:
    shown = {
        name: [point for point in points if all(map(math.isfinite, point))]
        for name, points in panel.series.items()
    }
    xs, ys = ([point[axis] for points in shown.values() for point in points] for axis in (0, 1))
    left, right, bottom, up = _MARGIN, width - _MARGIN / 2, _HEIGHT - _MARGIN, _MARGIN / 2
    x_of, x_ticks = _axis(xs, left, right, log=log_x)
    y_of, y_ticks = _axis(ys, bottom, up)
    parts = [
        f'<path d="M{left} {up}V{bottom}H{right}" fill="none" stroke="#888"/>',
        _text((left + right) / 2, up - 6, panel.title),
        _text((left + right) / 2, _HEIGHT - 10, panel.x),
        _text(left, up - 6, panel.y),
    ]
    parts += [_text(x_of(tick), bottom + 14, f"{tick:.4g}") for tick in x_ticks]
    parts += [_text(left - 4, y_of(tick) + 4, f"{tick:.3g}", "end") for tick in y_ticks]
    for name, points in shown.items():
        places = [(round(x_of(x), 1), round(y_of(y), 1)) for x, y in points]
        if joined:
            path = " ".join(f"{x},{y}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color[name]}"/>')
        # Its invisible stroke is what a pointer hits.
        circle = f'r="2.5" fill="{color[name]}" stroke="transparent" stroke-width="9"'
        parts += [
            f'<circle cx="{x}" cy="{y}" {circle}><title>{escape(name)}: {panel.x} {at:.4g}, '
            f"{panel.y} {value:.4g}</title></circle>"
            for (x, y), (at, value) in zip(places, points, strict=True)
        ]
    return parts


def _axis(
    values: Sequence[float], begin: float, end: float, *, log: bool = False
) -> tuple[Callable[[float], float], tuple[float, ...]]:
    """Return where values are drawn, and the ends and the middle to label."""
    scale, back = (math.log2, math.exp2) if log else (float, float)
    low, high = (scale(min(values)), scale(max(values))) if values else (0.0, 1.0)
    if not log:
        low = min(low, 0.0)
    high = max(high, low + 1e-9)
    ticks = tuple(back(low + share * (high - low)) for share in (0.0, 0.5, 1.0))
    return lambda value: begin + (scale(value) - low) / (high - low) * (end - begin), ticks


def _text(x: float, y: float, text: str, anchor: str = "middle", fill: str = "#000") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
