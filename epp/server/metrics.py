"""The picker's metrics: what is counted, and the page that Prometheus reads.

Counts live on the event loop and cost a list increment; `Value.inc` alone may be called by any thread. What
the metrics are is in `epp.server.metrics_table`, what is counted of a request in
`epp.server.metrics_requests`. The page is written a metric at a time, so that no request waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from epp import __version__
from epp.server.metrics_requests import RequestMetrics
from epp.server.metrics_table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epp.server.metrics_read import Samples
    from epp.server.metrics_table import Row

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_IN_LABELS = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
_lock = threading.Lock()


class Value:
    """A counter or a gauge; the event loop may change `value` itself."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add, from any thread."""
        with _lock:
            self.value += amount


class Histogram:
    """Counts of observations by upper bound, and their sum.

    Args:
        bounds: upper bounds, ascending, without infinity.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count one observation; never NaN."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Family:
    """All series of one metric that is counted, by label values.

    Args:
        row: what the metric is.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.series: dict[tuple[str, ...], Any] = {}
        for values in row.zeros if row.labels else ((),):
            self.child(values)

    def child(self, values: tuple[str, ...]) -> Any:
        """Return the series of these label values, made when there is none; callers may keep it.

        Raises:
            ValueError: not as many values as labels.
        """
        found = self.series.get(values)
        if found is None:
            if len(values) != len(self.row.labels):
                raise ValueError(f"{self.row.name} has the labels {self.row.labels}, not {values}")
            found = Histogram(self.row.bounds) if self.row.kind == "histogram" else Value()
            self.series[values] = found
        return found

    def forget(self, **labels: str) -> None:
        """Drop the series with these values of these labels."""
        wanted = [(self.row.labels.index(label), value) for label, value in labels.items()]
        for values in list(self.series):
            if all(values[at] == value for at, value in wanted):
                del self.series[values]


class Metrics:
    """Every metric of a picker."""

    def __init__(self) -> None:
        self._families = {row.name: Family(row) for row in TABLE if row.read is None}
        self._sources: dict[str, Any] = {}
        #: Receivers of reports by name, each with its counts.
        self.receivers: dict[str, Any] = {}
        self.requests = RequestMetrics(self)
        self.streams = self.value("llm_d_epp_extproc_streams_inflight")
        self._stream_seconds = self.histogram("llm_d_epp_extproc_stream_duration_seconds")
        self.value("llm_d_epp_info", "", f"gorgo-epp {__version__}").value = 1.0
        self.show("receivers", self.receivers)

    def value(self, name: str, *labels: str) -> Value:
        """Return a counter's or a gauge's series."""
        found: Value = self._families[name].child(labels)
        return found

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return a histogram's series."""
        found: Histogram = self._families[name].child(labels)
        return found

    def forget(self, name: str, **labels: str) -> None:
        """Drop a metric's series with these labels."""
        self._families[name].forget(**labels)

    def show(self, source: str, state: object) -> None:
        """Let the rows of this source be read from ``state``."""
        self._sources[source] = state

    def stream_ended(self, code: str, seconds: float) -> None:
        """Count the end of an ext_proc stream with a gRPC status, named as Go names it."""
        self.streams.value -= 1.0
        self.value("llm_d_epp_extproc_streams_total", code).inc()
        self._stream_seconds.observe(seconds)

    def endpoint_event(self, address: str, event: str) -> None:
        """Count what happened to an endpoint."""
        self.value("epp_endpoint_events_total", address, event).inc()

    def file_good(self, file: str, *, there: bool = True) -> None:
        """Show that a watched file's content is in force, or that there is no such file."""
        if there:
            self.value("epp_file_ok", file).value = 1.0
        else:
            self.forget("epp_file_ok", file=file)

    def file_failed(self, file: str) -> None:
        """Show that a watched file's content is unusable."""
        self.value("epp_file_ok", file).value = 0.0

    def forget_endpoint(self, address: str) -> None:
        """Drop the series of an endpoint that left."""
        for family in self._families.values():
            if "endpoint" in family.row.labels:
                family.forget(endpoint=address)
        self.requests.forget_endpoint(address)

    async def page(self) -> bytes:
        """Write everything in Prometheus' text format, version 0.0.4."""
        pieces = []
        for piece in self.pieces():
            pieces.append(piece)
            await asyncio.sleep(0)
        return "".join(pieces).encode()

    def pieces(self) -> Iterator[str]:
        """Write the page a metric at a time."""
        for row in TABLE:
            if row.read is None:
                series = self._families[row.name].series
                yield _head(row) + (_histograms(row, series) if row.bounds else _lines(row, _values(series)))
            elif row.source in self._sources:
                yield _head(row) + _lines(row, row.read(self._sources[row.source]))


def _values(series: dict[tuple[str, ...], Value]) -> Samples:
    return ((labels, child.value) for labels, child in series.items())


def _head(row: Row) -> str:
    return f"# HELP {row.name} {row.text}\n# TYPE {row.name} {row.kind}\n"


def _lines(row: Row, samples: Samples) -> str:
    return "".join([f"{row.name}{_braces(row, labels)} {_number(value)}\n" for labels, value in samples])


def _histograms(row: Row, series: dict[tuple[str, ...], Histogram]) -> str:
    lines = []
    bounds = [*map(repr, map(float, row.bounds)), "+Inf"]
    for labels, child in series.items():
        own, counts = _labels(row, labels), list(accumulate(child.counts))
        for bound, count in zip(bounds, counts, strict=True):
            lines.append(f'{row.name}_bucket{{{own}{"," if own else ""}le="{bound}"}} {float(count)}\n')
        braces = _braces(row, labels)
        lines.append(f"{row.name}_count{braces} {float(counts[-1])}\n")
        lines.append(f"{row.name}_sum{braces} {_number(child.sum)}\n")
    return "".join(lines)


def _braces(row: Row, values: tuple[str, ...]) -> str:
    return f"{{{_labels(row, values)}}}" if values else ""


def _labels(row: Row, values: tuple[str, ...]) -> str:
    return ",".join([f'{label}="{_escaped(value)}"' for label, value in zip(row.labels, values, strict=True)])


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_IN_LABELS)


def _number(value: float) -> str:
    text = repr(float(value))
    return _NOT_FINITE.get(text, text)
