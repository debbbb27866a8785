"""The memory that all streams of a process may hold while they wait, so that half-sent ones cannot fill it.

Owns the count of held bytes: request bodies with the headers and metadata that wait with them, as they lie in
memory. One stream's limit bounds a body, not how many of them wait for their rest: a client decides how
slowly it sends. What finds no room has its request refused, which makes room at once; nothing waits for room,
so nothing can wait for ever. What makes a body whole is always taken: it is decided upon now, and held no
longer.

All but bodies is taken by `take_part`: headers and metadata, prompts whose tokens are being counted, and by
the transport open streams, messages that have not come whole, those that wait behind another, and answers
that nobody reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.extproc.types import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.extproc.types import HttpRequest


def plain_no_room(_request: HttpRequest) -> Refusal:
    """A 503 in the error format that most inference APIs share."""
    body = b'{"error":{"message":"too many requests wait for their rest","type":"server_error"}}'
    return Refusal(503, body, details="held-bodies")


class BodyBudget:
    """The budget of a process.

    Args:
        max_bytes: that may be held.
        refusal: from a request, without its body, to what its client is told where there is no room, so that
            the shell can word it as the request's API does.
        beside_bytes: that all but bodies may hold beyond it. With the longest message's length one that
            comes alone always finds room, though it is longer than the body in it.

    Attributes:
        held_bytes: that are held now.
        refusal: as given.
    """

    __slots__ = ("_max_bytes", "_max_with_parts_bytes", "held_bytes", "refusal")

    def __init__(
        self,
        max_bytes: int = 1 << 30,
        refusal: Callable[[HttpRequest], Refusal] = plain_no_room,
        *,
        beside_bytes: int = 0,
    ) -> None:
        self._max_bytes, self.refusal = max_bytes, refusal
        self._max_with_parts_bytes = max_bytes + beside_bytes
        self.held_bytes = 0

    def take(self, size: int, *, last: bool) -> bool:
        """Hold a piece, of a body that is whole with its ``last``; False where there is no room."""
        if not last and self.held_bytes + size > self._max_bytes:
            return False
        self.held_bytes += size
        return True

    def take_part(self, size: int) -> bool:
        """Hold so much of what is no body; False where there is no room."""
        if self.held_bytes + size > self._max_with_parts_bytes:
            return False
        self.held_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """So much is held no more."""
        self.held_bytes -= size
