"""One ext_proc stream joined to the core: the machine's events become calls, its outputs become messages.

Owns which decision a stream carries. Has no socket and does not wait: the servicer feeds it and sends what it
returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.extproc.types import (
    Abort,
    ExchangeEnded,
    Finish,
    PickNeeded,
    Refusal,
    ResponseData,
    ResponseStarted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.extproc.stream import Output, Stream
    from epp.extproc.types import Event
    from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
    from epp.server.core import Core
    from epp.server.metrics import Metrics


class Exchange:
    """One HTTP request's life on its stream.

    Args:
        stream: the protocol machine.
        core: decides and takes reports.
        metrics: counted into.
    """

    def __init__(self, stream: Stream, core: Core, metrics: Metrics) -> None:
        self._stream, self._core, self._metrics = stream, core, metrics
        self._decision_id = ""
        self._answering = False

    def receive(self, message: ProcessingRequest) -> tuple[list[ProcessingResponse], Finish | Abort | None]:
        """Take a message; what to send, in order, and how the stream then ends, if it does."""
        replies: list[ProcessingResponse] = []
        marker = self._act(self._stream.receive(message), replies)
        return replies, marker

    def closed(self, *, cut: bool) -> None:
        """The gRPC stream is over; ``cut`` when it was reset."""
        self._act(self._stream.closed(cut), [])

    def _act(
        self, outputs: Sequence[Output | Event], replies: list[ProcessingResponse]
    ) -> Finish | Abort | None:
        marker: Finish | Abort | None = None
        for output in outputs:
            match output:
                case PickNeeded():
                    decided = self._core.decide(output.request)
                    if isinstance(decided, Refusal):
                        further = self._stream.refused(decided)
                    else:
                        self._decision_id = decided.decision.id
                        further = self._stream.picked(decided.pick)
                    marker = self._act(further, replies) or marker
                case ResponseStarted():
                    if self._decision_id:
                        self._core.response_started(self._decision_id, output.status)
                case ResponseData():
                    if self._decision_id and output.data and not self._answering:
                        self._answering = True
                        self._core.outcomes.first_token(self._decision_id)
                case ExchangeEnded():
                    self._metrics.exchange_ended(output.cause)
                    if self._decision_id:
                        self._core.outcomes.stream_ended(self._decision_id, output.cause.value)
                        self._decision_id = ""
                case Finish() | Abort():
                    marker = output
                case _:
                    replies.append(output)
        return marker
