"""Spans of requests over OTLP: who was chosen, before whom, by which margin and terms.

Imported where `tracing` is on. OpenTelemetry's own environment variables (`OTEL_*`) configure it. Spans wait
in a bounded queue and leave in a thread, so that no request waits for a collector. Export is gRPC, which is
here anyway.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import numpy as np
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from epp import __version__
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span

    from epp.clock import Clock
    from epp.schedule.decision import Decision

#: W3C Trace Context, of requests.
TRACEPARENT = "traceparent"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_NO_PARENT = Context()


class Tracing:
    """Makes a span of each request that is sampled.

    Args:
        clock: the time.

    Raises:
        ConfigError: the environment asks for another protocol than gRPC.
    """

    def __init__(self, clock: Clock) -> None:
        for name in _PROTOCOLS:
            if (protocol := os.environ.get(name, "grpc")) != "grpc":
                fix = "grpc, which collectors take on port 4317"
                raise ConfigError(f"environment variable {name}", "", f"{protocol!r} is not exported", fix)
        # Else a collector that is away fills the log by warnings of each retry and each span without room.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        own = Resource({"service.name": "epp", "service.version": __version__})
        resource = own.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("epp", __version__)
        self._propagator, self._clock = TraceContextTextMapPropagator(), clock

    def picked(self, headers: Mapping[str, str], decision: Decision, since_s: float) -> str:
        """Make the span of a decision.

        Args:
            headers: of the request.
            decision: what was decided.
            since_s: monotonic time at which the request was there.

        Returns:
            The ``traceparent`` by which the engine's spans become children of this one; empty where the
            request is not sampled.
        """
        span = self._span(headers, since_s)
        if not span.is_recording():
            return ""
        span.set_attributes(attributes(decision))
        span.end(self._now_ns())
        context = span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def refused(self, headers: Mapping[str, str], status: int, rule: str) -> None:
        """Make the span of a request that got an HTTP error by a rule instead of an endpoint."""
        span = self._span(headers, self._clock.mono_s())
        if span.is_recording():
            span.set_attributes({"http.response.status_code": status, "epp.rule": rule})
            span.set_status(Status(StatusCode.ERROR, rule))
            span.end(self._now_ns())

    def close(self) -> None:
        """Export what waits; may take as long as the collector does."""
        self._provider.shutdown()

    def _span(self, headers: Mapping[str, str], since_s: float) -> Span:
        parent = self._propagator.extract(headers, _NO_PARENT) if TRACEPARENT in headers else _NO_PARENT
        began_ns = self._now_ns() - round((self._clock.mono_s() - since_s) * 1e9)
        return self._tracer.start_span("pick", parent, SpanKind.SERVER, start_time=began_ns)

    def _now_ns(self) -> int:
        return round(self._clock.wall_s() * 1e9)


def attributes(decision: Decision) -> dict[str, str | float]:
    """Describe a decision: the endpoint chosen, the cheapest other one, and the terms of both costs."""
    ranking, names, chosen = decision.ranking, decision.snapshot.endpoints, decision.chosen
    found: dict[str, str | float] = {
        "epp.decision_id": decision.id,
        "epp.policy": decision.policy,
        "epp.chosen": names[chosen],
        "epp.cost": ranking.costs.item(chosen),
        "gen_ai.request.model": decision.request.model,
    }
    shown = {"epp.term": chosen}
    costs = np.array(ranking.costs)
    costs[[chosen, *decision.slow_start_excluded]] = np.inf
    second = int(costs.argmin())
    if costs[second] < np.inf:
        found["epp.runner_up"] = names[second]
        found["epp.margin"] = costs.item(second) - ranking.costs.item(chosen)
        shown["epp.runner_up.term"] = second
    for prefix, row in shown.items():
        found |= {f"{prefix}.{name}": column.item(row) for name, column in ranking.terms.items()}
    return found
