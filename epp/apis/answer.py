"""An answer as it passes by in pieces: how many, how long, when, and what its ends say it cost.

Owns the few bytes of an answer that can hold ``usage``; knows no transport and no clock. Engines tell the
usage of an event stream at its end, and one of their APIs (Anthropic messages) a part of it in the first
event. So an event in the middle costs two list operations and is searched by nobody: the search is made once,
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
"""Most that a watch keeps, however short the pieces; a piece that is being fed comes on top."""

#: Pieces that are kept apart: as objects of their own, short ones would take many times their bytes.
_MAX_PIECES = 512
_NO_LINE_END = re.compile(rb"[^\r\n]")
#: The event that ends a stream: OpenAI's mark, the last of Anthropic's messages, those of OpenAI's responses.
_LAST_EVENT = re.compile(
    rb"(?:^|\n)data: ?\[DONE\]"
    rb'|"type"[ \t]*:[ \t]*"(?:message_stop|response\.(?:completed|incomplete|failed))"'
)
_EVENT_END = re.compile(rb"\r?\n\r?\n\Z")
#: Between the two ends of an answer: nothing that begins in the one goes on in the other after so many bytes.
_GAP = b"\n" * MAX_OBJECT_BYTES


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
        "_head",
        "_head_bytes",
        "_in_comment",
        "_reader",
        "_tail",
        "_tail_bytes",
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
        self._in_comment = False
        self._reader: UsageReader | None = UsageReader(lines=True)
        self._head: list[bytes] = []
        self._tail: list[bytes] = []
        self._head_bytes = self._tail_bytes = 0

    def started(self, status: int, headers: Mapping[str, str]) -> None:
        """Response headers came; an answer without them is taken for a good one."""
        self._good = status < _CLIENT_ERROR
        self.streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        if self.streamed:
            self._reader = None
        self.encoded = headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")

    def feed(self, data: bytes, now_s: float) -> bool:
        """The next piece. True when it is the first of the answer."""
        size = len(data)
        if not size:
            return False
        self.chunks += 1
        self.response_bytes += size
        self.last_s = now_s
        if self._reader is not None:
            self._reader.feed(data)
        elif self._head_bytes < HEAD_BYTES:
            begin = data[:HEAD_BYTES]
            self._head.append(begin)
            self._head_bytes += len(begin)
            if len(self._head) >= _MAX_PIECES:
                self._head = [b"".join(self._head)]
            if size > HEAD_BYTES:
                self._keep(data[HEAD_BYTES:], size - HEAD_BYTES)
        else:
            self._keep(data, size)
        if self._good and self.first_s != self.first_s and self._is_token(data):
            self.first_s = now_s
            return True
        return False

    def _is_token(self, data: bytes) -> bool:
        """Whether there is more than comments and line ends so far, of which one may have begun before."""
        if self.encoded:
            return True
        at = 0
        while True:
            if self._in_comment:
                at = data.find(b"\n", at) + 1
                if not at:
                    return False
                self._in_comment = False
            found = _NO_LINE_END.search(data, at)
            if found is None:
                return False
            if found.group() != b":":
                return True
            self._in_comment, at = True, found.end()

    def usage(self) -> Usage:
        """What the engine said; nothing of an answer that is compressed."""
        if self.encoded:
            return NO_USAGE
        if self._reader is not None:
            return self._reader.usage
        reader = UsageReader(lines=True)
        reader.feed(self._ends())
        return reader.usage

    def has_last_event(self) -> bool:
        """Whether the event has come that ends a stream, and is whole: many clients hang up there.

        False of what is no event stream, is compressed, or has a last event longer than `TAIL_BYTES`.
        """
        if self._reader is not None or self.encoded:
            return False
        ends = self._ends()
        return _EVENT_END.search(ends) is not None and _LAST_EVENT.search(ends) is not None

    def _ends(self) -> bytes:
        """Beginning and end of an event stream."""
        gap = _GAP if self.response_bytes > self._head_bytes + self._tail_bytes else b""
        return b"".join((*self._head, gap, *self._tail))

    def _keep(self, data: bytes, size: int) -> None:
        """Keep at least the last `TAIL_BYTES`, in whole pieces, at most twice that and a piece."""
        self._tail.append(data)
        self._tail_bytes += size
        if self._tail_bytes > 2 * TAIL_BYTES or len(self._tail) >= _MAX_PIECES:
            # Halving now and then spares every piece a look at the oldest one.
            joined = b"".join(self._tail)[-TAIL_BYTES:]
            self._tail, self._tail_bytes = [joined], len(joined)
