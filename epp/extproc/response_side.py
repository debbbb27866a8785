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

from epp.extproc import mutate
from epp.extproc.headers import (
    LB_NAMESPACE,
    header_values,
    metadata_values,
    served_endpoint,
    served_verdict,
)
from epp.extproc.types import ResponseData, ResponseStarted
from epp.extproc.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.extproc.response_modes import ResponseMode
    from epp.extproc.types import BodyRewriter
    from epp.pb.core_pb2 import Metadata
    from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingResponse


class ResponsePhase(Enum):
    """How far the response has come."""

    WAITING = "waiting"
    OPEN = "open"
    OVER = "over"


class ResponseSide:
    """One response.

    Args:
        mode: how its body messages are answered.
        tell_served: say in a response header who served, for the conformance suite.
    """

    def __init__(self, mode: ResponseMode, *, tell_served: bool = False) -> None:
        self._mode, self._tell_served = mode, tell_served
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
        """Response headers, with the metadata that came along."""
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
            return [mutate.response_headers({mutate.SERVED_HEADER: served_verdict(told)}, remove), started]
        if self.rewrite is not None and not message.end_of_stream:
            self._rewriter = self.rewrite(headers)
        if self._rewriter is not None:
            remove.append("content-length")  # a body that changes has another length than its headers say
        if self.add_headers or remove:
            return [mutate.response_headers(self.add_headers, remove), started]
        return [mutate.EMPTY_RESPONSE_HEADERS, started]

    def _forged(self, headers: Mapping[str, str]) -> list[str]:
        """List the reserved headers that neither the picker nor the proxy has set."""
        return [
            name
            for name, value in headers.items()
            if name.startswith(mutate.RESERVED_PREFIXES)
            and name not in self.add_headers
            and not (name == mutate.DECISION_HEADER and value == self.decision_id)
        ]

    def on_body(self, message: HttpBody) -> list[ProcessingResponse | ResponseData]:
        """A piece of the response body."""
        if self.phase is ResponsePhase.OVER:
            return []
        self.phase = ResponsePhase.OVER if message.end_of_stream else ResponsePhase.OPEN
        changed = None if self._rewriter is None else self._rewriter.feed(message.body)
        if not self.read:
            return [*self._mode(message, changed)]
        # The bytes go on before anyone looks at them.
        return [*self._mode(message, changed), ResponseData(message.body)]

    def on_trailers(self) -> list[ProcessingResponse]:
        """Response trailers."""
        if self._trailers_seen:
            raise ViolationError("response_trailers a second time")
        self._trailers_seen = True
        self.phase = ResponsePhase.OVER
        return [mutate.EMPTY_RESPONSE_TRAILERS]
