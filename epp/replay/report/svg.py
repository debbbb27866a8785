"""The few pieces that plots are made of: scales, ticks, elements. Pure; text out.

Owns escaping and number formats of plots. Colours and fonts are classes that the page's style sheet knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to pixels.

    Attributes:
        low: value at ``start``.
        high: value at ``end``.
        start: pixel of the lowest value.
        end: pixel of the highest.
        log: logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value, kept inside the scale."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        part = (at - low) / (high - low) if high > low else 0.5
        return self.start + part * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the scale."""
        return self.low <= value <= self.high

    def ticks(self, count: int = 6) -> list[float]:
        """Round values on the scale, at most about ``count``."""
        if self.log:
            for steps in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
                decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
                found = [s * 10.0**d for d in decades for s in steps if self.holds(s * 10.0**d)]
                if len(found) <= count:
                    break
            if len(found) >= 3:
                return found
        span = self.high - self.low
        step = 10.0 ** math.floor(math.log10(span / count))
        step *= next(f for f in (1, 2, 2.5, 5, 10) if span / (step * f) <= count)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def padded(low: float, high: float, *, log: bool, share: float = 0.05) -> tuple[float, float]:
    """A range with room at both ends; never empty."""
    if log:
        room = max(math.log(high / low) * share, 0.01)
        return low * math.exp(-room), high * math.exp(room)
    room = max((high - low) * share, 1e-9)
    return low - room, high + room


@dataclass(slots=True)
class Drawing:
    """An SVG under construction: elements in the order in which they are painted."""

    width: float
    height: float
    label: str
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str) -> None:
        """A straight line."""
        self.parts.append(f'<line x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}" class="{cls}"/>')

    def text(self, x: float, y: float, content: str, cls: str = "", anchor: str = "start") -> None:
        """A line of text."""
        self.parts.append(
            f'<text x="{n(x)}" y="{n(y)}" class="{cls}" text-anchor="{anchor}">{escape(content)}</text>'
        )

    def dot(self, x: float, y: float, radius: float, cls: str, title: str = "") -> None:
        """A circle; its title shows on hovering."""
        self.parts.append(
            f'<circle cx="{n(x)}" cy="{n(y)}" r="{n(radius)}" class="{cls}">{_title(title)}</circle>'
        )

    def diamond(self, x: float, y: float, radius: float, cls: str, title: str = "") -> None:
        """A square on its corner."""
        points = (
            f"{n(x - radius)},{n(y)} {n(x)},{n(y - radius)} {n(x + radius)},{n(y)} {n(x)},{n(y + radius)}"
        )
        self.parts.append(f'<polygon points="{points}" class="{cls}">{_title(title)}</polygon>')

    def rect(self, box: tuple[float, float, float, float], cls: str, title: str = "") -> None:
        """A rectangle: left, top, width, height."""
        x, y, width, height = box
        self.parts.append(
            f'<rect x="{n(x)}" y="{n(y)}" width="{n(max(0.0, width))}" height="{n(max(0.0, height))}" '
            f'class="{cls}">{_title(title)}</rect>'
        )

    def path(self, points: list[tuple[float, float]], cls: str, title: str = "") -> None:
        """A line through points."""
        steps = " ".join(f"{n(x)},{n(y)}" for x, y in points)
        self.parts.append(f'<polyline points="{steps}" class="{cls}">{_title(title)}</polyline>')

    def area(self, points: list[tuple[float, float]], cls: str, title: str = "") -> None:
        """A filled outline."""
        steps = " ".join(f"{n(x)},{n(y)}" for x, y in points)
        self.parts.append(f'<polygon points="{steps}" class="{cls}">{_title(title)}</polygon>')

    def render(self) -> str:
        """The element, as wide as its place allows."""
        return (
            f'<svg viewBox="0 0 {n(self.width)} {n(self.height)}" role="img" '
            f'aria-label="{escape(self.label, quote=True)}">{"".join(self.parts)}</svg>'
        )


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def n(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def ms(value: float) -> str:
    """A latency for a label: ``350 ms``, ``1.4 s``."""
    if not math.isfinite(value):
        return "-"
    if value >= 999.5:
        return f"{value / 1000:.3g} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def spread_labels(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near those wanted, at least ``gap`` apart, in the same order of size."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    at = low - gap
    for i in order:
        at = max(at + gap, wanted[i])
        placed[i] = at
    limit = high
    for i in reversed(order):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed
