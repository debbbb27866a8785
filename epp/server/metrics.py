"""The picker's Prometheus metrics: names, help, and the children resolved once.

Labels are bounded: names from the configuration, from closed enumerations, or endpoint addresses of the pool,
whose series go when the endpoint goes. Nothing a client sends becomes a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from epp.extproc.types import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from epp.decide.picker import Picker
    from epp.decide.records import Basis, Decision

_SECONDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.25, 1.0)


class Metrics:
    """Every metric of the picker, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.decisions = Counter(
            "epp_decisions",
            "Requests given an endpoint, by policy and by what the decision rests on.",
            ["policy", "basis"],
            registry=registry,
        )
        self.refusals = Counter(
            "epp_refusals",
            "Requests answered with an error, by status and rule.",
            ["status", "rule"],
            registry=registry,
        )
        self.exchanges = Counter(
            "epp_exchanges", "ext_proc streams ended, by cause.", ["cause"], registry=registry
        )
        self._ended = {cause: self.exchanges.labels(cause.value) for cause in Cause}
        self.stream_errors = Counter(
            "epp_stream_errors", "ext_proc streams that failed by a fault of the picker.", registry=registry
        )
        self.streams = Gauge("epp_streams_in_flight", "ext_proc streams open now.", registry=registry)
        self.decision_seconds = Histogram(
            "epp_decision_seconds",
            "Time from the whole request to the decision: parse, measure, price, reserve.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.parse_seconds = Histogram(
            "epp_parse_seconds", "Time to parse and measure a body.", buckets=_SECONDS, registry=registry
        )
        self.leases_expired = Counter(
            "epp_leases_expired", "Leases that outlived their time.", registry=registry
        )
        self.late_reports = Counter(
            "epp_late_reports", "Reports on unknown or finished decisions, dropped.", registry=registry
        )
        self.file_ok = Gauge(
            "epp_file_ok",
            "1 when a watched file's content is in force, 0 when an older one is.",
            ["file"],
            registry=registry,
        )
        self.file_errors = Counter(
            "epp_file_errors", "Unusable contents of watched files.", ["file"], registry=registry
        )
        self.probe_failures = Counter(
            "epp_probe_failures", "Probes without an answer.", ["endpoint"], registry=registry
        )
        self.scrape_failures = Counter(
            "epp_scrape_failures", "Scrapes without usable metrics.", ["endpoint"], registry=registry
        )
        self.restarts = Counter(
            "epp_endpoint_restarts", "Engine restarts noticed.", ["endpoint"], registry=registry
        )
        self.ejections = Counter("epp_ejections", "Endpoints ejected.", ["endpoint"], registry=registry)

        self.records_dropped = Counter(
            "epp_records_dropped", "Records lost to a full queue or disk.", registry=registry
        )
        self._decided: dict[tuple[str, Basis], Counter] = {}

    def decided(self, decision: Decision) -> None:
        """Count a decision; the labelled child is looked up once per pair."""
        key = (decision.policy, decision.basis)
        child = self._decided.get(key)
        if child is None:
            child = self._decided[key] = self.decisions.labels(decision.policy, decision.basis.value)
        child.inc()

    def exchange_ended(self, cause: Cause) -> None:
        """Count the end of a stream."""
        self._ended[cause].inc()

    def file_good(self, file: str) -> None:
        """A watched file's content is in force."""
        self.file_ok.labels(file).set(1)

    def file_failed(self, file: str) -> None:
        """A watched file's content is unusable."""
        self.file_ok.labels(file).set(0)
        self.file_errors.labels(file).inc()

    def forget_endpoint(self, address: str) -> None:
        """Drop the series of an endpoint that left."""
        for family in (self.probe_failures, self.scrape_failures, self.restarts, self.ejections):
            family.remove_by_labels({"endpoint": address})


class PickerCollector:
    """Gauges read from the picker at scrape time, so that nothing is updated per request."""

    def __init__(self, picker: Picker, mono_s: Callable[[], float]) -> None:
        self._picker, self._mono_s = picker, mono_s

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing to describe before the first scrape."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family per signal, one series per endpoint; plus weights and the index."""
        picker, now_s = self._picker, self._mono_s()
        weights = GaugeMetricFamily("epp_weight", "Weight in force.", labels=["name", "source"])
        for name, value in picker.weights.current.values.items():
            weights.add_metric([name, picker.weights.current.sources[name]], value)
        yield weights
        yield GaugeMetricFamily(
            "epp_requests_in_flight", "Requests decided and not ended.", value=picker.in_flight
        )
        stats = picker.fleet.index.stats()
        yield GaugeMetricFamily(
            "epp_prefix_index_segments", "Segments of the prefix index.", value=stats.segments
        )
        yield GaugeMetricFamily(
            "epp_prefix_index_blocks", "Distinct blocks of the prefix index.", value=stats.blocks
        )
        yield from self._per_endpoint(now_s)

    def _per_endpoint(self, now_s: float) -> Iterator[GaugeMetricFamily]:
        for name, text, values in self._picker.fleet.gauges(now_s):
            family = GaugeMetricFamily(f"epp_endpoint_{name}", text, labels=["endpoint"])
            for address, value in values:
                family.add_metric([address], value)
            yield family
