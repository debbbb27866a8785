"""The proxy's side of ext_proc: recorded conversations held with a picker, several at once.

Knows of answers only which decisions they carry and when a body is back. Reports first tokens and the access
log, as Envoy would, where the picker has places for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Self

import grpc

from epp.config.address import split_address
from epp.errors import EppError
from epp.pb.ext_proc_pb2 import ProcessingResponse
from epp_lab.bench.recorded import first_token_call, log_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.bench.processes import Server
    from epp_lab.bench.recorded import Step

_PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_ACCESS_LOG = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
#: Our Envoy sends its access log so often.
_LOG_INTERVAL_S = 0.2
_CONVERSATION_S = 60.0
_DESTINATION = "x-gateway-destination-endpoint"
_NO_PICK = ("", "")


class Proxy:
    """One Envoy worker's connection to a picker, as an async context manager.

    Args:
        server: the picker.
        reports: whether first tokens and the access log are reported to it.
    """

    def __init__(self, server: Server, *, reports: bool = False) -> None:
        self._server, self._reports = server, reports
        self._picks: list[tuple[str, str]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._first_tokens: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        """Connect."""
        self._channel = grpc.aio.insecure_channel(self._server.grpc, options=_OPTIONS)
        if self._reports:
            reader, self._first_tokens = await asyncio.open_connection(
                *split_address(self._server.first_token)
            )
            self._tasks = [asyncio.ensure_future(_drain(reader)), asyncio.ensure_future(self._log())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._first_tokens is not None:
            self._first_tokens.transport.abort()
        await self._channel.close()

    async def burst(
        self, conversations: Sequence[list[Step]], at_once: int, *, reported: bool
    ) -> list[float]:
        """Hold conversations, ``at_once`` at a time, and return each one's milliseconds to its decision.

        Args:
            conversations: each what `epp_lab.bench.recorded.conversation` made.
            at_once: how many.
            reported: whether Envoy would report them: not where it shows the response.

        Raises:
            EppError: the picker refused or cut one, or one has hung.
        """
        decided_ms: list[float] = []
        left = iter(conversations)

        async def one_by_one() -> None:
            for steps in left:
                try:
                    async with asyncio.timeout(_CONVERSATION_S):
                        decided_ms.append(await self._hold(steps, reported=reported and self._reports))
                except TimeoutError:
                    raise EppError(f"a conversation with {self._server.grpc} has hung") from None
                except grpc.aio.AioRpcError as error:
                    raise EppError(f"{self._server.grpc}: {error.code().name}: {error.details()}") from error

        await asyncio.gather(*(one_by_one() for _ in range(min(at_once, len(conversations)))))
        if self._reports:  # the last access log is on its way
            await asyncio.sleep(2.5 * _LOG_INTERVAL_S)
        if any(task.done() for task in self._tasks):
            raise EppError(f"{self._server.grpc} does not take first tokens or the access log")
        return decided_ms

    async def _hold(self, steps: list[Step], *, reported: bool) -> float:
        """Hold one conversation: milliseconds from the last message that is needed to the decision."""
        call = self._channel.stream_stream(_PROCESS)()
        decided_ms, pick = 0.0, _NO_PICK
        for step in steps:
            sending = asyncio.ensure_future(_send(call, step.messages))  # Envoy sends on while it reads
            if len(step.messages) <= 2:
                await sending
            sent_s = time.perf_counter()
            over, found = await _answers(call, step)
            await sending
            if step.decides:
                decided_ms, pick = (time.perf_counter() - sent_s) * 1e3, found
            if over:
                break
        if reported and self._first_tokens is not None:
            self._first_tokens.write(first_token_call(pick[0]))
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
        status = await call.code()
        if status is not grpc.StatusCode.OK:
            raise EppError(f"a stream ended with {status.name}: {await call.details()}")
        if reported:
            self._picks.append(pick)
        return decided_ms

    async def _log(self) -> None:
        call = self._channel.stream_unary(_ACCESS_LOG)()
        while True:
            await asyncio.sleep(_LOG_INTERVAL_S)
            picks, self._picks = self._picks, []
            if picks:
                await call.write(log_message(picks))


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def _send(call: Any, messages: Sequence[bytes]) -> None:
    """Send; what a stream that has ended is sent goes nowhere, and its status says why it ended."""
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        for message in messages:
            await call.write(message)


async def _answers(call: Any, step: Step) -> tuple[bool, tuple[str, str]]:
    """Read what a step waits for: whether the stream is over; the decision's id and endpoint if it came."""
    pick, count = _NO_PICK, 0
    while (raw := await call.read()) is not grpc.aio.EOF:
        count += 1
        reply = ProcessingResponse.FromString(raw)
        if reply.HasField("immediate_response"):
            status = reply.immediate_response.status.code
            raise EppError(f"the picker answered {status}: {reply.immediate_response.body[:300]!r}")
        if step.decides and pick is _NO_PICK:
            pick = _pick(reply)
        if _body_is_back(reply) if step.replies is None else count == step.replies:
            return False, pick
    return True, pick


def _pick(reply: ProcessingResponse) -> tuple[str, str]:
    fields = reply.dynamic_metadata.fields
    if "epp" not in fields:
        return _NO_PICK
    destination = fields["envoy.lb"].struct_value.fields[_DESTINATION].string_value
    return fields["epp"].struct_value.fields["decision_id"].string_value, destination.partition(",")[0]


def _body_is_back(reply: ProcessingResponse) -> bool:
    part = reply.WhichOneof("response")
    if part not in ("request_body", "response_body"):
        return False
    return bool(getattr(reply, part).response.body_mutation.streamed_response.end_of_stream)
