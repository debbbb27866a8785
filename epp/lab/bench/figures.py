"""Figures: what was measured, with its spread, its goal and its ratio to a baseline.

Owns the table and the baseline file. A figure has one value a round; what is shown is the median and,
beside it, the lowest and highest. Lower is better for all of them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epp import __version__
from epp.errors import EppError
from epp.lab.bench.goals import GOALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_FORMAT = 1
_YARDSTICK_LOOPS = 200_000


@dataclass(slots=True)
class Figure:
    """One measured quantity.

    Attributes:
        name: ``bench/what``, unique; goals and baselines are found by it.
        unit: as printed.
        values: one a round.
        note: how to read it.
    """

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.values)


@dataclass(slots=True)
class Figures:
    """All figures of a run, in the order in which they were first added."""

    found: dict[str, Figure] = field(default_factory=dict)

    def add(self, name: str, unit: str, value: float, note: str = "") -> None:
        """One round's value."""
        figure = self.found.get(name)
        if figure is None:
            figure = self.found[name] = Figure(name, unit, note=note)
        figure.values.append(value)

    def median(self, name: str) -> float:
        """Median of a figure.

        Raises:
            KeyError: it was not measured.
        """
        return self.found[name].median

    def merge(self, other: Figures) -> None:
        """Take another run's values as further rounds."""
        for figure in other.found.values():
            for value in figure.values:
                self.add(figure.name, figure.unit, value, figure.note)

    def table(self, baseline: Figures | None = None, *, paired: bool = False) -> str:
        """The figures as text.

        Args:
            baseline: shown as ratios beside them.
            paired: the baseline's rounds took turns with ours, so ratios are taken round by round.
        """
        width = max((len(name) for name in self.found), default=0)
        head = f"{'':{width}} {'median':>10} {'lowest - highest':>23} unit     {'goal':>8}"
        lines = [head + (f" {'of baseline':>20}" if baseline else "")]
        for figure in self.found.values():
            goal, said = GOALS.get(figure.name), ""
            if goal is not None:
                said = f"{_number(goal.most):>8} {'met' if figure.median <= goal.most else 'MISSED'}"
            spread = f"{_number(min(figure.values))} - {_number(max(figure.values))}"
            line = (
                f"{figure.name:{width}} {_number(figure.median):>10} {spread:>23} {figure.unit:8} {said:15}"
            )
            if baseline is not None:
                line += f" {_ratio(figure, baseline.found.get(figure.name), paired=paired):>13}"
            lines.append((line + (f"  {figure.note}" if figure.note else "")).rstrip())
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Write them as a baseline."""
        document: dict[str, Any] = {
            "format": _FORMAT,
            "settings": settings(),
            "figures": {
                figure.name: {"unit": figure.unit, "values": figure.values, "note": figure.note}
                for figure in self.found.values()
            },
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[Figures, Mapping[str, object]]:
    """A baseline and the settings that it was taken under.

    Raises:
        EppError: the file cannot be read, or is no baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        figures = Figures(
            {
                name: Figure(
                    name, figure["unit"], [float(value) for value in figure["values"]], figure["note"]
                )
                for name, figure in document["figures"].items()
            }
        )
        found: Mapping[str, object] = document["settings"]
    except OSError as error:
        raise EppError(f"cannot read the baseline: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EppError(f"{path} is no baseline that `epp bench --save` wrote: {error!r}") from error
    return figures, found


def settings() -> dict[str, object]:
    """What a reader needs to judge figures: versions, machine, what else it does, how fast it is now."""
    return {
        "epp": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "yardstick_ms": round(yardstick_ms(), 2),
    }


def yardstick_ms() -> float:
    """CPU milliseconds of a fixed piece of work, the best of five: how fast this machine is at this moment.

    Two runs are comparable as far as their yardsticks are.
    """
    best = float("inf")
    for _ in range(5):
        begun = time.process_time()
        table: dict[int, int] = {}
        for number in range(_YARDSTICK_LOOPS):
            table[number & 1023] = number ^ (number >> 3)
        best = min(best, time.process_time() - begun)
    return best * 1e3


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which so large a share of the values lies: the nearest one."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _ratio(figure: Figure, before: Figure | None, *, paired: bool) -> str:
    """As text; ``-`` where there is none: a difference of rounds may be zero or negative."""
    if before is None or not before.values:
        return "-"
    if not paired:
        return f"{figure.median / before.median:.2f}" if min(figure.median, before.median) > 0 else "-"
    # A round without a value leaves it open which ones took turns.
    if len(figure.values) != len(before.values) or min(*figure.values, *before.values) <= 0:
        return "-"
    ratios = [a / b for a, b in zip(figure.values, before.values, strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


def _number(value: float) -> str:
    if value and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
