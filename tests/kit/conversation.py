"""A playbook for ext_proc streams: feed messages, say what must come out, read the difference when it does not.

    talk = Conversation()
    talk.send(request_headers(), expect=[])
    talk.send(request_body(b"{}", end=True), expect=[HttpRequest(...)])
    talk.pick(expect=["request_headers", ...])

Builders make messages as Envoy sends them; `check_legal` holds any list of outputs against the rules that
hold for every stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.json_format import MessageToDict

from epp.extproc.modes import BodyMode
from epp.extproc.stream import Output, Stream
from epp.extproc.types import (
    Abort,
    Cause,
    Destination,
    Finish,
    HttpRequest,
    LocalReply,
    ResponseData,
    ResponseStarted,
)
from epp.pb.ext_proc_pb2 import HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProcessingResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: What one output must be: an output itself, the name of a reply's part, or a predicate on the output.
Expected: TypeAlias = "Output | str | Callable[[Output], bool]"

DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
PICK = Destination("10.0.0.1:8000", "d-1")
REFUSAL = LocalReply(503, b'{"error":{}}', details="epp no endpoint")
POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}


def with_modes(
    message: ProcessingRequest, request: BodyMode, response: BodyMode = BodyMode.NONE
) -> ProcessingRequest:
    """Declare body modes on a first message."""
    message.protocol_config.request_body_mode = int(request)  # type: ignore[assignment]  # open enum
    message.protocol_config.response_body_mode = int(response)  # type: ignore[assignment]  # open enum
    return message


def with_metadata(message: ProcessingRequest, namespace: str, values: dict[str, Any]) -> ProcessingRequest:
    """Attach filter metadata."""
    message.metadata_context.filter_metadata[namespace].update(values)
    return message


def _headers(values: Mapping[str, str], *, end: bool) -> HttpHeaders:
    message = HttpHeaders(end_of_stream=end)
    message.headers.SetInParent()
    for name, value in values.items():
        message.headers.headers.add(key=name, raw_value=value.encode())
    return message


def request_headers(values: Mapping[str, str] = POST, *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(request_headers=_headers(values, end=end))


def request_body(data: bytes = b"", *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=end))


def request_trailers() -> ProcessingRequest:
    return ProcessingRequest(request_trailers=HttpTrailers())


def response_headers(
    status: str = "200", *, end: bool = False, headers: Mapping[str, str] | None = None
) -> ProcessingRequest:
    return ProcessingRequest(response_headers=_headers({":status": status, **(headers or {})}, end=end))


def response_body(data: bytes = b"", *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=data, end_of_stream=end))


def response_trailers() -> ProcessingRequest:
    return ProcessingRequest(response_trailers=HttpTrailers())


def part_of(reply: ProcessingResponse) -> str:
    """The name of a reply's part."""
    return reply.WhichOneof("response") or "nothing"


def streamed(replies: Iterable[Output], part: str) -> tuple[bytes, list[bool]]:
    """The joined bytes and the end-of-stream flags of streamed body replies."""
    data, ends = [], []
    for reply in replies:
        if isinstance(reply, ProcessingResponse) and part_of(reply) == part:
            piece = getattr(reply, part).response.body_mutation.streamed_response
            data.append(piece.body)
            ends.append(piece.end_of_stream)
    return b"".join(data), ends


def header_changes(reply: ProcessingResponse) -> dict[str, bytes]:
    """The headers that a reply sets; all of them must overwrite."""
    part = getattr(reply, part_of(reply))
    mutation = part.headers if part_of(reply) == "immediate_response" else part.response.header_mutation
    for option in mutation.set_headers:
        assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD, option
        assert not option.header.value, "value and raw_value exclude each other"
    return {option.header.key: option.header.raw_value for option in mutation.set_headers}


def metadata_of(reply: ProcessingResponse) -> dict[str, Any]:
    """The dynamic metadata of a reply as plain values."""
    values: dict[str, Any] = MessageToDict(reply.dynamic_metadata)
    return values


def matches(output: Output, expected: Expected) -> bool:
    """Whether an output is what was expected."""
    if isinstance(expected, str):
        return isinstance(output, ProcessingResponse) and part_of(output) == expected
    return expected(output) if callable(expected) else output == expected


def describe(output: object) -> str:
    """One line for an output, in the words of the playbook."""
    if isinstance(output, ProcessingResponse):
        size = output.ByteSize()
        text = " ".join(str(output).split()) if size < 1000 else f"{size} bytes"
        return f"reply {part_of(output)}: {text[:200]}"
    if isinstance(output, ResponseData) and len(output.data) > 100:
        return f"ResponseData({len(output.data)} bytes)"
    return f"reply {output}" if isinstance(output, str) else repr(output)[:200]


@dataclass
class Conversation:
    """A stream and everything that was said on it.

    Attributes:
        stream: the machine under test.
        outputs: all outputs so far.
        log: the whole conversation, one line each, printed on failure.
    """

    stream: Stream = field(default_factory=Stream)
    outputs: list[Output] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def send(self, message: ProcessingRequest, expect: Sequence[Expected] | None = None) -> list[Output]:
        """Feed a message."""
        part = message.WhichOneof("request")
        return self._heard(f"{part}", self.stream.receive(message), expect)

    def pick(self, pick: Destination = PICK, expect: Sequence[Expected] | None = None) -> list[Output]:
        """Answer with a destination."""
        return self._heard(f"picked {pick.destination}", self.stream.decided(pick), expect)

    def refuse(self, refusal: LocalReply = REFUSAL, expect: Sequence[Expected] | None = None) -> list[Output]:
        """Answer the client."""
        return self._heard(f"refused {refusal.status}", self.stream.refused(refusal), expect)

    def close(self, *, cut: bool = False, expect: Sequence[Expected] | None = None) -> list[Output]:
        """End the gRPC stream."""
        return self._heard(f"closed cut={cut}", list(self.stream.closed(cut)), expect)

    def asked(self) -> HttpRequest:
        """The one pick that was asked for."""
        asked = [output for output in self.outputs if isinstance(output, HttpRequest)]
        assert len(asked) == 1, self._story(f"{len(asked)} picks were asked for")
        return asked[0]

    def _heard(self, line: str, outputs: list[Output], expect: Sequence[Expected] | None) -> list[Output]:
        self.log.append(f"> {line}")
        self.log += [f"    < {describe(output)}" for output in outputs]
        self.outputs += outputs
        check_legal(self.outputs)
        if expect is not None:
            same = len(outputs) == len(expect) and all(map(matches, outputs, expect))
            wanted = "".join(f"\n    < {describe(item)}" for item in expect) or " nothing"
            assert same, self._story(f"expected:{wanted}")
        return outputs

    def _story(self, problem: str) -> str:
        return "\n".join(["the conversation:", *self.log, problem])


def asking(
    request: BodyMode = DUPLEX, response: BodyMode = BodyMode.NONE, stream: Stream | None = None
) -> Conversation:
    """A conversation whose request is there and waits for its pick."""
    talk = Conversation(stream or Stream())
    talk.send(with_modes(request_headers(), request, response))
    talk.send(request_body(b"{}", end=True))
    return talk


def reply_of(outputs: Iterable[Output], part: str) -> ProcessingResponse:
    """The one reply to a part."""
    found = [o for o in outputs if isinstance(o, ProcessingResponse) and part_of(o) == part]
    assert len(found) == 1, f"{len(found)} replies to {part}"
    return found[0]


#: The order in which replies to one half of an exchange may come.
_ORDER = {"headers": 0, "body": 1, "trailers": 2}


def check_legal(outputs: Sequence[Output]) -> None:
    """Hold all outputs of a stream against what is true of every stream."""
    ends = [index for index, output in enumerate(outputs) if isinstance(output, Cause)]
    assert len(ends) <= 1, f"ended {len(ends)} times"
    assert sum(isinstance(output, HttpRequest) for output in outputs) <= 1, "asked for two picks"
    for index, output in enumerate(outputs):
        if isinstance(output, Finish | Abort):
            assert index == len(outputs) - 1, f"something after {output}"
            assert ends, "a marker without an end"
    for index in ends:
        late = [
            o for o in outputs[index + 1 :] if isinstance(o, HttpRequest | ResponseStarted | ResponseData)
        ]
        assert not late, f"events after the end: {late}"
    for half in ("request", "response"):
        replies = [o for o in outputs if isinstance(o, ProcessingResponse) and part_of(o).startswith(half)]
        ranks = [_ORDER[part_of(reply).split("_")[1]] for reply in replies]
        assert ranks == sorted(ranks), f"{half} replies out of order: {ranks}"
        assert ranks.count(0) <= 1, f"{half} headers answered twice"
        assert ranks.count(2) <= 1, f"{half} trailers answered twice"
        data = [
            getattr(r, part_of(r)).response.body_mutation.streamed_response
            for r in replies
            if "body" in part_of(r)
        ]
        assert all(len(piece.body) <= 62_000 for piece in data), "a piece is too long"
        assert not any(piece.end_of_stream for piece in data[:-1]), "a piece after the end of the stream"
    parts = [part_of(output) for output in outputs if isinstance(output, ProcessingResponse)]
    if "immediate_response" in parts:
        assert parts.index("immediate_response") == len(parts) - 1, "a reply after the immediate response"
