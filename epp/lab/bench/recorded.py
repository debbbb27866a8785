"""ext_proc conversations as a real Envoy held them, in every mode, to be held again with any picker.

Owns the messages: what Envoy 1.40 sent (`conversations.json`, bodies taken out), with a body of one's own
put in and, for the modes that differ only in what Envoy declares, another declaration. A conversation is
what is sent and which answers are waited for in between; what the answers say is read as little as it
takes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.pb.processing_mode_pb2 import ProcessingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes of one piece of a request body that comes as it arrives.
_PIECE_BYTES = 64 * 1024
_TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": " word"}}], "usage": null}\n\n'
_LAST = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 18000, "completion_tokens": 128,'
    b' "total_tokens": 18128, "prompt_tokens_details": {"cached_tokens": 16200}}}\n\ndata: [DONE]\n\n'
)


class Mode(StrEnum):
    """How Envoy shows a request.

    ``constant``: the body in one message, nothing of the response; Envoy reports it afterwards.
    ``headers``: a request without a body, declared as in ``constant``.
    ``streamed``: the body piece by piece, picked on its headers; nothing of the response.
    ``response``: as ``constant``, and the response's pieces one by one, each waited for.
    ``duplex``: full duplex both ways, as gateways impose it.
    """

    CONSTANT = "constant"
    HEADERS = "headers"
    STREAMED = "streamed"
    RESPONSE = "response"
    DUPLEX = "duplex"


@dataclass(frozen=True, slots=True)
class Step:
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
    """One request's conversation.

    Args:
        mode: how it is shown.
        body: the request's body.
        chunks: pieces of the streamed answer, where it is shown.
    """
    if mode is Mode.HEADERS:
        return [Step((_message("buffered", "get", end=True),), 1, decides=True)]
    if mode is Mode.DUPLEX:
        pieces = [body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)]
        ask = (
            _message("duplex", "request_headers"),
            *(_message("duplex", "request_body", data=piece) for piece in pieces),
            _message("duplex", "request_body", end=True),
        )
        return [Step(ask, None, decides=True), *_response(chunks, lockstep=False)]
    if mode is Mode.STREAMED:
        head = _message("buffered", "request_headers", request=ProcessingMode.STREAMED)
        return [Step((head,), 1, decides=True)]
    shown = ProcessingMode.STREAMED if mode is Mode.RESPONSE else None
    steps = [
        Step((_message("buffered", "request_headers", response=shown),), 1),
        Step((_message("buffered", "request_body", data=body, end=True),), 1, decides=True),
    ]
    return steps + (_response(chunks, lockstep=True) if mode is Mode.RESPONSE else [])


def _response(chunks: int, *, lockstep: bool) -> list[Step]:
    head = _message("duplex", "response_headers")
    token, last = (
        _message("duplex", "response_body", data=_TOKEN),
        _message("duplex", "response_body", data=_LAST),
    )
    end = _message("duplex", "response_body", end=True)
    messages = (token,) * max(chunks - 1, 0) + (last, end)
    if lockstep:
        return [Step((head,), 1), *(Step((message,), 1) for message in messages)]
    return [Step((head, *messages), None)]


@cache
def _recorded() -> dict[str, dict[str, str]]:
    text = files("epp.lab.bench").joinpath("conversations.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


@cache
def _template(proxy: str, part: str) -> bytes:
    return base64.b64decode(_recorded()[proxy][part])


def _message(
    proxy: str,
    part: str,
    *,
    data: bytes = b"",
    end: bool = False,
    request: ProcessingMode.BodySendMode | None = None,
    response: ProcessingMode.BodySendMode | None = None,
) -> bytes:
    message = ProcessingRequest.FromString(_template(proxy, part))
    shown = message.WhichOneof("request")
    if shown == "request_headers" and end:
        message.request_headers.end_of_stream = True
    elif shown == "request_body":
        message.request_body.body, message.request_body.end_of_stream = data, end
    elif shown == "response_body":
        message.response_body.body, message.response_body.end_of_stream = data, end
    if request is not None:
        message.protocol_config.request_body_mode = request
    if response is not None:
        message.protocol_config.response_body_mode = response
    return message.SerializeToString()


def modes(names: str) -> Sequence[Mode]:
    """Modes by their names, joined by commas.

    Raises:
        ValueError: one is none.
    """
    return [Mode(name) for name in names.split(",")]
