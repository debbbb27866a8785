"""What peers have asked a picker for, and who gets the next piece.

Owns one queue. A peer stands in it once, whatever and however often it asks; it gets all that is known
once in `ALL_S`. One piece at a time is made, so that requests come in between.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from epp.cluster.messages import MAX_FACTS, IndexDelta, taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: As long as all that is known may take, before another peer is asked for it, or the same one again.
ALL_S = 5.0


class Source(Protocol):
    """What a picker knows."""

    def since(self, sequence: int) -> Iterator[IndexDelta] | None:
        """List the facts sent after a message; None where they are kept no more."""

    def everything(self) -> Iterator[IndexDelta]:
        """List all that is known."""
        ...

    def whole(self, wants: Iterable[IndexDelta]) -> Iterator[IndexDelta]:
        """List facts again, with the runs that their reader misses."""
        ...


class Piece(NamedTuple):
    """The next part of an answer; without facts it is the end of all that is known."""

    origin: str
    facts: list[IndexDelta]


@dataclass(slots=True)
class _Asker:
    after: int | None = None  # facts after this message are wanted, -1 for all
    wants: deque[IndexDelta] = field(default_factory=lambda: deque(maxlen=8 * MAX_FACTS))
    facts: Iterator[IndexDelta] | None = None  # being sent
    is_all: bool = False  # they are all that is known
    all_s: float = -math.inf  # when those were begun


class Answers:
    """What is left to send.

    Args:
        source: what is known.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._askers: dict[str, _Asker] = {}
        self._queue: deque[str] = deque()

    def ask(self, origin: str, after: int | None, wants: Iterable[IndexDelta]) -> None:
        """Note what a peer asks for."""
        asker = self._askers.setdefault(origin, _Asker())
        asker.wants.extend(wants)
        if after is not None and not (asker.is_all and after < 0):
            asker.after = after if asker.after is None else min(asker.after, after)
        if origin not in self._queue:
            self._queue.append(origin)

    def forget(self, origin: str) -> None:
        """Forget a peer that is gone."""
        if self._askers.pop(origin, None) is not None and origin in self._queue:
            self._queue.remove(origin)

    def next(self, now_s: float) -> Piece | None:
        """Make the next piece; None where nothing is to be sent now."""
        for _ in range(len(self._queue)):
            origin = self._queue.popleft()
            asker = self._askers[origin]
            if asker.facts is None:
                self._begin(asker, now_s)
            facts = [] if asker.facts is None else taken(asker.facts)
            ended = asker.is_all and not facts
            if not facts:
                asker.facts, asker.is_all = None, False
            if facts or asker.wants or asker.after is not None:
                self._queue.append(origin)
            if facts or ended:
                return Piece(origin, facts)
        return None

    def _begin(self, asker: _Asker, now_s: float) -> None:
        if asker.after is not None:
            asker.facts = None if asker.after < 0 else self._source.since(asker.after)
            asker.is_all = asker.facts is None and now_s - asker.all_s >= ALL_S
            if asker.is_all:
                asker.facts, asker.all_s = self._source.everything(), now_s
            if asker.facts is not None:
                asker.after = None
        if asker.facts is None and asker.wants:
            asker.facts = self._source.whole([asker.wants.popleft() for _ in range(len(asker.wants))])
