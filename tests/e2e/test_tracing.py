"""Spans of requests, as a collector gets them over its own socket; and a collector that is away, or slow."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

from tests.kit.engines import Engine, EngineServing
from tests.kit.ports import free_ports
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(service.TraceServiceServicer):
    """What came, by trace; a slow one answers when it is let go."""

    def __init__(self, *, slow: bool) -> None:
        self.spans: dict[str, list[Any]] = {}
        self.services: set[str] = set()
        self.asked, self.let_go = 0, threading.Event()
        if not slow:
            self.let_go.set()

    def Export(self, request: Any, _: object) -> otlp.ExportTraceServiceResponse:  # noqa: N802
        self.asked += 1
        self.let_go.wait()
        for resource in request.resource_spans:
            self.services |= {
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            }
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.setdefault(span.trace_id.hex(), []).append(span)
        return otlp.ExportTraceServiceResponse()


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch, *, slow: bool = False) -> Iterator[Collector]:
    """A collector, and the environment that names it."""
    collector, pool = Collector(slow=slow), ThreadPoolExecutor(2)
    server = grpc.server(pool)
    service.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    named(monkeypatch, server.add_insecure_port("127.0.0.1:0"))
    server.start()
    yield collector
    collector.let_go.set()
    server.stop(0)


def named(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=picker-of-prod")


def told(span: Any) -> dict[str, str | float]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def test_a_span_continues_the_clients_trace_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(monkeypatch) as collector:
        engines = [Engine(), Engine()]
        async with EngineServing(tmp_path, engines, tracing=True) as serving:
            for flag in ("00", "01"):
                await serving.chat(headers={"traceparent": f"00-{TRACE}-{PARENT}-{flag}"})
            await serving.chat(headers={"content-type": "application/json"}, messages=[])
            await until(lambda: len(collector.spans) == 2)
            record = await decision(serving)
        (span,) = collector.spans.pop(TRACE)  # the request that was not sampled has none
        ((refused,),) = collector.spans.values()
    asked = [each for engine in engines for each in engine.asked if each.path.endswith("completions")]
    assert span.parent_span_id.hex() == PARENT
    assert {each.headers["traceparent"] for each in asked} == {
        f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{span.span_id.hex()}-01"
    }  # fmt: skip
    assert collector.services == {"picker-of-prod"}
    facts, chosen = told(span), record["chosen"]
    other = 1 - chosen
    assert (facts["epp.decision_id"], facts["epp.policy"]) == (record["id"], "gorgo-ms")
    assert (facts["epp.chosen"], facts["epp.runner_up"]) == (
        record["endpoints"][chosen], record["endpoints"][other]
    )  # fmt: skip
    assert facts["epp.margin"] == pytest.approx(record["costs"][other] - record["costs"][chosen])
    for name, column in record["terms"].items():
        assert facts[f"epp.term.{name}"] == pytest.approx(column[chosen])
        assert facts[f"epp.runner_up.term.{name}"] == pytest.approx(column[other])
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 10e9
    assert told(refused) == {"http.response.status_code": 400, "epp.rule": "client"}
    assert refused.status.code == 2


async def decision(serving: EngineServing) -> dict[str, Any]:
    async with serving.http.get(f"http://{serving.picker.http}/decisions/last") as answer:
        found: dict[str, Any] = await answer.json()
    return found


@pytest.mark.parametrize("collector", ["away", "slow"])
async def test_a_collector_that_is_no_good_holds_up_neither_requests_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: str
) -> None:
    with collecting(monkeypatch, slow=True) as slow:
        if collector == "away":
            named(monkeypatch, free_ports())
        async with EngineServing(tmp_path, [Engine()], tracing=True) as serving:
            await serving.chat()
            if collector == "slow":
                await until(lambda: slow.asked)
            # More than the queue takes while an export is under way.
            assert {status for status, _ in [await serving.chat() for _ in range(40)]} == {200}
            serving.picker.signal(15)
            assert await serving.picker.ended() == 0


def test_serving_without_spans_imports_nothing_of_it() -> None:
    words = "import sys, epp.server.app, epp.server.command; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run((sys.executable, "-c", words), capture_output=True, text=True, check=True)
    assert "uvloop" in done.stdout
    assert "opentelemetry" not in done.stdout
