"""The proxy's side of ext_proc: recorded conversations held with a picker, several at once.

Owns the gRPC client and its clock. Knows of answers only which picks they carry and when a body is back.
What Envoy would tell besides - first tokens, access log - is told, too, where the picker has places for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import grpc

from epp.errors import EppError
from epp.lab.bench.reports import first_token_call, log_message
from epp.pb.ext_proc_pb2 import ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from epp.lab.bench.recorded import Step

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
ACCESS_LOG = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
_LONGEST = -1
_OPTIONS = (
    ("grpc.max_receive_message_length", _LONGEST),
    ("grpc.max_send_message_length", _LONGEST),
    ("grpc.use_local_subchannel_pool", 1),
)
#: Envoy's access log is sent so often, as we configure it.
_LOG_INTERVAL_S = 0.1
_CONVERSATION_S = 60.0
_DESTINATION = "x-gateway-destination-endpoint"


@dataclass(slots=True)
class Load:
    """What a burst of conversations showed.

    Attributes:
        decided_ms: from the last message that a pick needs to the pick, each.
        wall_s: the whole burst.
    """

    decided_ms: list[float] = field(default_factory=list)
    wall_s: float = 0.0


class Proxy:
    """One Envoy worker's connection to a picker, as an async context manager.

    Args:
        address: the picker's ext_proc listener.
        first_token: where first tokens are told, ``""`` for nowhere.
        access_log: whether the access log is told on the same connection.
    """

    def __init__(self, address: str, *, first_token: str = "", access_log: bool = False) -> None:
        self._address, self._first_token, self._access_log = address, first_token, access_log
        self._channel: grpc.aio.Channel | None = None
        self._told: list[tuple[str, str]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._undecided = 0
        self._calls: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        """Connect."""
        self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        self._open = self._channel.stream_stream(PROCESS)
        if self._first_token:
            host, _, port = self._first_token.rpartition(":")
            reader, self._calls = await asyncio.open_connection(host, int(port))
            self._tasks.append(asyncio.ensure_future(_drain(reader)))
        if self._access_log:
            self._tasks.append(asyncio.ensure_future(self._log()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._calls is not None:
            self._calls.transport.abort()
        if self._channel is not None:
            await self._channel.close()

    async def burst(self, conversations: Sequence[list[Step]], at_once: int, *, reported: bool) -> Load:
        """Hold conversations, so many at a time.

        Args:
            conversations: each what `epp.lab.bench.recorded.conversation` made.
            at_once: how many.
            reported: whether Envoy would tell of them besides: not where it shows the response.

        Raises:
            EppError: the picker refused or cut one, or one has hung.
        """
        load, left = Load(), iter(conversations)

        async def one_by_one() -> None:
            for steps in left:
                try:
                    async with asyncio.timeout(_CONVERSATION_S):
                        load.decided_ms.append(await self.hold(steps, reported=reported))
                except TimeoutError:
                    raise EppError(f"a conversation with {self._address} has hung") from None
                except grpc.aio.AioRpcError as error:
                    raise EppError(f"{self._address}: {error.code().name}: {error.details()}") from error

        begun = time.perf_counter()
        await asyncio.gather(*(one_by_one() for _ in range(min(at_once, len(conversations)))))
        load.wall_s = time.perf_counter() - begun
        return load

    async def hold(
        self, steps: list[Step], gate: asyncio.Event | None = None, *, reported: bool = True
    ) -> float:
        """One conversation; milliseconds from the last message that the pick needs to the pick.

        Args:
            steps: what is sent and awaited.
            gate: keeps the stream open until it is set, once the request is decided.
            reported: as `burst`.
        """
        call = self._open()
        self._undecided += 1
        decided_ms, pick, over = 0.0, ("", ""), False
        for step in steps:
            sending = None
            if len(step.messages) > 2:  # Envoy sends on while it reads
                sending = asyncio.ensure_future(_send(call, step.messages))
            else:
                await _send(call, step.messages)
            sent_s = time.perf_counter()
            over, found = await _answers(call, step)
            if sending is not None:
                await sending
            if step.decides:
                decided_ms, pick = (time.perf_counter() - sent_s) * 1e3, found
                self._undecided -= 1
                if gate is not None:
                    await gate.wait()
            if over:
                break
        if reported and self._calls is not None and pick[0]:
            self._calls.write(first_token_call(pick[0]))  # Envoy does not wait for the answer
        if not over and not call.done():
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        status = await call.code()
        if status is not grpc.StatusCode.OK:
            raise EppError(f"a stream ended with {status.name}: {await call.details()}")
        if pick[0] and reported and self._access_log:
            self._told.append(pick)
        return decided_ms

    @property
    def undecided(self) -> int:
        """Conversations begun whose pick has not come."""
        return self._undecided

    async def settle(self) -> None:
        """Wait until the picker has been told everything.

        Raises:
            EppError: it does not take first tokens or the access log, or no longer.
        """
        await asyncio.sleep(2.5 * _LOG_INTERVAL_S if self._access_log else 0.1)
        if any(task.done() for task in self._tasks):
            raise EppError(f"{self._address} has closed what first tokens or the access log are told on")

    async def _log(self) -> None:
        channel = self._channel
        if channel is None:
            return
        call = channel.stream_unary(ACCESS_LOG)()
        while True:
            await asyncio.sleep(_LOG_INTERVAL_S)
            told, self._told = self._told, []
            if told:
                await call.write(log_message(told))


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def _send(call: Any, messages: Sequence[bytes]) -> None:
    """Send; what a stream that has ended is sent goes nowhere, and its status tells why it ended."""
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        for message in messages:
            await call.write(message)


async def _answers(call: Any, step: Step) -> tuple[bool, tuple[str, str]]:
    """Read what a step waits for: whether the stream is over, and the pick's id and endpoint if it came."""
    pick, count = ("", ""), 0
    async for raw in _replies(call):
        count += 1
        reply = ProcessingResponse.FromString(raw)
        if reply.HasField("immediate_response"):
            status = reply.immediate_response.status.code
            raise EppError(f"the picker answered {status}: {reply.immediate_response.body[:300]!r}")
        if step.decides and not pick[0]:
            pick = _pick(reply)
        if step.replies is not None:
            if count == step.replies:
                return False, pick
        elif _body_is_back(reply):
            return False, pick
    return True, pick


async def _replies(call: Any) -> AsyncIterator[bytes]:
    while (raw := await call.read()) is not grpc.aio.EOF:
        yield raw


def _pick(reply: ProcessingResponse) -> tuple[str, str]:
    fields = reply.dynamic_metadata.fields
    if "epp" not in fields or "envoy.lb" not in fields:
        return "", ""
    destination = fields["envoy.lb"].struct_value.fields[_DESTINATION].string_value
    return fields["epp"].struct_value.fields["decision_id"].string_value, destination.partition(",")[0]


def _body_is_back(reply: ProcessingResponse) -> bool:
    part = reply.WhichOneof("response")
    if part not in ("request_body", "response_body"):
        return False
    mutation = getattr(reply, part).response.body_mutation
    return bool(mutation.HasField("streamed_response") and mutation.streamed_response.end_of_stream)
