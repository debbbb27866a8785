"""The response half of an exchange: lets it pass, changed only where the pick asks for it; tells what it was.

Owns how far the response has come; holds none of it. Knows nothing of the request.

| phase   | headers               | body                      | trailers            |
|---------|-----------------------|---------------------------|---------------------|
| WAITING | ResponseStarted, OPEN | ResponseData, reply, OPEN | reply, OVER         |
| OPEN    | violation             | ResponseData, reply, OPEN | reply, OVER         |
| OVER    | violation             | ignored                   | empty reply, once   |

End of stream in headers or body leads to OVER; `Stream` says COMPLETED there. Body before headers is allowed:
a proxy may be configured not to send response headers. A response that nobody reads (`read` False) gives no
ResponseData. Trailers may follow a body that told its end (lockstep
modes tell it when the buffer is whole); body after the end is a piece delivered twice, as in `request_side`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from epp.extproc import messages
from epp.extproc.messages import LB_NAMESPACE, header_values, metadata_values, served_endpoint, served_verdict
from epp.extproc.modes import BodyMode
from epp.extproc.types import ResponseData, ResponseStarted, ViolationError
from epp.pb.ext_proc_pb2 import ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.extproc.types import BodyRewriter
    from epp.pb.core_pb2 import Metadata
    from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders

#: Modes that show a body whole, so that it can be changed.
CHANGEABLE = frozenset({BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED})


class ResponsePhase(Enum):
    """How far the response has come."""

    WAITING = "waiting"
    OPEN = "open"
    OVER = "over"


class ResponseSide:
    """One response.

    Args:
        mode: how its body messages come; a proxy that shows none (NONE) sends none to answer.
        tell_served: say in a response header who served, for the conformance suite.

    Raises:
        ViolationError: the response body mode is not spoken.
    """

    def __init__(self, mode: BodyMode, *, tell_served: bool = False) -> None:
        if mode is BodyMode.GRPC:
            raise ViolationError(f"response_body_mode {mode.name} is not supported", "UNIMPLEMENTED")
        self._echoes, self._tell_served = mode is BodyMode.FULL_DUPLEX_STREAMED, tell_served
        #: Whether `ResponseData` is told; headers and the end always are.
        self.read = True
        #: From the response's headers to what changes its body; see `Pick.rewrite_response`.
        self.rewrite: Callable[[Mapping[str, str]], BodyRewriter | None] | None = None
        #: Response headers to set; see `Pick.response_headers`.
        self.add_headers: Mapping[str, str] = {}
        #: Of the pick; the proxy may have set its header on the response already.
        self.decision_id = ""
        self._rewriter: BodyRewriter | None = None
        self.phase = ResponsePhase.WAITING
        self._trailers_seen = False

    def on_headers(
        self, message: HttpHeaders, metadata: Metadata | None
    ) -> list[ProcessingResponse | ResponseStarted]:
        """Take the response headers, with the metadata that came along."""
        if self.phase is not ResponsePhase.WAITING:
            raise ViolationError(f"response_headers in phase {self.phase.value}")
        self.phase = ResponsePhase.OVER if message.end_of_stream else ResponsePhase.OPEN
        headers = header_values(message.headers)
        status = headers.get(":status", "")
        told = {} if metadata is None else metadata_values(metadata, LB_NAMESPACE)
        started = ResponseStarted(
            status=int(status) if status.isascii() and status.isdecimal() and len(status) == 3 else 0,
            headers=headers,
            served=served_endpoint(told),
        )
        remove = self._forged(headers)
        if self._tell_served:
            return [
                messages.response_headers({messages.SERVED_HEADER: served_verdict(told)}, remove),
                started,
            ]
        if self.rewrite is not None and not message.end_of_stream:
            self._rewriter = self.rewrite(headers)
        if self._rewriter is not None:
            remove.append("content-length")  # a body that changes has another length than its headers say
        if self.add_headers or remove:
            return [messages.response_headers(self.add_headers, remove), started]
        return [messages.EMPTY_RESPONSE_HEADERS, started]

    def _forged(self, headers: Mapping[str, str]) -> list[str]:
        """List the reserved headers that neither the picker nor the proxy has set."""
        return [
            name
            for name, value in headers.items()
            if name.startswith(messages.RESERVED_PREFIXES)
            and name not in self.add_headers
            and not (name == messages.DECISION_HEADER and value == self.decision_id)
        ]

    def on_body(self, message: HttpBody) -> list[ProcessingResponse | ResponseData]:
        """Take a piece of the response body."""
        if self.phase is ResponsePhase.OVER:
            return []
        self.phase = ResponsePhase.OVER if message.end_of_stream else ResponsePhase.OPEN
        changed = None if self._rewriter is None else self._rewriter.feed(message.body)
        outputs: list[ProcessingResponse | ResponseData] = [*self._body_replies(message, changed)]
        if self.read:
            outputs.append(ResponseData(message.body))  # the bytes go on before they are read
        return outputs

    def _body_replies(self, message: HttpBody, changed: bytes | None) -> list[ProcessingResponse]:
        if self._echoes:  # in full duplex only what the reply carries reaches the client
            data = message.body if changed is None else changed
            return messages.streamed_body("response_body", data, ends_stream=message.end_of_stream)
        if changed is None:
            return [messages.EMPTY_RESPONSE_BODY]
        reply = ProcessingResponse()
        mutation = reply.response_body.response.body_mutation
        if changed:
            mutation.body = changed
        else:
            mutation.clear_body = True
        return [reply]

    def on_trailers(self) -> list[ProcessingResponse]:
        """Take the response trailers."""
        if self._trailers_seen:
            raise ViolationError("response_trailers a second time")
        self._trailers_seen = True
        self.phase = ResponsePhase.OVER
        return [messages.EMPTY_RESPONSE_TRAILERS]
