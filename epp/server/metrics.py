"""The picker's Prometheus metrics: one object that everything is counted into, with a registry of its own.

Owns the names of what is not about single requests (those are in `epp.server.metrics_requests`); gauges that
can be read when asked for are in `epp.server.metrics_collect`. docs/metrics.md lists all of them.

Labels are bounded: names from the configuration, from closed enumerations, endpoint addresses of the pool,
whose series go when the endpoint goes, and a capped number of model names. Nothing else that a client sends
becomes a label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

from epp import __version__
from epp.extproc.types import Cause
from epp.server.metrics_cluster import ClusterMetrics
from epp.server.metrics_collect import PickerCollector, ReceiverCollector
from epp.server.metrics_hot import Counters, FamilyCollector, Gauges, Histograms
from epp.server.metrics_requests import DURATION_S, RequestMetrics
from epp.server.tokenizers import REASONS

if TYPE_CHECKING:
    from epp.decide.records import Decision, Outcome
    from epp.server.metrics_collect import Receiver
    from epp.server.metrics_hot import Histogram, Value
    from epp.signals.duration import Duration

__all__ = ["Metrics", "PickerCollector"]

_SECONDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.25, 1.0)


class Metrics:
    """Every metric that something is counted into."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestMetrics()
        self._streams()
        self._losses()
        self._connections()
        self._costs()
        self._files_and_endpoints()
        self.cluster = ClusterMetrics(self.registry)
        self._receivers = ReceiverCollector()
        build = Gauges("llm_d_epp_info", "Which picker this is.", ("commit", "build_ref"))
        build.child("", f"gorgo-epp {__version__}").inc()
        self.registry.register(
            FamilyCollector(
                (
                    *self.requests.families(),
                    self._refusals,
                    self._estimates,
                    self.exchanges,
                    *self._of_streams,
                    *self._times,
                    build,
                )
            )
        )
        self.registry.register(self._receivers)

    def _streams(self) -> None:
        self._refusals = Counters(
            "epp_refusals_total", "Requests answered with an error, by status and rule.", ("status", "rule")
        )
        self._refused: dict[tuple[int, str], Value] = {}
        self._estimates = Counters(
            "epp_token_estimates_total",
            "Prompts whose tokens were estimated though their model has a tokenizer, by reason.",
            ("reason",),
        )
        for reason in REASONS:  # shown from the start: an alert needs the zero before the one
            self._estimates.child(reason)
        self.exchanges = Counters("epp_exchanges_total", "ext_proc streams ended, by cause.", ("cause",))
        self._ended = {cause: self.exchanges.child(cause.value) for cause in Cause}
        self._streams_open = Gauges("llm_d_epp_extproc_streams_inflight", "ext_proc streams open now.")
        self.streams: Value = self._streams_open.child()
        self._streams_ended = Counters(
            "llm_d_epp_extproc_streams_total", "ext_proc streams ended, by gRPC status.", ("code",)
        )
        seconds = Histograms("llm_d_epp_extproc_stream_duration_seconds", "Life of a stream.", DURATION_S)
        self._stream_seconds = seconds.child()
        self._of_streams = (self._streams_open, self._streams_ended, seconds)
        registry = self.registry
        self.stream_errors = Counter(
            "epp_stream_errors", "ext_proc streams that failed by a fault of the picker.", registry=registry
        )
        self.held_body_bytes = Gauge(
            "epp_held_body_bytes",
            "Bytes of requests that wait for their picks, of messages that have come in part or wait, of "
            "open streams (8 KiB each) and of responses that are read (64 KiB each); "
            "request.max_held_body_bytes bounds them.",
            registry=registry,
        )

    def _losses(self) -> None:
        registry = self.registry
        self.loop_stall_s = Counter(
            "epp_event_loop_stall_seconds",
            "Time by which heartbeats of the event loop came late, in all; requests waited as long.",
            registry=registry,
        )
        self.late_reports = Counter(
            "epp_late_reports", "Reports on unknown or finished decisions, dropped.", registry=registry
        )
        self.picks_not_honoured = Counter(
            "epp_picks_not_honoured",
            "Picks whose first attempt Envoy made elsewhere: its cluster did not hold the endpoint.",
            registry=registry,
        )
        self.leases_expired = Counter(
            "epp_leases_expired", "Leases that outlived their time.", registry=registry
        )
        self.compressed = Counter(
            "epp_compressed_answers",
            "Answers whose usage could not be read because they were compressed.",
            registry=registry,
        )
        # Counted in the writer's thread, too, so they need the client library's lock.
        self.records_dropped = Counter(
            "epp_records_dropped", "Records lost to a full queue or disk.", registry=registry
        )
        self.recorder_restarts = Counter(
            "epp_recorder_restarts",
            "Faults of the thread that writes records, after each of which it started again.",
            registry=registry,
        )

    def _connections(self) -> None:
        registry = self.registry
        self.connections_refused = Counter(
            "epp_connections_refused",
            "Connections closed as they came, because listen.max_connections were open to the listener: grpc "
            "(listen.health is one), http or first_token; to grpc also because one peer had half of them.",
            ("listener",),
            registry=registry,
        )
        for listener in ("grpc", "http", "first_token"):
            self.connections_refused.labels(listener)
        self.connections_ended = Counter(
            "epp_connections_ended",
            "gRPC connections that the picker ended: idle for five minutes, idle while their place was "
            "needed (room), or a flood from a peer over its budget of work.",
            ("reason",),
            registry=registry,
        )
        for reason in ("idle", "room", "flood"):
            self.connections_ended.labels(reason)
        self.throttled = Counter(
            "epp_connections_throttled_seconds",
            "Time that gRPC connections were not read because their peers were over their budgets of work.",
            registry=registry,
        )

    def _costs(self) -> None:
        decision = Histograms(
            "epp_decision_seconds",
            "Time from the whole request to the decision: parse, measure, price, reserve.",
            _SECONDS,
        )
        parse = Histograms("epp_parse_seconds", "Time to parse and measure a body.", _SECONDS)
        schedule = Histograms(
            "llm_d_epp_scheduler_e2e_duration_seconds",
            "Time to filter, price, draw and reserve.",
            _SECONDS[:-2],
        )
        processing = Histograms(
            "llm_d_epp_request_processing_duration_seconds", "As epp_decision_seconds.", _SECONDS
        )
        self.decision_seconds: Histogram = decision.child()
        self.parse_seconds: Histogram = parse.child()
        self.schedule_seconds: Histogram = schedule.child()
        processing.adopt(self.decision_seconds)
        self._times = (decision, parse, schedule, processing)

    def _files_and_endpoints(self) -> None:
        registry = self.registry
        self.file_ok = Gauge(
            "epp_file_ok",
            "1 when a watched file's content is in force, 0 when an older one is; no series without a file. "
            "eds is the file that the picker writes for Envoy.",
            ["file"],
            registry=registry,
        )
        self.file_errors = Counter(
            "epp_file_errors",
            "Unusable contents of watched files, and failures to write eds.",
            ["file"],
            registry=registry,
        )
        self.probe_failures = Counter(
            "epp_probe_failures", "Probes without an answer.", ["endpoint"], registry=registry
        )
        self.scrape_failures = Counter(
            "epp_scrape_failures", "Scrapes without usable metrics.", ["endpoint"], registry=registry
        )
        self.model_mismatch = Gauge(
            "epp_endpoint_model_mismatch",
            "Names that the endpoint's engine is asked for and does not list in /v1/models; 0 is good.",
            ["endpoint"],
            registry=registry,
        )
        self.restarts = Counter(
            "epp_endpoint_restarts", "Engine restarts noticed.", ["endpoint"], registry=registry
        )
        self.ejections = Counter("epp_ejections", "Endpoints ejected.", ["endpoint"], registry=registry)

    def decided(
        self, decision: Decision, expected: Duration, *, streamed: bool = False, priority: int = 0
    ) -> None:
        """A request was given an endpoint; ``streamed`` when it asked for an event stream."""
        self.requests.decided(decision, expected, streamed=streamed, priority=priority)

    def finished(self, outcome: Outcome) -> None:
        """A decided request ended."""
        self.requests.finished(outcome)

    def estimated(self, reason: str) -> None:
        """A prompt's tokens were estimated though its model has a tokenizer."""
        self._estimates.child(reason).inc()

    def refused(self, status: int, rule: str, model: str = "", priority: int = 0) -> None:
        """A request was answered with an error; ``rule`` from a closed set."""
        child = self._refused.get((status, rule))
        if child is None:
            child = self._refused[status, rule] = self._refusals.child(str(status), rule)
        child.inc()
        self.requests.refused(model, status, priority)

    def stream_ended(self, code: str, seconds: float) -> None:
        """An ext_proc stream ended with a gRPC status, named as Go names it."""
        self.streams.dec()
        self._streams_ended.child(code).inc()
        self._stream_seconds.observe(seconds)

    def exchange_ended(self, cause: Cause) -> None:
        """Count the end of a stream."""
        self._ended[cause].inc()

    def add_receiver(self, name: str, receiver: Receiver) -> None:
        """Show what a receiver of reports has counted."""
        self._receivers.add(name, receiver)

    def file_good(self, file: str, *, there: bool = True) -> None:
        """A watched file's content is in force; or it is gone, and nothing of it is, old or new."""
        if there:
            self.file_ok.labels(file).set(1)
        else:
            self.file_ok.remove_by_labels({"file": file})

    def file_failed(self, file: str) -> None:
        """A watched file's content is unusable."""
        self.file_ok.labels(file).set(0)
        self.file_errors.labels(file).inc()

    def new_endpoint(self, address: str) -> None:
        """An endpoint joined: what it answers is shown under its name."""
        self.requests.new_endpoint(address)

    def forget_endpoint(self, address: str) -> None:
        """Drop the series of an endpoint that left."""
        for family in (
            self.probe_failures,
            self.scrape_failures,
            self.model_mismatch,
            self.restarts,
            self.ejections,
        ):
            family.remove_by_labels({"endpoint": address})
        self.requests.forget_endpoint(address)
