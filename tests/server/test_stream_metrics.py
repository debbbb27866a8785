"""How ext_proc streams end on the wire, and what is counted of it: llm-d's stream metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from prometheus_client import generate_latest

from epp.extproc.types import Abort, Finish
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.server.ext_proc import ExtProc
from epp.server.health import EXT_PROC
from epp.server.metrics import Metrics
from tests.kit.replicas import metric

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ENDED, SECONDS, OPEN = (
    f"llm_d_epp_extproc_{name}"
    for name in ("streams_total", "stream_duration_seconds_count", "streams_inflight")
)


class Scripted:
    """An exchange that answers every message in the same way."""

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self._answer = answer

    async def receive(self, _: ProcessingRequest) -> tuple[list[Any], Any]:
        return [], await self._answer()

    def closed(self, *, cut: bool) -> None:
        """Nothing to close."""


async def finishes() -> Any:
    return Finish()


async def aborts() -> Any:
    return Abort("INVALID_ARGUMENT", "a message out of turn")


async def breaks() -> Any:
    raise ZeroDivisionError


async def hangs() -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answer", "status", "code", "faults"),
    [
        (finishes, grpc.StatusCode.OK, "OK", 0),
        (aborts, grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument", 0),
        (breaks, grpc.StatusCode.INTERNAL, "Internal", 1),
        (hangs, grpc.StatusCode.CANCELLED, "Canceled", 0),
    ],
    ids=["ok", "protocol-violation", "fault", "reset"],
)
async def test_streams_are_counted_by_how_they_end(
    answer: Callable[[], Awaitable[Any]], status: grpc.StatusCode, code: str, faults: int
) -> None:
    metrics, exchange = Metrics(), Scripted(answer)

    def read(name: str, **labels: str) -> float:
        try:
            return metric(generate_latest(metrics.registry).decode(), name, labels)
        except KeyError:
            return 0.0

    server = grpc.aio.server()
    service = ExtProc(lambda: exchange, metrics, single=False)  # type: ignore[arg-type,return-value]  # scripted
    server.add_generic_rpc_handlers((service.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream(f"/{EXT_PROC}/Process", ProcessingRequest.SerializeToString)
        call = method()
        await call.write(ProcessingRequest())
        if answer is hangs:
            while not read(OPEN):
                await asyncio.sleep(0.01)
            call.cancel()
        assert await call.code() is status
        async with asyncio.timeout(10):
            while not read(ENDED, code=code):
                await asyncio.sleep(0.01)
    await server.stop(None)
    assert read(ENDED, code=code) == read(SECONDS) == 1
    assert read(OPEN) == 0
    assert read("epp_stream_errors_total") == faults, "what the other side does wrong is no fault of ours"
