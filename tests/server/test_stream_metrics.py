"""How ext_proc streams end on the wire, and what is counted of it: llm-d's stream metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from epp.extproc.types import Abort, Finish
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.server.access_log import AccessLogReceiver
from epp.server.health import EXT_PROC, HealthNames, HealthState
from epp.server.metrics import Metrics
from epp.server.services import Services
from tests.kit.replicas import metric
from tests.kit.transports import BOTH, listener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ENDED, SECONDS, OPEN = (
    f"llm_d_epp_extproc_{name}"
    for name in ("streams_total", "stream_duration_seconds_count", "streams_inflight")
)


class Scripted:
    """An exchange that answers every message in the same way."""

    left = False

    def __init__(self, answer: Callable[[], Awaitable[Any]]) -> None:
        self._answer = answer

    async def receive(self, _: ProcessingRequest) -> tuple[list[Any], Any]:
        return [], await self._answer()

    def take(self, message: ProcessingRequest) -> Awaitable[Any]:
        return self.receive(message)

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


@pytest.mark.parametrize("transport", BOTH)
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
    answer: Callable[[], Awaitable[Any]], status: grpc.StatusCode, code: str, faults: int, transport: str
) -> None:
    metrics, exchange = Metrics(), Scripted(answer)

    def read(name: str, **labels: str) -> float:
        try:
            return metric("".join(metrics.pieces()), name, labels)
        except KeyError:
            return 0.0

    names = HealthNames(HealthState(), any_name=False)
    log = AccessLogReceiver(exchange)  # type: ignore[arg-type]  # nothing is reported
    new_exchange: Any = lambda _: exchange  # noqa: E731  # scripted
    server = listener(transport, Services(metrics, names, new_exchange, log, may_leave=False))
    address = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
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
    await server.stop(0)
    assert read(ENDED, code=code) == read(SECONDS) == 1
    assert read(OPEN) == 0
    assert read("epp_faults_total", part="stream") == faults, (
        "what the other side does wrong is no fault of ours"
    )
