"""The engine's own token counts, found in an answer that arrives in pieces of any size.

Owns the search for ``usage`` and ``meta_info`` objects and their meaning in the APIs that engines speak;
knows no transport and no framing. An event stream and a whole JSON body are read by the same rule:
``"usage"`` or ``"meta_info"`` followed by an object. In generated text quotes are escaped, so that sequence
of bytes is never part of an answer's words.

Rules: what is absent or of a wrong type is unknown (None), never 0; nothing that an engine sends raises; the
result does not depend on how the bytes were cut.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from epp.apis.failure import FAILURE_BYTES, AnswerFailure, failure_in

if TYPE_CHECKING:
    from epp.apis.types import Headers


MAX_OBJECT_BYTES = 4096
"""Longest ``usage`` object that is read, with its name. Engines send 60 to 400 bytes."""
MAX_BATCH = 1024
"""Prompts of one batch whose counts are kept apart; nothing is known of what comes after them."""

_MAX_COUNT = 1 << 53
_M = ord("m")
_FLAT = rb'(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+'
#: One of the two names and its object, whose objects hold no others.
_FOUND = re.compile(
    rb'"(?:usage|meta_info)"\s*+:\s*+(\{' + _FLAT + rb"(?:\{" + _FLAT + rb"\}" + _FLAT + rb")*+\})", re.DOTALL
)


class Usage(Struct, frozen=True):
    """What the engine says a request cost; None is unknown, never zero; counts below 0 are kept as sent.

    Attributes:
        prompt_tokens: all tokens of the prompt, cached or not.
        completion_tokens: tokens of the answer.
        cached_tokens: those of the prompt that the KV cache already held. Engines tell it only when started
            so (vLLM ``--enable-prompt-tokens-details``, SGLang ``--enable-cache-report``), and both leave it
            out when it is 0, which `epp.schedule.feedback.with_cached` minds.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


NO_USAGE = Usage()


def usage_from(fields: object) -> Usage:
    """Return the counts in a decoded ``usage`` object of any of the APIs.

    OpenAI chat and completions: ``prompt_tokens``, ``completion_tokens``,
    ``prompt_tokens_details.cached_tokens``. OpenAI responses: ``input_tokens``, ``output_tokens``,
    ``input_tokens_details.cached_tokens``. Anthropic messages: ``input_tokens`` without what the cache
    served or took, ``cache_read_input_tokens``, ``cache_creation_input_tokens``, ``output_tokens``. SGLang's
    ``meta_info``: ``prompt_tokens``, ``completion_tokens``, ``cached_tokens``. Rankings may tell only
    ``total_tokens``, all of them the prompt's.
    """
    if not isinstance(fields, dict):
        return NO_USAGE
    apart = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    whole = (
        None if _count(fields, "input_tokens") is None else sum(_count(fields, name) or 0 for name in apart)
    )
    prompt = _first(_count(fields, "prompt_tokens"), whole)
    completion = _first(_count(fields, "completion_tokens"), _count(fields, "output_tokens"))
    if prompt is None and completion is None:
        prompt = _count(fields, "total_tokens")
    cached = _first(
        _count(fields.get("prompt_tokens_details"), "cached_tokens"),
        _count(fields.get("input_tokens_details"), "cached_tokens"),
        _count(fields, "cache_read_input_tokens"),
        _count(fields, "cached_tokens"),
    )
    return Usage(prompt, completion, cached)


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _count(fields: object, name: str) -> int | None:
    value = fields.get(name) if isinstance(fields, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < _MAX_COUNT else None


class UsageReader:
    """Reads an answer piece by piece; a later object's counts replace an earlier one's, each for itself.

    Anthropic's stream counts the prompt at its start and the answer at its end, and either may repeat the
    other's counts. The prompts of SGLang's batches are kept apart by ``meta_info.id`` and added up. In a line
    with several ``usage`` objects the last that has counts is the answer's own: those before it are in what a
    model or a client wrote (a tool's input, a tool's description).
    """

    def __init__(self) -> None:
        self._pending, self._line_over = b"", False
        self._fields: dict[str, object] = {}
        self._line: dict[str, object] = {}
        self._batch: dict[str, dict[str, object]] = {}

    def feed(self, data: bytes | bytearray) -> None:
        """Read the next piece."""
        data = self._pending + data
        end = 0
        for found in _FOUND.finditer(data):
            adjacent = 0 < end == found.start()  # as in access logs
            self._line_over |= adjacent or data.find(b"\n", end, found.start()) >= 0
            end = found.end()
            if end - found.start() <= MAX_OBJECT_BYTES:
                self._take(found[1], meta=data[found.start() + 1] == _M)
        self._line_over |= data.find(b"\n", end) >= 0
        self._pending = data[max(end, len(data) - MAX_OBJECT_BYTES) :]

    def _take(self, text: bytes, *, meta: bool) -> None:
        try:
            fields = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError):
            return
        name = fields.get("id") if meta else None
        name = name if isinstance(name, str) else ""
        if usage_from(fields) == NO_USAGE:
            return
        fields = {key: value for key, value in fields.items() if value is not None}
        if not meta:
            if self._line_over:
                self._fields |= self._line
            self._line, self._line_over = fields, False
        elif name in self._batch or len(self._batch) < MAX_BATCH:
            self._batch[name] = fields

    @property
    def usage(self) -> Usage:
        """Return what is known so far."""
        if not self._batch:
            return usage_from(self._fields | self._line)
        each = [usage_from(fields) for fields in self._batch.values()]
        sums = []
        for counts in zip(*map(msgspec.structs.astuple, each), strict=True):
            known = [count for count in counts if count is not None]
            sums.append(sum(known) if known else None)
        return Usage(*sums)


_CLIENT_ERROR = 400

HEAD_BYTES = 4096
"""An answer's first event, with room: engines send 300 to 700 bytes."""

TAIL_BYTES = 4 * MAX_OBJECT_BYTES
"""The longest usage object, the choices that some engines put into the same event, and the end mark."""


WATCH_BYTES = 64 * 1024
"""Most that a watch keeps; a piece that is being fed comes on top."""

#: Comments and line ends, which are no token.
_COMMENTS = re.compile(rb"(?:[\r\n]|(?:(?<=\n)|\A):[^\n]*+)*+")
#: The event that ends a stream: OpenAI's mark, the last of Anthropic's messages, those of OpenAI's responses.
_LAST_EVENT = re.compile(
    rb"(?:^|\n)data: ?\[DONE\]"
    rb'|"type"[ \t]*:[ \t]*"(?:message_stop|response\.(?:completed|incomplete|failed))"'
)
#: Under which an engine stores a response (OpenAI responses): in the first bytes of the answer.
_RESPONSE_ID, _ID_BYTES = re.compile(rb'"id"\s*+:\s*+"(resp_[\w-]++)"', re.ASCII), 1024
_EVENT_END = re.compile(rb"\r?\n\r?\n\Z")
#: Between the two ends of an answer: nothing that begins in the one goes on in the other after so many bytes.
_GAP = b"\n" * MAX_OBJECT_BYTES
#: Cutting now and then spares every piece a move of what is kept.
_MOST_KEPT = HEAD_BYTES + MAX_OBJECT_BYTES + 2 * TAIL_BYTES


class AnswerWatch:
    """Watches one answer as it passes by; knows no clock, and keeps the few bytes that can hold ``usage``.

    Engines tell the usage of an event stream at its end, and one of their APIs (Anthropic messages) a part of
    it in the first event. So an event in the middle is appended and searched by nobody: the search is made
    once, at the end, in the first `HEAD_BYTES` and the last `TAIL_BYTES` at least, where split events are
    whole again. What is no event stream comes in few and large pieces, and is searched as it comes.

    Attributes:
        chunks: pieces so far that were not empty.
        response_bytes: their bytes.
        first_s: when the first piece of a good answer came, NaN before; comments of an event stream, with
            which servers keep a connection alive, are none.
        last_s: when the last piece came.
        encoded: the answer is compressed, so that its usage cannot be read.
        streamed: it is an event stream; None before its headers came.
    """

    def __init__(self) -> None:
        self.chunks = self.response_bytes = 0
        self.first_s = self.last_s = math.nan
        self.encoded = False
        self.streamed: bool | None = None
        self._good, self._status = True, 200
        self._body = b""
        self._head: bytes | None = b""  # None once an id was found, or will not be
        self._reader: UsageReader | None = UsageReader()
        #: Beginning and end of an event stream.
        self._kept = bytearray()

    def started(self, status: int, headers: Headers) -> None:
        """Take the response headers; an answer without them counts as a good one."""
        self._good, self._status = status < _CLIENT_ERROR, status
        self.streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        if self.streamed:
            self._reader = None
        self.encoded = headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")

    def feed(self, data: bytes, now_s: float) -> bool:
        """Take the next piece; return whether it is the first of the answer."""
        size = len(data)
        if not size:
            return False
        self.chunks += 1
        self.response_bytes += size
        self.last_s = now_s
        if self._head is not None:
            self._head = (self._head + data[:_ID_BYTES])[:_ID_BYTES]
        if self._reader is not None:
            self._reader.feed(data)
            if len(self._body) < FAILURE_BYTES:
                self._body = (self._body + data[:FAILURE_BYTES])[:FAILURE_BYTES]
        else:
            self._kept += data
            if len(self._kept) > _MOST_KEPT:
                self._kept[HEAD_BYTES:-TAIL_BYTES] = _GAP
        if self._good and self.first_s != self.first_s and (self.encoded or not _COMMENTS.fullmatch(data)):
            self.first_s = now_s
            return True
        return False

    def response_id(self) -> str:
        """Return the id of a stored response, once, when it has come; ``""`` before and after."""
        if self._head is None:
            return ""
        found = _RESPONSE_ID.search(self._head) if self._good and not self.encoded else None
        if found or len(self._head) == _ID_BYTES:
            self._head = None
        return found[1].decode() if found else ""

    def usage(self) -> Usage:
        """Return what the engine said; nothing of an answer that is compressed."""
        if self.encoded:
            return NO_USAGE
        if self._reader is not None:
            return self._reader.usage
        reader = UsageReader()
        reader.feed(self._kept)
        return reader.usage

    def failure(self) -> AnswerFailure | None:
        """Return what the engine said where it failed; None of an answer that is compressed."""
        return None if self.encoded else failure_in(self._body or bytes(self._kept), self._status)

    def has_last_event(self) -> bool:
        """Return whether the event that ends a stream has come, whole: many clients hang up there.

        False of what is no event stream, is compressed, or has a last event longer than `TAIL_BYTES`.
        """
        if self._reader is not None or self.encoded:
            return False
        return _EVENT_END.search(self._kept) is not None and _LAST_EVENT.search(self._kept) is not None
