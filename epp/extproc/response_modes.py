"""How response body messages are answered in each response body mode.

One function a mode, in `RESPONSE_MODES`; each takes the message and the bytes that go on instead of its
own, None to leave it as it is. Knows nothing of phases or of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from epp.extproc import mutate
from epp.extproc.modes import BodyMode
from epp.pb.ext_proc_pb2 import ProcessingResponse

if TYPE_CHECKING:
    from epp.pb.ext_proc_pb2 import HttpBody


def acknowledge(_body: HttpBody, changed: bytes | None) -> list[ProcessingResponse]:
    """One reply a message, empty where nothing changes: what every mode but full duplex asks for."""
    if changed is None:
        return [mutate.EMPTY_RESPONSE_BODY]
    reply = ProcessingResponse()
    mutation = reply.response_body.response.body_mutation
    if changed:
        mutation.body = changed
    else:
        mutation.clear_body = True
    return [reply]


def echo(body: HttpBody, changed: bytes | None) -> list[ProcessingResponse]:
    """All bytes back at once: in full duplex only what the reply carries reaches the client."""
    data = body.body if changed is None else changed
    return mutate.streamed_response_body(data, ends_stream=body.end_of_stream)


ResponseMode = Callable[["HttpBody", "bytes | None"], "list[ProcessingResponse]"]

#: NONE is here because a proxy that shows no bodies sends no body message to answer.
RESPONSE_MODES: Mapping[BodyMode, ResponseMode] = {
    BodyMode.NONE: acknowledge,
    BodyMode.STREAMED: acknowledge,
    BodyMode.BUFFERED: acknowledge,
    BodyMode.BUFFERED_PARTIAL: acknowledge,
    BodyMode.FULL_DUPLEX_STREAMED: echo,
}

#: Modes that show a body whole, so that it can be changed.
CHANGEABLE = frozenset({BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED})
