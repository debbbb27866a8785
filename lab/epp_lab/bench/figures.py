"""Keep and print what was measured: each figure with its spread, its goal and its ratio to a baseline.

A figure has one value a round; the table shows the median, and beside it the lowest and highest. Lower is
better for all of them.
"""

from __future__ import annotations

import os
import platform
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from epp.errors import EppError
from epp_lab.origin import origin

if TYPE_CHECKING:
    from pathlib import Path

#: The most that a figure should be, on a machine of two cores. Those of a whole picker are the least that
#: llm-d's takes by its own account (source [E]): cores at a rate, divided by the rate.
GOALS = {
    "server/above bare/200 tokens": 0.25,
    "server/above bare/72 KB": 0.45,
    "server/above bare, builtin/200 tokens": 0.25,
    "server/above bare, builtin/72 KB": 0.45,
    "server/builtin of grpcio, bare/200 tokens": 0.33,
    "server/picker: constant/200 tokens": 7.2,
    "server/picker: constant/100k tokens": 356.0,
    "server/duplex left of constant": 1.3,
    "core/18k/3/warm": 0.25,
    "core/18k/100/warm": 0.30,
    "core/18k/1000/warm": 0.45,
    "policies/llm-d above gorgo/100": 0.1,
    "policies/lodestar/16": 0.30,
    "policies/lodestar/256": 1.00,
    "tokens/72 KB": 3.0,
    "tokens/72 KB stall": 3.0,
    "envoy/1024 of 16 tokens": 1.10,
    "envoy/added TTFT p50": 1.5,
    "envoy/added TTFT p99": 6.0,
    "index/1M/bytes per token": 4.0,
    "index/10M/bytes per token": 4.0,
    "index/100M/bytes per token": 4.0,
    "events/16 engines of 1,000 blocks a second": 10.0,
    "events/bytes a block": 300.0,
    "events/prompt of 20k tokens held by all": 15.0,
    "events/prompt of 20k tokens held by none": 15.0,
    "idle/100 endpoints": 3.0,
    "tracing/not sampled": 0.03,
    "pickers/shared of alone": 1.15,
    "pickers/change age p99": 120.0,
    "waiting/held": 8192.0,
    "pairs/32 x 32": 1.0,
    "waiting/added to a decision": 0.1,
}


class Figure(msgspec.Struct):
    """One measured quantity.

    Attributes:
        unit: as printed.
        values: one a round.
        note: how to read it.
    """

    unit: str
    values: list[float]
    note: str = ""


class Figures(msgspec.Struct):
    """Figures by name (``case/what``), and the settings that they were taken under."""

    found: dict[str, Figure] = {}
    settings: dict[str, str | float | None] = {}

    def add(self, name: str, unit: str, value: float, note: str = "") -> None:
        """Add one round's value."""
        self.found.setdefault(name, Figure(unit, [], note)).values.append(value)

    def merge(self, other: Figures) -> None:
        """Take another run's values as further rounds."""
        for name, figure in other.found.items():
            for value in figure.values:
                self.add(name, figure.unit, value, figure.note)

    def table(self, baseline: Figures | None = None) -> str:
        """Lay the figures out as text, with ratios to a baseline's.

        Ratios are taken round by round where both have as many: rounds that took turns met the same machine.
        """
        width = max((len(name) for name in self.found), default=0)
        head = f"{'':{width}} {'median':>10} {'lowest - highest':>23} unit     {'goal':>15}"
        lines = [head + (" of baseline" if baseline else "")]
        for name, figure in self.found.items():
            goal, middle = GOALS.get(name), median(figure.values)
            mark = "" if goal is None else f"{number(goal)} {'met' if middle <= goal else 'MISSED'}"
            spread = f"{number(min(figure.values))} - {number(max(figure.values))}"
            line = (
                f"{name:{width}} {number(middle):>10} {spread:>23} {figure.unit:8} {mark:>15} {figure.note}"
            )
            if baseline is not None:
                line += f" {_ratio(figure.values, baseline.found.get(name))}"
            lines.append(line.rstrip())
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Write them as a baseline."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def load(path: Path) -> Figures:
    """Read a baseline.

    Raises:
        EppError: the file cannot be read, or is no baseline.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except (OSError, msgspec.MsgspecError) as error:
        raise EppError(f"cannot read the baseline {path}: {error}") from error


def settings() -> dict[str, str | float | None]:
    """Describe what a reader needs to judge figures: versions, machine, and how busy it is now."""
    return {
        **origin(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def _ratio(values: list[float], before: Figure | None) -> str:
    """Return a ratio as text; ``-`` where there is none: a difference of rounds may be zero or negative."""
    if before is None or min(*values, *before.values) <= 0:
        return "-"
    if len(values) != len(before.values) or len(values) == 1:
        return f"{median(values) / median(before.values):.2f}"
    ratios = [a / b for a, b in zip(values, before.values, strict=True)]
    return f"{median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


def number(value: float) -> str:
    """Return a figure as text, as exact as it is worth."""
    if value and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
