"""One ext_proc stream joined to the core: the machine's events become calls, its outputs become messages.

Owns which decision a stream carries, and what is watched of its response. Has no socket: the servicer feeds
it and sends what it returns. It waits for one thing, a request's tokens, and for that within a budget.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epp.apis.answer import WATCH_BYTES, AnswerWatch
from epp.extproc.modes import BodyMode
from epp.extproc.types import (
    Abort,
    Cause,
    ExchangeEnded,
    Finish,
    Observe,
    PickNeeded,
    Refusal,
    ResponseData,
    ResponseStarted,
)
from epp.schedule.decision import Source
from epp.server.restoring import Restoring

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from epp.extproc.stream import Output, Stream
    from epp.extproc.types import Event, Pick
    from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
    from epp.server.core import Core, Reading
    from epp.server.metrics import Metrics
    from epp.server.observe import Sampler
    from epp.server.tokenizers import Count
    from epp.server.unobserved import UnobservedLeases

#: What to send, in order, and how the stream then ends, if it does.
Answer = tuple["list[ProcessingResponse]", Finish | Abort | None]

#: Modes in which nothing of a response's body is shown: there is nothing to read or to leave.
_NOT_SHOWN = {BodyMode.NONE}

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
        leases: takes the requests that are left.
    """

    def __init__(
        self,
        stream: Stream,
        core: Core,
        metrics: Metrics,
        sampler: Sampler,
        leases: UnobservedLeases,
    ) -> None:
        self._stream, self._core, self._metrics = stream, core, metrics
        self._sampler, self._leases = sampler, leases
        self._restoring: Restoring | None = None
        self._picked_s = 0.0
        self._decision_id = self._left_id = ""
        self._watch: AnswerWatch | None = None
        self._reading: Reading | None = None
        self._count: Count | None = None
        self._counted_bytes = 0

    @property
    def decided(self) -> bool:
        """Whether it carries a decision that has not ended."""
        return bool(self._decision_id)

    @property
    def left(self) -> bool:
        """Whether its request was left with the pick, which may not have gone out."""
        return bool(self._left_id)

    def take(self, message: ProcessingRequest) -> Answer | Coroutine[Any, Any, Answer]:
        """Take a message; what to send, and how the stream then ends, at once unless tokens are counted."""
        outputs = self._stream.receive(message)
        for output in outputs:
            if isinstance(output, PickNeeded):
                self._reading, self._count = self._core.begin(output.request)
                if self._count is not None and self._may_wait(self._reading):
                    return self._counted(self._reading, self._count, outputs)
        return self._answer(outputs)

    def _may_wait(self, reading: Reading) -> bool:
        """Whether the prompt finds room while its tokens are counted; without room they are estimated."""
        size = len(reading.parsed.canonical) if reading.parsed is not None else 0
        if not self._stream.bodies.take_spare(size):
            self._count_over(cancel=True)
            return False
        self._counted_bytes = size
        return True

    def _count_over(self, *, cancel: bool = False) -> None:
        """End the wait for tokens."""
        if self._count is not None and cancel:
            self._count.cancel()
        self._count = None
        self._stream.bodies.give_back(self._counted_bytes)
        self._counted_bytes = 0

    async def _counted(self, reading: Reading, count: Count, outputs: Sequence[Output]) -> Answer:
        reading.counted = await count
        self._count_over()
        return self._answer(outputs)

    def _answer(self, outputs: Sequence[Output]) -> Answer:
        replies: list[ProcessingResponse] = []
        return replies, self._act(outputs, replies)

    def no_room(self) -> Answer:
        """What comes next finds no room; what to send, and how the stream then ends."""
        return self._answer(self._stream.no_room())

    def closed(self, *, cut: bool) -> None:
        """The gRPC stream is over; ``cut`` when it was reset."""
        if self._count is not None:
            self._count_over(cancel=True)
        self._act(self._stream.closed(cut), [])
        self._watch_over()
        if cut:
            self.unsent()

    def unsent(self) -> None:
        """The last answer did not go out; nobody has a pick that it carried for a request that was left."""
        if self._left_id:
            self._leases.unsent(self._left_id)

    def _act(
        self, outputs: Sequence[Output | Event], replies: list[ProcessingResponse]
    ) -> Finish | Abort | None:
        marker: Finish | Abort | None = None
        for output in outputs:
            match output:
                case PickNeeded():
                    modes = self._stream.modes
                    observing = modes is not None and modes.observing
                    self._metrics.requests.seen(output.request, observing=observing)
                    decided = self._core.decide(output.request, self._reading)
                    self._reading = None  # it holds the prompt
                    if isinstance(decided, Refusal):
                        further = self._stream.refused(decided)
                    else:
                        self._decision_id = decided.decision.id
                        self._picked_s = self._sampler.now_s()
                        self._leases.decided(decided.decision, decided.expected)
                        further = self._stream.picked(self._observed(decided.pick))
                    marker = self._act(further, replies) or marker
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

    def _observed(self, pick: Pick) -> Pick:
        """The pick, with what becomes of its response."""
        modes = self._stream.modes
        if modes is None or modes.response in _NOT_SHOWN:
            return pick
        if pick.rewrite_response is not None and not modes.observing:
            self._restoring = Restoring(self._restored, pick.rewrite_response)
            pick = replace(pick, rewrite_response=self._restoring)
        how = self._sampler.choose(self._decision_id, duplex=modes.request is BodyMode.FULL_DUPLEX_STREAMED)
        if how is Observe.READ:
            if self._stream.bodies.take_spare(WATCH_BYTES, half=True):
                self._watch = AnswerWatch()
                return pick
            how = Observe.CARRY
        return replace(pick, observe_response=how)

    def _restored(self, result: str) -> None:
        self._metrics.value("epp_response_model_names_total", result).inc()

    def _watch_over(self) -> None:
        """Watch the answer no longer; again is fine."""
        if self._watch is not None:
            self._watch = None
            self._stream.bodies.give_back(WATCH_BYTES)

    def _end(self, cause: Cause) -> None:
        decision_id, self._decision_id = self._decision_id, ""
        watch = self._watch
        self._watch_over()
        if self._restoring is not None:
            self._restoring.ended()
        at_once = self._sampler.now_s() - self._picked_s < _AT_ONCE_S
        if cause is Cause.UNOBSERVED or (cause is Cause.STREAM_END and self._stream.released and at_once):
            self._left_id = decision_id
            self._leases.left(decision_id)
            return
        if cause is Cause.CUT_OFF and watch is not None and watch.has_last_event():
            cause = Cause.COMPLETED  # its client has all that it wanted
        if watch is not None and (watch.chunks or cause is Cause.COMPLETED):
            if watch.encoded:
                self._metrics.value("epp_compressed_answers_total").inc()
            self._core.outcomes.observed(
                decision_id,
                usage=watch.usage(),
                chunks=watch.chunks,
                response_bytes=watch.response_bytes,
                last_chunk_s=math.nan if math.isnan(watch.first_s) else watch.last_s,
                streamed=watch.streamed,
            )
        self._core.outcomes.stream_ended(decision_id, cause.value)
