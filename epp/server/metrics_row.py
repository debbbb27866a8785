"""What one metric is, and short ways to write each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.server.metrics_read import Samples


@dataclass(frozen=True)
class Row:
    """One metric.

    Attributes:
        name: as queries have it, of a histogram without a suffix.
        kind: ``counter``, ``gauge`` or ``histogram``.
        labels: names of its labels.
        text: what it means.
        bounds: upper bounds of a histogram's buckets.
        zeros: label values that are shown from the start: an alert needs the zero before the one.
        source: what ``read`` is given: the object shown under this name (`Metrics.show`).
        read: gives label values and value of each series; None for what is counted.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] = ()
    zeros: tuple[tuple[str, ...], ...] = ()
    source: str = ""
    read: Callable[[Any], Samples] | None = None


def counter(name: str, labels: str, text: str, zeros: str = "") -> Row:
    """Make a counter; ``zeros`` are label values by spaces, series by commas."""
    found = tuple(tuple(zero.split()) for zero in zeros.split(",") if zero)
    return Row(name, "counter", tuple(labels.split()), text, zeros=found)


def gauge(name: str, labels: str, text: str) -> Row:
    """Make a gauge that is set."""
    return Row(name, "gauge", tuple(labels.split()), text)


def histogram(name: str, labels: str, text: str, bounds: tuple[float, ...]) -> Row:
    """Make a histogram."""
    return Row(name, "histogram", tuple(labels.split()), text, bounds)


def shown(source: str, name: str, labels: str, text: str, how: Callable[[Any], Samples]) -> Row:
    """Make a metric that is read from a source, a counter where its name says so."""
    kind = "counter" if name.endswith("_total") else "gauge"
    return Row(name, kind, tuple(labels.split()), text, source=source, read=how)
