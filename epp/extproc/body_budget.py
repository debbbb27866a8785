"""The memory that all streams of a process may hold while they wait, so that half-sent ones cannot fill it.

Owns the count of held bytes: request bodies with the headers and metadata that wait with them, as they lie in
memory. One stream's limit bounds a body, not how many of them wait for their rest: a client decides how
slowly it sends. What finds no room has its request refused, which makes room at once; nothing waits for room,
so nothing can wait for ever. What makes a body whole is always taken: it is decided upon now, and held no
longer.

All but bodies is taken by `reserve`: headers and metadata, prompts whose tokens are being counted, and by
the transport open streams, messages that have not come whole, those that wait behind another, and answers
that nobody reads.

Each connection takes by a `Share`. Where there is no room, a connection that holds less than half as much as
the one that holds the most finds it at that one's expense: nobody who fills the budget keeps others out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Ends calls of a connection while its argument says so.
    Reclaim = Callable[[Callable[[], bool]], None]


def _no_reclaim(_needed: Callable[[], bool]) -> None:
    """End no calls: there is no connection."""


class BodyBudget:
    """The budget of a process.

    Args:
        max_bytes: that may be held.
        beside_bytes: that all but bodies may hold beyond it. With the longest message's length one that
            comes alone always finds room, though it is longer than the body in it.

    Attributes:
        held_bytes: that are held now.
        max_bytes: as given.
        max_with_parts_bytes: the same and ``beside_bytes``.
        shares: those that hold something.
    """

    __slots__ = ("_reclaims", "held_bytes", "max_bytes", "max_with_parts_bytes", "shares")

    def __init__(self, max_bytes: int = 1 << 30, *, beside_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.max_with_parts_bytes = max_bytes + beside_bytes
        self.held_bytes = 0
        self.shares: set[Share] = set()
        self._reclaims = False

    def share(self, reclaim: Reclaim = _no_reclaim) -> Share:
        """Make a connection's share; ``reclaim`` ends calls of the connection while it is told to."""
        return Share(self, reclaim)

    def make_room(self, share: Share, size: int, limit_bytes: int) -> bool:
        """Whether a share may hold so much more within a limit, once what holds the most gave way."""
        largest = max(self.shares, key=lambda each: each.held_bytes, default=share)
        if self._reclaims or largest.held_bytes <= 2 * (share.held_bytes + size):
            return False
        self._reclaims = True  # an answer to a call that ends may itself want room
        try:
            largest.reclaim(lambda: self.held_bytes + size > limit_bytes)
        finally:
            self._reclaims = False
        return self.held_bytes + size <= limit_bytes


class Share:
    """What one connection holds of a budget.

    Args:
        budget: the process's.
        reclaim: ends calls of the connection while it is told to.

    Attributes:
        held_bytes: that are held now.
    """

    __slots__ = ("_budget", "held_bytes", "reclaim")

    def __init__(self, budget: BodyBudget, reclaim: Reclaim) -> None:
        self._budget, self.reclaim = budget, reclaim
        self.held_bytes = 0

    def take(self, size: int, *, last: bool) -> bool:
        """Hold a piece, of a body that is whole with its ``last``; False where there is no room."""
        return self._hold(size, None if last else self._budget.max_bytes)

    def reserve(self, size: int) -> bool:
        """Hold so much of what is no body; False where there is no room."""
        return self._hold(size, self._budget.max_with_parts_bytes)

    def take_spare(self, size: int, *, half: bool = False) -> bool:
        """Hold so much for what may be left undone, at nobody's expense; of ``half`` of the budget alone."""
        limit_bytes = self._budget.max_bytes // 2 if half else self._budget.max_with_parts_bytes
        return self._budget.held_bytes + size <= limit_bytes and self._hold(size, None)

    def release(self, size: int) -> None:
        """Hold so much no more."""
        self._budget.held_bytes -= size
        self.held_bytes -= size
        if not self.held_bytes:
            self._budget.shares.discard(self)

    def _hold(self, size: int, limit_bytes: int | None) -> bool:
        budget = self._budget
        if (
            limit_bytes is not None
            and budget.held_bytes + size > limit_bytes
            and not budget.make_room(self, size, limit_bytes)
        ):
            return False
        if not self.held_bytes:
            budget.shares.add(self)
        budget.held_bytes += size
        self.held_bytes += size
        return True
