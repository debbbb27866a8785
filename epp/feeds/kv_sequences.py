"""Put an engine's messages of its KV cache into one sequence: gaps, replays, and where it begins anew.

Pure: a sequence is given what comes, and says what to apply and what to ask for. Engines number their
messages from 0 and answer a request for a replay with those that they still have, then an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: A replay ends when nothing of it came for so long; the next one waits so long after one that failed.
REPLAY_S, REPLAY_PAUSE_S = 5.0, 30.0
#: Live messages that wait for the end of a replay.
MAX_HELD = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done.

    Attributes:
        kind: ``apply`` the message, forget all as the process is another (``anew``), count messages as
            ``lost``, or ask for a ``replay`` from a number on.
        number: of the message to apply, of those lost, of the first to be replayed.
        data: the message.
        whole: with it all is known that the engine ever told.
    """

    kind: Literal["apply", "anew", "lost", "replay"]
    number: int = 0
    data: bytes = b""
    whole: bool = False


@dataclass(slots=True)
class KvSequence:
    """The messages of one KV cache.

    Attributes:
        replays: whether the engine can be asked to send again.
        replaying: whether it was.
    """

    replays: bool
    replaying: bool = False
    _next: int | None = None  # the number that follows what was applied
    _live: int = -1  # number of the last live message
    _until: float = 0.0  # when a replay has failed
    _again_s: float = 0.0  # not asked before
    _held: list[tuple[int, bytes]] = field(default_factory=list)

    def live(self, number: int, data: bytes, now_s: float) -> list[Step]:
        """Take a message as it was published."""
        steps = list[Step]()
        if number <= self._live:
            self._next, self.replaying, self._again_s = None, False, 0.0
            self._held.clear()
            steps.append(Step("anew"))
        self._live = number
        if self.replaying:
            if len(self._held) < MAX_HELD:
                self._held.append((number, data))
            return steps
        return steps + self._follow(number, data, now_s)

    def _follow(self, number: int, data: bytes, now_s: float) -> list[Step]:
        expected = self._next
        if expected is not None and number < expected:
            return []  # a replay had it
        if number == (expected or 0):
            self._next = number + 1
            return [Step("apply", number, data, whole=number == 0)]
        if self.replays and now_s >= self._again_s:
            self.replaying, self._until = True, now_s + REPLAY_S
            self._held.append((number, data))
            return [Step("replay", expected or 0)]
        self._next = number + 1
        # What was told before anybody listened is unknown, not lost.
        lost = [] if expected is None else [Step("lost", number - expected)]
        return [*lost, Step("apply", number, data)]

    def replayed(self, number: int, data: bytes, now_s: float) -> list[Step]:
        """Take a message of a replay; an empty one is its end."""
        if not self.replaying:
            return []
        if not data:
            return self._end_replay(now_s)
        self._until = now_s + REPLAY_S
        expected = self._next or 0
        if number < expected:
            return []
        # It begins with what the engine still has.
        lost = [Step("lost", number - expected)] if number > expected and self._next is not None else []
        self._next = number + 1
        return [*lost, Step("apply", number, data, whole=number == 0)]

    def expire(self, now_s: float) -> list[Step]:
        """Give up a replay of which nothing comes."""
        return self._end_replay(now_s) if self.replaying and now_s >= self._until else []

    def _end_replay(self, now_s: float) -> list[Step]:
        self.replaying, held = False, self._held
        self._held, steps = [], list[Step]()
        if held and held[0][0] > (self._next or 0):
            self._again_s = now_s + REPLAY_PAUSE_S  # it did not bring what was missing
        for number, data in held:
            if self.replaying:
                self._held.append((number, data))
            else:
                steps += self._follow(number, data, now_s)
        return steps
