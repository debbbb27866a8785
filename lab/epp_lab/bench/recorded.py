"""What is sent to measure with: chat bodies, ext_proc conversations as an Envoy held them, and its reports.

Bodies have what real text has: line ends and quotes to be unescaped, no two conversations alike beyond their
system prompt. They are a pure function of their arguments, so every run and every tree measures the same
bytes. Of conversations the messages are what Envoy 1.40 sent (`conversations.json`, bodies taken out), with a
body of one's own put in and, for modes that differ only in what Envoy declares, another declaration.
"""

from __future__ import annotations

import base64
import json
import random
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from epp.pb.access_log_pb2 import StreamAccessLogsMessage
from epp.pb.ext_proc_pb2 import ProcessingRequest
from epp.pb.processing_mode_pb2 import ProcessingMode

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A token is estimated as four bytes of text.
BYTES_PER_TOKEN = 4
#: Share of a prompt that an earlier turn has put into a cache already.
KNOWN = 0.9
MODEL = "bench-model"
_SYSTEM_BYTES, _MESSAGE_BYTES, _LONG_BYTES = 2048, 3000, 4_000_000
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on",
    "not", "he", "his", "but", "at", "are", "this", '"said"', "do\n",
)  # fmt: skip


def bodies(tokens: int, seed: int) -> tuple[bytes, bytes]:
    """Make the bodies of one conversation: the turn before, `KNOWN` of the whole, and the whole.

    Args:
        tokens: length of the whole; a body is about four times as many bytes.
        seed: which conversation.
    """
    size = tokens * BYTES_PER_TOKEN
    return _body(size, int(size * KNOWN), seed), _body(size, size, seed)


def _body(whole: int, size: int, seed: int) -> bytes:
    messages = []
    if whole >= 2 * _SYSTEM_BYTES:
        messages.append({"role": "system", "content": _text(_SYSTEM_BYTES, 0)})
    used, number = len(messages) * _SYSTEM_BYTES, 0
    while used < size:
        length = min(_MESSAGE_BYTES, whole - used)
        text = _text(length, seed * 100_003 + number + 1)[: max(size - used, 1)]
        messages.append({"role": "assistant" if number % 2 else "user", "content": text})
        used, number = used + length, number + 1
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 256}
    return json.dumps(body).encode()


def _text(size: int, seed: int) -> str:
    """Cut a stretch out of one long text: no two seeds begin at one place, but for one in a million."""
    whole = _long_text()
    at = (seed * 2_654_435_761) % (len(whole) - size)
    return whole[at : at + size]


@cache
def _long_text() -> str:
    chance = random.Random(7)  # noqa: S311  # the same text for everyone
    return " ".join(chance.choices(_WORDS, k=_LONG_BYTES // 4))


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
    ``streamed``: the body piece by piece, decided by its headers; nothing of the response.
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
        decides: the answer to this step is the decision.
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
    text = files("epp_lab.bench").joinpath("conversations.json").read_text(encoding="utf-8")
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


_STARTED_S, _DURATION_NS = 1_767_323_045, 912_000_000
_USAGE = (
    '{"prompt_tokens": 18000, "completion_tokens": 128, "total_tokens": 18128,'
    ' "prompt_tokens_details": {"cached_tokens": 16200}}'
)


def log_message(decisions: Iterable[tuple[str, str]]) -> bytes:
    """Make a message of the access log: an entry for each decision id and endpoint."""
    message = StreamAccessLogsMessage()
    for decision_id, endpoint in decisions:
        entry = message.http_logs.log_entry.add()
        common = entry.common_properties
        common.start_time.seconds, common.duration.nanos = _STARTED_S, _DURATION_NS
        common.time_to_last_rx_byte.nanos = 900_000
        common.time_to_first_upstream_tx_byte.nanos = 2_100_000
        common.time_to_first_upstream_rx_byte.nanos = 180_000_000
        common.upstream_request_attempt_count = 1
        host, _, port = endpoint.rpartition(":")
        socket = common.upstream_remote_address.socket_address
        socket.address, socket.port_value = host, int(port)
        fields = common.metadata.filter_metadata
        fields["envoy.lb"].fields["x-gateway-destination-endpoint"].string_value = endpoint
        fields["epp"].fields["decision_id"].string_value = decision_id
        seen = fields["epp.observe"].fields
        seen["first_us"].number_value = (_STARTED_S + 0.2) * 1e6
        seen["chunks"].number_value = 130
        seen["streamed"].bool_value = True
        seen["usage"].string_value = _USAGE
        common.custom_tags["connect_us"] = "150"
        common.custom_tags["fresh_us"] = "-"
        entry.request.request_body_bytes = 73_000
        entry.response.response_code.value = 200
        entry.response.response_body_bytes = 24_000
        entry.response.response_code_details = "via_upstream"
    return message.SerializeToString()


def first_token_call(decision_id: str) -> bytes:
    """Make the head of the call as Envoy sends it; it has no body."""
    return (
        f"POST /first-token/{decision_id} HTTP/1.1\r\nhost: picker\r\nx-envoy-internal: true\r\n"
        "x-forwarded-for: 127.0.0.1\r\nx-envoy-expected-rq-timeout-ms: 1000\r\ncontent-length: 0\r\n\r\n"
    ).encode()
