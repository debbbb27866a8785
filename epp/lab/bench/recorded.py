"""ext_proc conversations as a real Envoy held them, in every mode, to be held again with any picker.

Owns the messages: what Envoy 1.40 sent (`conversations.json`, bodies taken out), with a body of one's own put
in and, for modes that differ only in what Envoy declares, another declaration.
"""

from __future__ import annotations

import base64
import json
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.pb.processing_mode_pb2 import ProcessingMode

#: Bytes of one piece of a request body that comes as it arrives.
_PIECE_BYTES = 64 * 1024
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": " word"}}], "usage": null}\n\n'
LAST = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 18000, "completion_tokens": 128,'
    b' "total_tokens": 18128, "prompt_tokens_details": {"cached_tokens": 16200}}}\n\ndata: [DONE]\n\n'
)


class Mode(StrEnum):
    """How Envoy shows a request.

    ``constant``: the body in one message, nothing of the response; Envoy reports it afterwards.
    ``headers``: a request without a body, declared as in ``constant``.
    ``streamed``: the body piece by piece, picked on its headers; nothing of the response.
    ``duplex``: full duplex both ways, as gateways impose it.
    """

    CONSTANT = "constant"
    HEADERS = "headers"
    STREAMED = "streamed"
    DUPLEX = "duplex"


class Step(NamedTuple):
    """Messages that are sent together, and what ends the wait after them.

    Attributes:
        messages: as they go on the wire.
        replies: answers to wait for; None for "until the body has come back to its end".
        decides: the answer to this step is the pick.
    """

    messages: tuple[bytes, ...]
    replies: int | None
    decides: bool = False


def conversation(mode: Mode, body: bytes, chunks: int = 128) -> list[Step]:
    """Make one request's conversation.

    Args:
        mode: how it is shown.
        body: the request's body.
        chunks: pieces of the streamed answer, where it is shown.
    """
    if mode is Mode.HEADERS:
        return [Step((_message("buffered", "get", end=True),), 1, decides=True)]
    if mode is Mode.STREAMED:
        head = _message("buffered", "request_headers", declared=ProcessingMode.STREAMED)
        return [Step((head,), 1, decides=True)]
    if mode is Mode.CONSTANT:
        return [
            Step((_message("buffered", "request_headers"),), 1),
            Step((_message("buffered", "request_body", data=body, end=True),), 1, decides=True),
        ]
    pieces = [body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)]
    asked = (
        _message("duplex", "request_headers"),
        *(_message("duplex", "request_body", data=piece) for piece in pieces),
        _message("duplex", "request_body", end=True),
    )
    answered = (
        _message("duplex", "response_headers"),
        *(_message("duplex", "response_body", data=TOKEN),) * max(chunks - 1, 0),
        _message("duplex", "response_body", data=LAST),
        _message("duplex", "response_body", end=True),
    )
    return [Step(asked, None, decides=True), Step(answered, None)]


@cache
def _template(proxy: str, part: str) -> bytes:
    text = files("epp.lab.bench").joinpath("conversations.json").read_text(encoding="utf-8")
    return base64.b64decode(json.loads(text)[proxy][part])


def _message(
    proxy: str,
    part: str,
    *,
    data: bytes = b"",
    end: bool = False,
    declared: ProcessingMode.BodySendMode | None = None,
) -> bytes:
    message = ProcessingRequest.FromString(_template(proxy, part))
    if part == "get":
        message.request_headers.end_of_stream = end
    elif part in ("request_body", "response_body"):
        shown = getattr(message, part)
        shown.body, shown.end_of_stream = data, end
    if declared is not None:
        message.protocol_config.request_body_mode = declared
    return message.SerializeToString()
