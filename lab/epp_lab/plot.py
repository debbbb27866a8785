"""Charts for a page (`epp_lab.page`), drawn there by uPlot; values show under a pointer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: As many as the page has for series.
COLORS = 7
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes:
        title: above it.
        x: what its x axis shows.
        y: what its y axis shows.
        series: points ``(x, y)`` by name; those that are not finite are left out.
        labels: texts of places on the x axis, instead of numbers.
        ticks: the places whose labels are written there; all numbers that fit when empty.
        log_x: whether the x axis is logarithmic; the y axis begins at 0 where nothing is below.
        drawn: as ``lines``, ``points`` or ``bars``.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    labels: Mapping[float, str] = field(default_factory=dict)
    ticks: Sequence[float] = ()
    log_x: bool = False
    drawn: str = "lines"


def figure(title: str, panels: Sequence[Panel]) -> str:
    """Lay panels out below a heading, as many in a row as fit; a series has one color in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    charts = "".join(_chart(panel, names) for panel in panels)
    return f'<h2>{escape(title)}</h2>\n<div class="charts">{charts}</div>'


def _chart(panel: Panel, names: Sequence[str]) -> str:
    series = []
    for number, (name, points) in enumerate(panel.series.items()):
        # Bars of one place stand side by side.
        shift = (number + 1) / (len(panel.series) + 1) - 0.5 if panel.drawn == "bars" else 0.0
        known = sorted((x + shift, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
        columns = [[float(f"{point[axis]:.{_DIGITS}g}") for point in known] for axis in (0, 1)]
        series.append({"name": name, "color": names.index(name) % COLORS, "points": columns})
    told = {name: getattr(panel, name) for name in ("x", "y", "ticks", "log_x", "drawn")}
    data = told | {"series": series, "labels": list(panel.labels.items())}
    text = escape(msgspec.json.encode(data).decode())
    return f'<section><h3>{escape(panel.title)}</h3><div class="chart" data-chart="{text}"></div></section>'
