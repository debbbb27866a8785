"""The memory that all streams of a process may hold while they wait, so that half-sent ones cannot fill it.

Owns the count of held bytes: request bodies with the headers and metadata that wait with them, as they lie in
memory. One stream's limit bounds a body, not how many of them wait for their rest: a client decides how
slowly it sends. What finds no room has its request refused, which makes room at once; nothing waits for room,
so nothing can wait for ever. What makes a body whole is always taken: it is decided upon now, and held no
longer.

All but bodies is taken by `take_part`: headers and metadata, prompts whose tokens are being counted, and by
the transport open streams, messages that have not come whole, those that wait behind another, and answers
that nobody reads.

Each connection takes by a `Share`. Where there is no room, a connection that holds less than half as much as
the one that holds the most finds it at that one's expense: nobody who fills the budget keeps others out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.extproc.types import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.extproc.types import HttpRequest

    #: Ends calls of a connection while its argument says so.
    Reclaim = Callable[[Callable[[], bool]], None]


def no_reclaim(_needed: Callable[[], bool]) -> None:
    """There is no connection whose calls could end."""


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

    __slots__ = ("_max_bytes", "_max_with_parts_bytes", "_reclaims", "_shares", "held_bytes", "refusal")

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
        self._shares: set[Share] = set()
        self._reclaims = False

    def share(self, reclaim: Reclaim) -> Share:
        """Make a connection's share; ``reclaim`` ends calls of the connection while it is told to."""
        return Share(self, reclaim)

    def find_room(self, share: Share, size: int, *, body: bool) -> bool:
        """Whether a share may hold so much more, after what holds the most gave way if need be."""
        limit = self._max_bytes if body else self._max_with_parts_bytes
        if self.held_bytes + size <= limit:
            return True
        largest = max(self._shares, key=lambda each: each.held_bytes, default=share)
        if self._reclaims or largest.held_bytes <= 2 * (share.held_bytes + size):
            return False
        self._reclaims = True  # an answer to a call that ends may itself want room
        try:
            largest.reclaim(lambda: self.held_bytes + size > limit)
        finally:
            self._reclaims = False
        return self.held_bytes + size <= limit

    def has_spare(self, size: int, *, half: bool) -> bool:
        """Whether there is room for so much more, in the first half of the budget where asked so."""
        limit = self._max_bytes // 2 if half else self._max_with_parts_bytes
        return self.held_bytes + size <= limit

    def hold(self, share: Share, size: int) -> None:
        """Count what a share takes, or gives back where it is negative."""
        self.held_bytes += size
        share.held_bytes += size
        if share.held_bytes:
            self._shares.add(share)
        else:
            self._shares.discard(share)


class Share:
    """What one connection holds of a budget.

    Args:
        budget: the process's.
        reclaim: ends calls of the connection while it is told to.

    Attributes:
        held_bytes: that are held now.
        refusal: the budget's.
    """

    __slots__ = ("_budget", "held_bytes", "reclaim", "refusal")

    def __init__(self, budget: BodyBudget, reclaim: Reclaim) -> None:
        self._budget, self.reclaim, self.refusal = budget, reclaim, budget.refusal
        self.held_bytes = 0

    def take(self, size: int, *, last: bool) -> bool:
        """Hold a piece, of a body that is whole with its ``last``; False where there is no room."""
        if not last and not self._budget.find_room(self, size, body=True):
            return False
        self._budget.hold(self, size)
        return True

    def take_part(self, size: int) -> bool:
        """Hold so much of what is no body; False where there is no room."""
        if not self._budget.find_room(self, size, body=False):
            return False
        self._budget.hold(self, size)
        return True

    def take_spare(self, size: int, *, half: bool = False) -> bool:
        """Hold so much for what may be left undone, at nobody's expense; of ``half`` of the budget alone."""
        if not self._budget.has_spare(size, half=half):
            return False
        self._budget.hold(self, size)
        return True

    def give_back(self, size: int) -> None:
        """Hold so much no more."""
        self._budget.hold(self, -size)
