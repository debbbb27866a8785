"""The ext_proc service: streams joined to the core, answered where messages are read.

Owns how a call of `Process` is served and how it ends. A message is answered where it is read, without a task
and without a turn of the event loop; only a request whose steps wait makes a task, and what comes meanwhile
waits behind it. So does what comes while our answers wait for room: the proxy may then fill its window and no
more, and what waits is held out of the room that all calls share. The last message and the status are one
write, always, which a proxy that shows responses in full duplex needs (docs/transport.md). Every call ends
its exchange exactly once.

An exchange makes calls of what its `Stream` tells, and messages of what it answers; it owns which decision a
stream carries, and what is watched of its response. It runs the request's steps, and lets one wait where what
the request holds finds room meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from epp.apis.usage import WATCH_BYTES, AnswerWatch
from epp.extproc.messages import MAX_BODILESS_BYTES, is_body, more_time
from epp.extproc.modes import BodyMode
from epp.extproc.types import (
    Abort,
    Cause,
    Finish,
    HttpRequest,
    LocalReply,
    Observe,
    ResponseData,
    ResponseStarted,
)
from epp.logs import REPEATED
from epp.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.rpc.handlers import Handler
from epp.rpc.http2.messages import BodilessLimit
from epp.rpc.http2.status import Status
from epp.schedule.decision import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from epp.extproc.modes import Modes
    from epp.extproc.stream import Output, Stream
    from epp.extproc.types import Destination, Event
    from epp.metrics.metrics import Metrics
    from epp.request.director import Director
    from epp.request.response_sampling import Sampler
    from epp.rpc.http2.connection import Call
    from epp.rpc.http2.messages import Message
    from epp.schedule.waiting import Steps, Wait

log = logging.getLogger(__name__)

#: What a message that waits takes beside its bytes.
_ITEM_BYTES = 64
#: Of most calls no message waits, and 10,000 of them may be open: an empty deque takes 760 bytes.
_NONE_WAIT: deque[bytes] = deque()
#: The limit of messages without a body, on either transport.
BODILESS = BodilessLimit(MAX_BODILESS_BYTES, is_body)
#: The service, and its one method.
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
PROCESS = f"/{EXT_PROC}/Process"


#: What to send, in order, and how the stream then ends, if it does.
Answer = tuple["list[ProcessingResponse]", Finish | Abort | None]

#: Envoy ends a stream within so many seconds of the decision where it sees nothing more to ask: where it does
#: not take overrides, and the request's body was left with it. The request itself has only begun.
_AT_ONCE_S = 0.05
#: Any proxy waits so long for an answer, unasked.
_UNASKED_WAIT_S = 0.1


class Exchange:
    """One HTTP request's life on its stream.

    Args:
        stream: the protocol machine.
        director: decides and takes reports.
        metrics: counted into.
        sampler: says whether the response is read.
    """

    def __init__(self, stream: Stream, director: Director, metrics: Metrics, sampler: Sampler) -> None:
        self._stream, self._director, self._metrics, self._sampler = stream, director, metrics, sampler
        self._picked_s = self._handled_s = 0.0
        self._decision_id = self._left_id = ""
        self._watch: AnswerWatch | None = None
        self._wait: Wait[Any] | None = None

    @property
    def decided(self) -> bool:
        """Whether it carries a decision that has not ended."""
        return bool(self._decision_id)

    @property
    def left(self) -> bool:
        """Whether its stream ended with the decision, which may not have gone out."""
        return bool(self._left_id)

    def take(self, message: ProcessingRequest) -> Answer | Coroutine[Any, Any, Any]:
        """Take a message; what to send, and how the stream then ends, or what waits for that."""
        outputs = self._stream.receive(message)
        if not outputs or not isinstance(request := outputs[0], HttpRequest):  # which comes alone
            return self._act_after_pick(outputs) if self._decision_id else self._act(outputs)
        self._metrics.requests.seen(request, observing=self._observing)
        return self._go_on(self._director.direct(request, since_s=self._sampler.now_s()))

    def _go_on(self, steps: Steps, result: object = None) -> Answer | Coroutine[Any, Any, Any]:
        """Go on with a request's steps, until one of them waits or there is an answer."""
        try:
            wait = steps.send(result)
            while not self._may_wait(wait):
                wait.cancel()
                wait = steps.send(None)
        except StopIteration as ended:
            return self._act(self._answer(ended.value))
        self._wait = wait
        return self._after(wait, steps)

    def _may_wait(self, wait: Wait[Any]) -> bool:
        """Find room for what a wait holds; none where it wants the proxy's time and nobody waits there."""
        if wait.longest_s and self._observing:
            return False
        return self._stream.bodies.take_spare(wait.held_bytes)

    async def _after(self, wait: Wait[Any], steps: Steps) -> Answer | Coroutine[Any, Any, Any]:
        result = await wait.start()
        self._wait_over()
        return self._go_on(steps, result)

    def _wait_over(self) -> None:
        if self._wait is not None:
            self._stream.bodies.release(self._wait.held_bytes)
            self._wait = None

    @property
    def _observing(self) -> bool:
        """Whether nobody waits for answers."""
        modes = self._stream.modes
        return modes is not None and modes.observing

    @property
    def more_time(self) -> ProcessingResponse | None:
        """What tells the proxy to wait longer than it would, None where it need not."""
        wait_s = 0.0 if self._wait is None else self._wait.longest_s
        return more_time(wait_s + _UNASKED_WAIT_S) if wait_s > _UNASKED_WAIT_S else None

    def no_room(self) -> Answer:
        """Answer where what comes next finds no room."""
        return self._act(self._stream.no_room())

    def closed(self, *, cut: bool) -> None:
        """End with the gRPC stream; ``cut`` when it was reset."""
        if self._wait is not None:
            self._wait.cancel()
            self._wait_over()
        self._act(self._stream.closed(cut))
        if self._watch is not None:
            self._watch_over()
        if cut:
            self.unsent()

    def unsent(self) -> None:
        """Release a request whose decision did not go out."""
        if self._left_id:
            self._director.leases.unsent(self._left_id)

    def _act_after_pick(self, outputs: Sequence[Output | Event]) -> Answer:
        """Act on what came of the answer, and time it."""
        began_s = self._sampler.now_s()
        answer = self._act(outputs)
        self._handled_s += self._sampler.now_s() - began_s
        if not self._decision_id:
            name = "llm_d_epp_response_processing_duration_seconds"
            self._metrics.histogram(name).observe(self._handled_s)
        return answer

    def _act(self, outputs: Sequence[Output | Event]) -> Answer:
        replies: list[ProcessingResponse] = []
        marker: Finish | Abort | None = None
        for output in outputs:
            match output:
                case ResponseStarted():
                    if self._decision_id:
                        self._director.response_started(
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
                            self._director.outcomes.first_token(self._decision_id, Source.STREAM)
                        if response_id := self._watch.response_id():
                            self._director.outcomes.stored(self._decision_id, response_id)
                case Cause():
                    if self._decision_id:
                        self._end(output)
                case Finish() | Abort():
                    marker = output
                case ProcessingResponse():
                    replies.append(output)
        return replies, marker

    def _answer(self, answer: Destination | LocalReply) -> list[Output]:
        modes = self._stream.modes
        if isinstance(answer, LocalReply):
            return self._stream.refused(answer)
        self._decision_id = answer.decision_id
        self._picked_s = self._sampler.now_s()
        if modes is not None and modes.response is not BodyMode.NONE:
            self._handle_response(answer, modes)
        return self._stream.decided(answer)

    def _handle_response(self, pick: Destination, modes: Modes) -> None:
        """Choose what becomes of a decision's response, which the proxy shows."""
        how = self._sampler.choose(self._decision_id, duplex=modes.request is BodyMode.FULL_DUPLEX_STREAMED)
        if how is Observe.READ:
            if self._stream.bodies.take_spare(WATCH_BYTES, half=True):
                self._watch = AnswerWatch()
            else:
                how = Observe.CARRY
        pick.observe_response = how

    def _watch_over(self) -> None:
        """Watch the answer no longer; may be called twice."""
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
            self._director.leases.stream_ended(decision_id)
            return
        if cause is Cause.CUT_OFF and watch is not None and watch.has_last_event():
            cause = Cause.COMPLETED  # its client has all that it wanted
        if watch is not None and (watch.chunks or cause is Cause.COMPLETED):
            if watch.encoded:
                self._metrics.value("epp_compressed_answers_total").inc()
            known = self._director.scheduler.observed(
                decision_id,
                usage=watch.usage(),
                chunks=watch.chunks,
                response_bytes=watch.response_bytes,
                last_chunk_s=math.nan if math.isnan(watch.first_s) else watch.last_s,
                streamed=watch.streamed,
                failure=watch.failure(),
                model=watch.model(),
            )
            if not known:
                self._director.outcomes.count_late_report(decision_id)
        self._director.outcomes.stream_ended(decision_id, cause.value)


class ProcessCall(Handler):
    """One stream of the proxy's, which is one HTTP request.

    Args:
        call: on the wire.
        exchange: what it is about.
        metrics: counted into.
    """

    __slots__ = (
        "_began_s",
        "_call",
        "_ending",
        "_exchange",
        "_metrics",
        "_over",
        "_task",
        "_time_s",
        "_waiting",
    )

    def __init__(self, call: Call, exchange: Exchange, metrics: Metrics) -> None:
        self._call, self._exchange, self._metrics = call, exchange, metrics
        self._time_s = asyncio.get_running_loop().time
        self._began_s = self._time_s()
        self._waiting = _NONE_WAIT
        self._task: asyncio.Task[None] | None = None
        self._ending = self._over = False
        metrics.streams.value += 1.0

    def message(self, message: Message) -> None:
        """Answer it, or keep it until what is before it has been answered."""
        if self._over or (self._call.over and not self._exchange.decided):
            return  # given up in the same read: nobody waits for a decision, and `cancelled` follows
        if self._task is None and not self._waiting and not self._call.blocked:
            self._take(message)
        elif self._call.room.reserve(len(message) + _ITEM_BYTES):
            if not self._waiting:
                self._waiting = deque()
            self._waiting.append(bytes(message))
            self._call.hold()
        else:
            self.no_room()

    def ended(self) -> None:
        """The proxy has sent its last: the end, once all of it is answered."""
        self._ending = True
        self._go_on()

    def drained(self) -> None:
        """What waited for room has gone."""
        self._go_on()

    def no_room(self) -> None:
        """What comes finds no room: the request is refused where it can be, and the call ends."""
        if self._over:
            return
        if self._task is not None:
            self._task.cancel()
        self._act(self._exchange.no_room)

    def cancelled(self) -> None:
        """The proxy has given the call up, or has gone before the last answer went out."""
        if self._task is not None:
            self._task.cancel()
        if self._over:
            self._exchange.unsent()
        error = self._call.error
        self._end(Status.CANCELLED if error is None else error.status)

    def _go_on(self) -> None:
        """Answer what waits, as far as that goes."""
        while self._waiting and self._task is None and not self._call.blocked and not self._over:
            message = self._waiting.popleft()
            self._call.room.release(len(message) + _ITEM_BYTES)
            self._take(message)
        if self._over or self._task is not None or self._waiting:
            return
        if self._ending:
            self._finish(Status.OK)
        elif not self._call.blocked:
            self._call.release()

    def _take(self, message: Message) -> None:
        try:
            request = ProcessingRequest.FromString(message)  # type: ignore[arg-type]  # stubs know bytes alone
        except DecodeError:
            self._abort(Status.INTERNAL, "a message is no ProcessingRequest")
            return
        self._act(partial(self._exchange.take, request))

    def _act(self, act: Callable[[], Answer | Coroutine[Any, Any, Any]]) -> None:
        """Do something, and answer once there is an answer."""
        try:
            answer = act()
            if isinstance(answer, tuple):
                self._answer(answer)
            else:
                self._ask_for_time()
                self._task = asyncio.ensure_future(self._wait(answer))
                # Given up in the read that brought it, the task never begins and nobody waits for the answer.
                self._task.add_done_callback(lambda _: answer.close())
        except Exception as error:  # noqa: BLE001  # a fault of ours
            self._failed(error)

    def _ask_for_time(self) -> None:
        """Ask the proxy to wait, where it would not."""
        if (more := self._exchange.more_time) is not None:
            self._call.send(more.SerializeToString())

    async def _wait(self, waiting: Coroutine[Any, Any, Any]) -> None:
        """Answer once there is an answer, and then what has come meanwhile."""
        try:
            answer = await waiting
            while not isinstance(answer, tuple):
                self._ask_for_time()
                self._call.flush()
                answer = await answer
            self._task = None
            self._answer(answer)
        except Exception as error:  # noqa: BLE001  # a fault of ours
            self._task = None
            self._failed(error)
        self._go_on()
        self._call.flush()

    def _answer(self, answer: Answer) -> None:
        replies, marker = answer
        given_up = self._call.over  # by the proxy, in the same read: `cancelled` follows
        last = replies.pop() if replies and isinstance(marker, Finish) else None
        for reply in replies:
            self._call.send(reply.SerializeToString())
        if isinstance(marker, Finish):
            self._finish(Status.OK, last=None if last is None else last.SerializeToString())
        elif isinstance(marker, Abort):
            self._abort(Status[marker.status], marker.detail)
        elif self._call.over and not (given_up or self._over):
            self._unsent()

    def _abort(self, status: Status, words: str) -> None:
        log.warning("a stream was aborted: %s", words, extra=REPEATED)
        self._finish(status, words)

    def _failed(self, error: Exception) -> None:
        log.error("a stream failed", exc_info=error, extra=REPEATED)
        self._metrics.value("epp_faults_total", "stream").inc()
        self._finish(Status.INTERNAL, "internal error")

    def _finish(self, status: Status, words: str = "", *, last: bytes | None = None) -> None:
        if self._call.finish(status, words, last=last):
            self._end(status)
        else:
            self._unsent()

    def _unsent(self) -> None:
        """An answer was too long, or found no room, and the call has ended with that."""
        self._metrics.value("epp_faults_total", "stream").inc()
        self._end(Status.RESOURCE_EXHAUSTED)

    def _end(self, status: Status) -> None:
        if self._over:
            return
        self._over = True
        if self._waiting:
            self._call.room.release(sum(map(len, self._waiting)) + _ITEM_BYTES * len(self._waiting))
            self._waiting.clear()
        self._metrics.stream_ended(go_name(status.name), self._time_s() - self._began_s)
        try:
            self._exchange.closed(cut=status is not Status.OK)
        except Exception:
            log.exception("a stream's end failed", extra=REPEATED)
            self._metrics.value("epp_faults_total", "stream").inc()
        if not self._exchange.left:
            self._exchange = _NOTHING_LEFT
            self._call.owner = None


class _NothingLeft:
    """Stands for an exchange that is over: what it held is free at once, and not in a garbage collection."""

    def unsent(self) -> None:
        """No request was left with its decision."""


_NOTHING_LEFT: Any = _NothingLeft()


def go_name(status: str) -> str:
    """A status as dashboards of llm-d know it, which is what Go calls it."""
    return _GO_NAMES.get(status) or "".join(word.capitalize() for word in status.split("_"))


_GO_NAMES = {"OK": "OK", "CANCELLED": "Canceled"}
