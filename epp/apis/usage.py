"""What an engine tells in an answer that arrives in pieces of any size: token counts, failure, first content.

Owns the search for the objects with counts and their meaning in the APIs that engines speak; knows no
transport. Counts are found in an event stream and in a whole JSON body by the same rule: ``"usage"``,
``"meta_info"`` or llama.cpp's ``"timings"`` followed by an object. In generated text quotes are escaped, so
that sequence of bytes is never part of an answer's words. What the events of a stream are, is told by the
table of `epp.apis.events`.

Rules: what is absent or of a wrong type is unknown (None), never 0; nothing that an engine sends raises; the
result does not depend on how the bytes were cut.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from epp.apis.events import EVENTS, LINE_BYTES, Kind, kind_of
from epp.apis.failure import AnswerFailure, failure_in, last_failure

if TYPE_CHECKING:
    from epp.apis.types import Headers


MAX_OBJECT_BYTES = 4096
"""Longest ``usage`` object that is read, with its name. Engines send 60 to 400 bytes."""
MAX_BATCH = 1024
"""Prompts of one batch whose counts are kept apart; nothing is known of what comes after them."""

_MAX_COUNT = 1 << 53
_U, _M = b"um"
_FLAT = rb'(?:[^{}"]|"(?:[^"\\]|\\.)*+")*+'
#: One of the names and its object, whose objects hold no others.
_FOUND = re.compile(
    rb'"(?:usage|meta_info|tokens_cached"\s*+:\s*+\d++\s*+,\s*+"timings)"\s*+:\s*+(\{'
    + _FLAT
    + rb"(?:\{"
    + _FLAT
    + rb"\}"
    + _FLAT
    + rb")*+\})",
    re.DOTALL,
)
#: How a whole answer ended that failed.
_ENDED = re.compile(
    rb'"finish_reason"\s*+:\s*+(?:"(?:abort|error)"|\{\s*+"type"\s*+:\s*+"abort"' + _FLAT + rb"\})", re.DOTALL
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
    ``meta_info``: ``prompt_tokens``, ``completion_tokens``, ``cached_tokens``. llama.cpp's ``timings``:
    ``cache_n`` and ``prompt_n``, the prompt's tokens that its cache held and those that it did not, and
    ``predicted_n``. Rankings may tell only ``total_tokens``, all of them the prompt's.
    """
    if not isinstance(fields, dict):
        return NO_USAGE
    if "predicted_n" in fields:
        held, read = _count(fields, "cache_n"), _count(fields, "prompt_n")
        prompt = None if held is None or read is None else held + read
        return Usage(prompt, _count(fields, "predicted_n"), held)
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
    other's counts. The prompts of SGLang's batches are kept apart by ``meta_info.id`` and added up, and so
    are those of llama.cpp's, of which each ends with its ``timings``. In a line with several ``usage``
    objects the last that has counts is the answer's own: those before it are in what a model or a client
    wrote (a tool's input, a tool's description).

    Attributes:
        failure: why an answer of the batch or of the choices ended, where it failed.
    """

    def __init__(self) -> None:
        self._pending, self._line_over = b"", False
        self._fields: dict[str, object] = {}
        self._line: dict[str, object] = {}
        self._batch: dict[str, dict[str, object]] = {}
        self.failure: AnswerFailure | None = None

    def feed(self, data: bytes | bytearray, *, whole: bool = False) -> None:
        """Read the next piece; of a whole answer also how it ended."""
        data = self._pending + data
        for ended in _ENDED.finditer(data) if whole else ():
            self.failure = failure_in(b"{%b}" % ended[0])
        end = 0
        for found in _FOUND.finditer(data):
            adjacent = 0 < end == found.start()  # as in access logs
            self._line_over |= adjacent or data.find(b"\n", end, found.start()) >= 0
            end = found.end()
            if end - found.start() <= MAX_OBJECT_BYTES:
                self._take(found[1], data[found.start() + 1])
        self._line_over |= data.find(b"\n", end) >= 0
        self._pending = data[max(end, len(data) - MAX_OBJECT_BYTES) :]

    def _take(self, text: bytes, begins: int) -> None:
        try:
            fields = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError):
            return
        name = fields.get("id") if begins == _M else str(len(self._batch))
        name = name if isinstance(name, str) else ""
        if usage_from(fields) == NO_USAGE:
            return
        fields = {key: value for key, value in fields.items() if value is not None}
        if begins == _U:
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

#: The event that ends a stream: OpenAI's mark, or one that the table has as the last.
_LAST_EVENT = re.compile(
    rb'(?:^|\n)data: ?\[DONE\]|"type"[ \t]*:[ \t]*"(?:%b)"'
    % b"|".join(re.escape(name).encode() for name, _, kind in EVENTS if kind in {Kind.END, Kind.ERROR})
)
#: In the first bytes of an answer: under which an engine stores a response (OpenAI responses), and the model.
_RESPONSE_ID = re.compile(rb'"id"\s*+:\s*+"(resp_[\w-]++)"', re.ASCII)
_MODEL = re.compile(rb'"model"\s*+:\s*+"([^"\\]++)"')
#: In an answer of Anthropic's, which has no finish reason, but objects that a model gives to tools.
_MESSAGE = re.compile(rb'"type"\s*+:\s*+"message"')
_EVENT_END = re.compile(rb"\r?\n\r?\n\Z")
#: Between the two ends of an answer: nothing that begins in the one goes on in the other after so many bytes.
_GAP = b"\n" * MAX_OBJECT_BYTES
#: Cutting now and then spares every piece a move of what is kept.
_MOST_KEPT = HEAD_BYTES + MAX_OBJECT_BYTES + 2 * TAIL_BYTES


class AnswerWatch:
    """Watches one answer as it passes by; knows no clock, and keeps the few bytes that can hold ``usage``.

    Engines tell the usage of an event stream at its end, and one of their APIs (Anthropic messages) a part of
    it in the first event. So an event after the first content is appended and searched by nobody: the search
    is made once, at the end, in the first `HEAD_BYTES` and the last `TAIL_BYTES` at least, where split events
    are whole again; for a failure also in what is left out between them. What is no event stream comes in few
    and large pieces, and is searched as it comes.

    Attributes:
        chunks: pieces so far that were not empty.
        response_bytes: their bytes.
        first_s: when the first content of a good answer came, NaN before: of an event stream the first event
            that holds what was generated, of any other answer its first piece.
        last_s: when the last piece came.
        encoded: the answer is compressed, so that nothing of it can be read.
        streamed: it is an event stream; None before its headers came.
    """

    def __init__(self) -> None:
        self.chunks = self.response_bytes = 0
        self.first_s = self.last_s = math.nan
        self.encoded = False
        self.streamed: bool | None = None
        self._status = 200
        self._head, self._opening = b"", True  # its first `LINE_BYTES`, and whether more of it is awaited
        self._line, self._event, self._model = b"", "", ""  # of a stream up to its first content
        self._told = False  # the id of the response
        self._reader: UsageReader | None = UsageReader()
        #: Beginning and end of an event stream, and the failure in what was between them.
        self._kept = bytearray()
        self._failure: AnswerFailure | None = None

    def started(self, status: int, headers: Headers) -> None:
        """Take the response headers; an answer without them counts as a good one."""
        self._status = status
        self.streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        if self.streamed:
            self._reader = None
        self.encoded = headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")

    def feed(self, data: bytes, now_s: float) -> bool:
        """Take the next piece; return whether it brings the first content."""
        size = len(data)
        if not size:
            return False
        self.chunks += 1
        self.response_bytes += size
        self.last_s = now_s
        if self._reader is not None:
            self._reader.feed(data, whole=True)
        else:
            self._kept += data
            if len(self._kept) > _MOST_KEPT:
                left_out = bytes(self._kept[HEAD_BYTES - LINE_BYTES : LINE_BYTES - TAIL_BYTES])
                self._failure = last_failure(left_out) or self._failure
                self._kept[HEAD_BYTES:-TAIL_BYTES] = _GAP
        return self._opening and self._begin(data, now_s)

    def _begin(self, data: bytes, now_s: float) -> bool:
        """Read a piece of the beginning; return whether it brings the first content."""
        self._head += data[: LINE_BYTES - len(self._head)]
        by_event = self._reader is None and not self.encoded
        first = self._has_content(data) if by_event else self.chunks == 1
        self._opening = not first if by_event else len(self._head) < LINE_BYTES
        if first and self._status < _CLIENT_ERROR:
            self.first_s = now_s
            return True
        return False

    def _has_content(self, data: bytes) -> bool:
        """Read further lines of a stream; return whether one of them has content."""
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[:LINE_BYTES]
        for line in lines:
            field, _, value = line.partition(b":")
            if field == b"data":
                value = value[:LINE_BYTES]
                if not self._model and (named := _MODEL.search(value)):
                    self._model = named[1].decode("utf-8", "replace")
                if kind_of(self._event, value) is Kind.CONTENT:
                    return True
            elif field == b"event":
                self._event = value[:LINE_BYTES].strip().decode("utf-8", "replace")
            elif not line.strip():
                self._event = ""
        return False

    def response_id(self) -> str:
        """Return the id of a stored response, once, when it has come; ``""`` before and after."""
        if self._told:
            return ""
        good = self._status < _CLIENT_ERROR and not self.encoded
        found = _RESPONSE_ID.search(self._head) if good else None
        self._told = found is not None or not self._opening
        return found[1].decode() if found else ""

    def model(self) -> str:
        """Return the model that the answer names in its first events or outermost object, ``""`` for none."""
        for found in () if self.streamed or self.encoded else _MODEL.finditer(self._head):
            before = self._head[: found.start()]
            if before.count(b"{") == before.count(b"}") + 1:
                return found[1].decode("utf-8", "replace")
        return self._model

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
        if self.encoded:
            return None
        if self._reader is None and self._status < _CLIENT_ERROR:
            return last_failure(bytes(self._kept)) or self._failure
        may_tell = self._status >= _CLIENT_ERROR or b"error" in self._head or b"abort" in self._head
        told = failure_in(self._head, self._status) if may_tell else None
        reader = None if _MESSAGE.search(self._head) else self._reader
        return told or (reader.failure if reader else None)

    def has_last_event(self) -> bool:
        """Return whether the event that ends a stream has come, whole: many clients hang up there.

        False of what is no event stream, is compressed, or has a last event longer than `TAIL_BYTES`.
        """
        if self._reader is not None or self.encoded:
            return False
        return _EVENT_END.search(self._kept) is not None and _LAST_EVENT.search(self._kept) is not None
