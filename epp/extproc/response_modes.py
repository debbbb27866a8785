"""How response body messages are answered in each response body mode.

One function a mode, in `RESPONSE_MODES`; none changes a byte. Knows nothing of phases or of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from epp.extproc import mutate
from epp.extproc.modes import BodyMode

if TYPE_CHECKING:
    from epp.pb.ext_proc_pb2 import HttpBody, ProcessingResponse


def acknowledge(_body: HttpBody) -> list[ProcessingResponse]:
    """One empty reply a message: what every mode but full duplex asks for."""
    return [mutate.EMPTY_RESPONSE_BODY]


def echo(body: HttpBody) -> list[ProcessingResponse]:
    """The same bytes back at once: in full duplex only what the reply carries reaches the client."""
    return mutate.streamed_response_body(body.body, ends_stream=body.end_of_stream)


ResponseMode = Callable[["HttpBody"], "list[ProcessingResponse]"]

#: NONE is here because a proxy that shows no bodies sends no body message to answer.
RESPONSE_MODES: Mapping[BodyMode, ResponseMode] = {
    BodyMode.NONE: acknowledge,
    BodyMode.STREAMED: acknowledge,
    BodyMode.BUFFERED: acknowledge,
    BodyMode.BUFFERED_PARTIAL: acknowledge,
    BodyMode.FULL_DUPLEX_STREAMED: echo,
}
