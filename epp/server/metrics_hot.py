"""Counters and histograms for the request path: a list increment where the client library locks and scans.

Owns the instruments and how they are shown to a scrape. They are written and read on the event loop alone,
so nothing is locked; whatever another thread counts uses the client library instead. A `Family` hands out
children, which callers keep: looking one up by its labels is not for the request path.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric


class Value:
    """A counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add."""
        self.value += amount

    def dec(self, amount: float = 1.0) -> None:
        """Take off; gauges only."""
        self.value -= amount


class Histogram:
    """Counts of observations by upper bound, and their sum.

    Args:
        bounds: upper bounds, ascending, without infinity.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; never NaN."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Their sum."""
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound as Prometheus spells it."""
        names = [*map(repr, map(float, self._bounds)), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


Child = TypeVar("Child", Value, Histogram)


class Family(Generic[Child]):
    """All children of one metric, by label values.

    Args:
        name: as scraped; of a counter with ``_total``.
        text: its help.
        labels: names of its labels.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._children: dict[tuple[str, ...], Child] = {}

    def child(self, *values: str) -> Child:
        """The child of these label values, made when there is none.

        Raises:
            ValueError: not as many values as labels.
        """
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {values}")
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = self._new()
        return found

    def adopt(self, child: Child, *values: str) -> None:
        """Show a child that another family owns under this name, too."""
        self._children[values] = child

    def forget(self, **labels: str) -> None:
        """Drop the children with these values of these labels."""
        wanted = [(self.labels.index(label), value) for label, value in labels.items()]
        for values in list(self._children):
            if all(values[at] == value for at, value in wanted):
                del self._children[values]

    def __len__(self) -> int:
        """Number of children."""
        return len(self._children)

    def _new(self) -> Child:
        raise NotImplementedError

    def metric(self) -> Metric:
        """What a scrape is shown."""
        raise NotImplementedError


class Counters(Family[Value]):
    """Counters."""

    def _new(self) -> Value:
        return Value()

    def metric(self) -> Metric:
        """What a scrape is shown."""
        shown = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for values, child in self._children.items():
            shown.add_metric(values, child.value)
        return shown


class Gauges(Family[Value]):
    """Gauges."""

    def _new(self) -> Value:
        return Value()

    def metric(self) -> Metric:
        """What a scrape is shown."""
        shown = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for values, child in self._children.items():
            shown.add_metric(values, child.value)
        return shown


class Histograms(Family[Histogram]):
    """Histograms.

    Args:
        name: as scraped.
        text: its help.
        bounds: upper bounds of all children.
        labels: names of its labels.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(bounds)

    def _new(self) -> Histogram:
        return Histogram(self.bounds)

    def metric(self) -> Metric:
        """What a scrape is shown."""
        shown = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for values, child in self._children.items():
            shown.add_metric(values, child.buckets(), child.sum)
        return shown


class FamilyCollector(Collector):
    """Shows families to a registry."""

    def __init__(self, families: Iterable[Family[Value] | Family[Histogram]]) -> None:
        self._families = list(families)

    def describe(self) -> list[Metric]:
        """Names, so that a registry refuses a second family of one name."""
        return [family.metric() for family in self._families]

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        for family in self._families:
            yield family.metric()


class Capped:
    """Bound of the distinct values that clients can give a label.

    Args:
        limit: distinct values beside those to keep; what comes after them is `OTHER`.
    """

    OTHER = "other"
    MAX_LENGTH = 128

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()
        self._kept: set[str] = set()

    def keep(self, values: Iterable[str]) -> None:
        """Let these values be labels whatever clients send: an operator or an engine has named them."""
        self._kept.update(value for value in values if len(value) <= self.MAX_LENGTH)

    def __call__(self, value: str) -> str:
        """The value itself, or `OTHER` when there are enough or it is absurdly long."""
        if value in self._kept or value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > self.MAX_LENGTH:
            return self.OTHER
        self._seen.add(value)
        return value
