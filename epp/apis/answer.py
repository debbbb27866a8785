"""An answer as it passes by in pieces: how many, how long, when, and what its ends say it cost.

Owns the few bytes of an answer that can hold ``usage``; knows no transport and no clock. Engines tell the
usage of an event stream at its end, and one of their APIs (Anthropic messages) a part of it in the first
event. So an event in the middle is appended and searched by nobody: the search is made once,
at the end, in the first `HEAD_BYTES` and the last `TAIL_BYTES` at least, where split events are whole again.
What is no event stream comes in few and large pieces, and is searched as it comes.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from epp.apis.usage import MAX_OBJECT_BYTES, NO_USAGE, Usage, UsageReader

if TYPE_CHECKING:
    from collections.abc import Mapping

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
_EVENT_END = re.compile(rb"\r?\n\r?\n\Z")
#: Between the two ends of an answer: nothing that begins in the one goes on in the other after so many bytes.
_GAP = b"\n" * MAX_OBJECT_BYTES
#: Cutting now and then spares every piece a move of what is kept.
_MOST_KEPT = HEAD_BYTES + MAX_OBJECT_BYTES + 2 * TAIL_BYTES


class AnswerWatch:
    """Watches one answer; not watching is not making one.

    Attributes:
        chunks: pieces so far that were not empty.
        response_bytes: their bytes.
        first_s: when the first piece of a good answer came, NaN before; comments of an event stream, with
            which servers keep a connection alive, are none.
        last_s: when the last piece came.
        encoded: the answer is compressed, so that its usage cannot be read.
        streamed: it is an event stream; None before its headers came.
    """

    __slots__ = (
        "_good",
        "_kept",
        "_reader",
        "chunks",
        "encoded",
        "first_s",
        "last_s",
        "response_bytes",
        "streamed",
    )

    def __init__(self) -> None:
        self.chunks = self.response_bytes = 0
        self.first_s = self.last_s = math.nan
        self.encoded = False
        self.streamed: bool | None = None
        self._good = True
        self._reader: UsageReader | None = UsageReader()
        #: Beginning and end of an event stream.
        self._kept = bytearray()

    def started(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the response headers; an answer without them counts as a good one."""
        self._good = status < _CLIENT_ERROR
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
        if self._reader is not None:
            self._reader.feed(data)
        else:
            self._kept += data
            if len(self._kept) > _MOST_KEPT:
                self._kept[HEAD_BYTES:-TAIL_BYTES] = _GAP
        if self._good and self.first_s != self.first_s and (self.encoded or not _COMMENTS.fullmatch(data)):
            self.first_s = now_s
            return True
        return False

    def usage(self) -> Usage:
        """Return what the engine said; nothing of an answer that is compressed."""
        if self.encoded:
            return NO_USAGE
        if self._reader is not None:
            return self._reader.usage
        reader = UsageReader()
        reader.feed(self._kept)
        return reader.usage

    def has_last_event(self) -> bool:
        """Return whether the event that ends a stream has come, whole: many clients hang up there.

        False of what is no event stream, is compressed, or has a last event longer than `TAIL_BYTES`.
        """
        if self._reader is not None or self.encoded:
            return False
        return _EVENT_END.search(self._kept) is not None and _LAST_EVENT.search(self._kept) is not None
