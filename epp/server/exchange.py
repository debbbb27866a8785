"""One ext_proc stream joined to the core: the machine's events become calls, its outputs become messages.

Owns which decision a stream carries, and what is watched of its response. Has no socket: the servicer feeds
it and sends what it returns. It waits for one thing, a request's tokens, and for that within a budget.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from epp.apis.usage import WATCH_BYTES, AnswerWatch
from epp.extproc.modes import BodyMode
from epp.extproc.types import (
    Abort,
    Cause,
    ExchangeEnded,
    Finish,
    HttpRequest,
    Observe,
    Refusal,
    ResponseData,
    ResponseStarted,
)
from epp.schedule.decision import Source

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from epp.apis.types import ParsedRequest, TokenCount
    from epp.extproc.modes import Modes
    from epp.extproc.stream import Output, Stream
    from epp.extproc.types import Event, Pick
    from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
    from epp.server.core import Core
    from epp.server.metrics import Metrics
    from epp.server.response_sampling import Sampler
    from epp.server.tokenizers import Count

#: What to send, in order, and how the stream then ends, if it does.
Answer = tuple["list[ProcessingResponse]", Finish | Abort | None]

#: Envoy ends a stream within so many seconds of the pick where it sees nothing more to ask: where it does not
#: take overrides, and the request's body was left with it. The request itself has only begun.
_AT_ONCE_S = 0.05


class Exchange:
    """One HTTP request's life on its stream.

    Args:
        stream: the protocol machine.
        core: decides and takes reports.
        metrics: counted into.
        sampler: says whether the response is read.
    """

    def __init__(self, stream: Stream, core: Core, metrics: Metrics, sampler: Sampler) -> None:
        self._stream, self._core, self._metrics, self._sampler = stream, core, metrics, sampler
        self._picked_s = self._since_s = 0.0
        self._decision_id = self._left_id = ""
        self._watch: AnswerWatch | None = None
        self._parsed: ParsedRequest | Refusal | None = None
        self._count: Count | None = None
        self._counted: TokenCount | None = None
        self._counted_bytes = 0

    @property
    def decided(self) -> bool:
        """Whether it carries a decision that has not ended."""
        return bool(self._decision_id)

    @property
    def left(self) -> bool:
        """Whether its stream ended with the pick, which may not have gone out."""
        return bool(self._left_id)

    def take(self, message: ProcessingRequest) -> Answer | Coroutine[Any, Any, Answer]:
        """Take a message; what to send, and how the stream then ends, at once unless tokens are counted."""
        outputs = self._stream.receive(message)
        for output in outputs:
            if isinstance(output, HttpRequest):
                self._since_s = self._sampler.now_s()
                self._parsed = parsed = self._core.read(output)
                if parsed is not None and not isinstance(parsed, Refusal) and self._counts(parsed):
                    return self._after_count(outputs)
        return self._answer(outputs)

    def _counts(self, parsed: ParsedRequest) -> bool:
        """Begin to count a prompt's tokens where its model has a tokenizer and the prompt finds room."""
        self._count = count = self._core.count(parsed)
        if count is None:
            return False
        if not self._stream.bodies.take_spare(len(parsed.canonical)):
            self._count_over(cancel=True)
            return False
        self._counted_bytes = len(parsed.canonical)
        return True

    def _count_over(self, *, cancel: bool = False) -> None:
        """End the wait for tokens."""
        if self._count is not None and cancel:
            self._count.cancel()
        self._count = None
        self._stream.bodies.release(self._counted_bytes)
        self._counted_bytes = 0

    async def _after_count(self, outputs: Sequence[Output]) -> Answer:
        if self._count is not None:
            self._counted = await self._count
        self._count_over()
        return self._answer(outputs)

    def _answer(self, outputs: Sequence[Output]) -> Answer:
        replies: list[ProcessingResponse] = []
        return replies, self._act(outputs, replies)

    def no_room(self) -> Answer:
        """Answer where what comes next finds no room."""
        return self._answer(self._stream.no_room())

    def closed(self, *, cut: bool) -> None:
        """End with the gRPC stream; ``cut`` when it was reset."""
        if self._count is not None:
            self._count_over(cancel=True)
        self._act(self._stream.closed(cut), [])
        if self._watch is not None:
            self._watch_over()
        if cut:
            self.unsent()

    def unsent(self) -> None:
        """Release a request whose pick did not go out."""
        if self._left_id:
            self._core.leases.unsent(self._left_id)

    def _act(
        self, outputs: Sequence[Output | Event], replies: list[ProcessingResponse]
    ) -> Finish | Abort | None:
        marker: Finish | Abort | None = None
        for output in outputs:
            match output:
                case HttpRequest():
                    marker = self._act(self._decide(output), replies) or marker
                case ResponseStarted():
                    if self._decision_id:
                        self._core.response_started(
                            self._decision_id,
                            output.status,
                            output.served,
                            output.headers.get("retry-after", ""),
                        )
                    if self._watch is not None:
                        self._watch.started(output.status, output.headers)
                case ResponseData():
                    if self._watch is not None:
                        self._sampler.chunk()
                        if self._watch.feed(output.data, self._sampler.now_s()):
                            self._core.outcomes.first_token(self._decision_id, Source.STREAM)
                case ExchangeEnded():
                    if self._decision_id:
                        self._end(output.cause)
                case Finish() | Abort():
                    marker = output
                case _:
                    replies.append(output)
        return marker

    def _decide(self, request: HttpRequest) -> list[Output]:
        modes = self._stream.modes
        self._metrics.requests.seen(request, observing=modes is not None and modes.observing)
        pick = self._core.decide(request, self._parsed, self._counted, since_s=self._since_s)
        self._parsed = self._counted = None  # they hold the prompt
        if isinstance(pick, Refusal):
            return self._stream.refused(pick)
        self._decision_id = pick.decision_id
        self._picked_s = self._sampler.now_s()
        if modes is not None and modes.response is not BodyMode.NONE:
            self._handle_response(pick, modes)
        return self._stream.picked(pick)

    def _handle_response(self, pick: Pick, modes: Modes) -> None:
        """Choose what becomes of a pick's response, which the proxy shows."""
        how = self._sampler.choose(self._decision_id, duplex=modes.request is BodyMode.FULL_DUPLEX_STREAMED)
        if how is Observe.READ:
            if self._stream.bodies.take_spare(WATCH_BYTES, half=True):
                self._watch = AnswerWatch()
            else:
                how = Observe.CARRY
        pick.observe_response = how

    def _watch_over(self) -> None:
        """Watch the answer no longer; again is fine."""
        if self._watch is not None:
            self._watch = None
            self._stream.bodies.release(WATCH_BYTES)

    def _end(self, cause: Cause) -> None:
        decision_id, self._decision_id = self._decision_id, ""
        watch = self._watch
        self._watch_over()
        at_once = self._sampler.now_s() - self._picked_s < _AT_ONCE_S
        if cause is Cause.UNOBSERVED or (cause is Cause.STREAM_END and self._stream.released and at_once):
            self._left_id = decision_id
            self._core.leases.stream_ended(decision_id)
            return
        if cause is Cause.CUT_OFF and watch is not None and watch.has_last_event():
            cause = Cause.COMPLETED  # its client has all that it wanted
        if watch is not None and (watch.chunks or cause is Cause.COMPLETED):
            if watch.encoded:
                self._metrics.value("epp_compressed_answers_total").inc()
            known = self._core.picker.observed(
                decision_id,
                usage=watch.usage(),
                chunks=watch.chunks,
                response_bytes=watch.response_bytes,
                last_chunk_s=math.nan if math.isnan(watch.first_s) else watch.last_s,
                streamed=watch.streamed,
            )
            if not known:
                self._core.outcomes.late(decision_id)
        self._core.outcomes.stream_ended(decision_id, cause.value)
