"""What is made of requests in the flight recorder's folder, each once, over restarts, rotations and damage.

Owns the position in every file and the decisions that wait for their outcomes; both are the feed's `State`,
which is persisted with whatever was made of the samples, so that nothing counts twice.

Rules
- A line that cannot be read is passed over and counted; a file of another schema is passed over as a whole.
- What is in the folder before the first start is history, not evidence: a feed of samples begins at the end.
- A decision whose outcome does not come is given up after a time, as a sample that is still running; not
  while there are lines that were not looked at, because its outcome may be among them.
- Samples dispatched around a step of the clock, or by a clock that runs ahead of the tuner's, are dropped,
  because nobody knows which block they were in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from epp.errors import EppError
from epp.records.files import Tail, parse_line, record_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from epp.clock import Clock

T = TypeVar("T")

#: Decisions that wait for outcomes at most; the oldest go first. They are persisted at every look that brings
#: something: some 370 bytes each for the tuner.
MAX_WAITING = 100_000
#: Endpoints of all of them together: a learner keeps some 700 bytes of each candidate.
MAX_WAITING_ENDPOINTS = 300_000
#: Records handled before the caller gets to look after its other duties.
MAX_BATCH = 20_000
_MAX_STEPS = 100
#: Wall and monotonic time may part by so much between two looks; more is a step of the clock.
_STEP_S = 2.0
#: Tuner and pickers may not see a step in the same second.
_SLACK_S = 2.0
#: What `Feed.keep` and `Feed.make` may raise, of a record that is not what the recorder writes.
_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError)


class State(msgspec.Struct):
    """Where a feed is. Changed in place by `SampleFeed` alone.

    Attributes:
        lines: whole lines taken of each file.
        waiting: decision id -> what a sample needs of it, oldest first.
        steps: ``[from, to]`` Unix times around steps of the clock; samples dispatched within are dropped.
        seen: samples handed out.
        damaged: lines passed over.
        unmatched: outcomes without a decision.
        given_up: decisions without an outcome.
        stepped: samples dropped around steps of the clock, or of a clock that runs ahead.
        dropped: decisions that were not waited for, because too many did, or too much was kept of them.
    """

    lines: dict[str, int] = {}
    waiting: dict[str, dict[str, Any]] = {}
    steps: list[tuple[float, float]] = []
    seen: int = 0
    damaged: int = 0
    unmatched: int = 0
    given_up: int = 0
    stepped: int = 0
    dropped: int = 0


class Feed(Generic[T]):
    """What is made of a folder's requests; who derives says what is kept of a decision and made of both.

    Args:
        folder: of the flight recorder; may not exist yet.
        tell: takes sentences for the log, each once.
        state: where an earlier feed was; None for a first start.
        first: names of the files whose content counts on a first start; others are begun at their ends.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tell: Callable[[str], None],
        state: State | None = None,
        first: frozenset[str] = frozenset(),
    ) -> None:
        self._folder, self._tell = folder, tell
        self._tails: dict[str, Tail] = {}
        self._skip: dict[str, int] = {}
        self._foreign: set[str] = set()
        self._told: set[str] = set()
        self._looked: tuple[float, float] | None = None
        #: Whether the last call left lines unread, of which the next one takes more.
        self.behind = False
        self.state = State() if state is None else state
        self._endpoints = sum(map(_endpoints, self.state.waiting.values()))
        if state is None:
            self._foreign = {path.name for path in self._files() if path.name in first}
            self._to_the_end()
            self._foreign.clear()
        else:
            self._skip = dict(state.lines)

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is needed of a decision when its outcome comes; None to pass it over.

        ``at`` is among it, and ``endpoints``, as many as it holds something of.

        Raises:
            KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError: the record is damaged.
        """
        raise NotImplementedError

    def make(self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float) -> T | None:
        """What a request comes to; None where it says nothing.

        Args:
            kept: of the decision.
            outcome: its record; None for a request that was given up waiting for.
            now_wall_s: the time.

        Raises:
            KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError: the record is damaged.
        """
        raise NotImplementedError

    def check_clock(self, clock: Clock, *, wait_s: float) -> float:
        """Notice a step of the wall clock since the last look: what was under way then does not count.

        Args:
            clock: the time.
            wait_s: how long a request may have been under way.

        Returns:
            By how much it stepped; 0 where it went as it should.
        """
        now_s, now_wall_s = clock.mono_s(), clock.wall_s()
        before_s, before_wall_s = self._looked or (now_s, now_wall_s)
        self._looked = now_s, now_wall_s
        stepped_s = (now_wall_s - before_wall_s) - (now_s - before_s)
        if abs(stepped_s) <= _STEP_S:
            return 0.0
        around = [
            (before_wall_s - wait_s, before_wall_s + _SLACK_S),
            (now_wall_s - _SLACK_S, now_wall_s + _SLACK_S),
        ]
        self.state.steps = [*self.state.steps, *around][-_MAX_STEPS:]
        self.state.stepped += len(self.state.waiting)
        self.state.waiting.clear()
        self._endpoints = 0
        return stepped_s

    def new(self, now_wall_s: float, *, give_up_s: float) -> Iterator[T]:
        """What came since the last call.

        Args:
            now_wall_s: the time.
            give_up_s: how long an outcome is waited for.
        """
        for record in self._records():
            yield from self._of(record, now_wall_s)
        if not self.behind:
            yield from self._given_up(now_wall_s - give_up_s, now_wall_s)

    def _records(self) -> Iterator[Mapping[str, Any]]:
        taken = 0
        self.behind = False
        files = self._files()
        for path in files:
            for record in self._lines(path):
                taken += 1
                if record is not None:
                    yield record
            if taken >= MAX_BATCH and path != files[-1]:
                self.behind = True
                return

    def _lines(self, path: Path) -> Iterator[Mapping[str, Any] | None]:
        """The records of a file's new lines; None for each line that was taken before, or is damaged."""
        name = path.name
        tail = self._tails.get(name) or self._tails.setdefault(name, Tail(path))
        try:
            for line in tail.lines():
                skip = self._skip.get(name, 0)
                if skip:
                    self._skip[name] = skip - 1
                    yield None
                    continue
                self.state.lines[name] = self.state.lines.get(name, 0) + 1
                record = parse_line(line, path)
                if record is None:
                    self.state.damaged += 1
                yield record
        except EppError as error:
            if isinstance(error.__cause__, OSError):
                self.report_once(f"{error}; trying again")
                return
            self._foreign.add(name)
            self.report_once(f"{error}; passing over this file")

    def _files(self) -> list[Path]:
        try:
            files = record_files(self._folder)
        except EppError as error:
            self.report_once(f"{error}; waiting for it")
            return []
        if not files:
            return []  # a volume that is not mounted looks the same: what comes back must not count again
        names = {path.name for path in files}
        for gone in [name for name in self.state.lines if name not in names]:
            del self.state.lines[gone]
            self._tails.pop(gone, None)
            self._skip.pop(gone, None)
        self._foreign &= names
        return [path for path in files if path.name not in self._foreign]

    def report_once(self, sentence: str) -> None:
        """Report a sentence that was not reported before."""
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)

    def _to_the_end(self) -> None:
        self.behind = True
        while self.behind:
            for _ in self._records():
                pass

    def _of(self, record: Mapping[str, Any], now_wall_s: float) -> Iterator[T]:
        try:
            if record["kind"] == "decision":
                self._decided(record)
                return
            if record["kind"] != "outcome":
                return
            kept = self._taken(record["id"])
            if kept is None:
                self.state.unmatched += 1
                return
            made = self.make(kept, record, now_wall_s)
        except _DAMAGE:
            self.state.damaged += 1
            return
        yield from self._counted(kept, made)

    def _decided(self, record: Mapping[str, Any]) -> None:
        kept = self.keep(record)
        if kept is None:
            return
        kept["at"] = float(kept["at"])
        if not math.isfinite(kept["at"]):
            raise ValueError("at is no time")
        key, waiting = str(record["id"]), self.state.waiting
        self._taken(key)
        waiting[key] = kept
        self._endpoints += _endpoints(kept)
        while len(waiting) > MAX_WAITING:
            self._drop_oldest(f"more than {MAX_WAITING:,} requests")
        while self._endpoints > MAX_WAITING_ENDPOINTS:
            self._drop_oldest(f"requests with more than {MAX_WAITING_ENDPOINTS:,} endpoints to choose from")

    def _drop_oldest(self, what: str) -> None:
        self._taken(next(iter(self.state.waiting)))
        self.state.dropped += 1
        self.report_once(f"{what} wait for outcomes: the oldest do not count")

    def _taken(self, key: str) -> dict[str, Any] | None:
        """What waits under an id, which then waits no more."""
        kept = self.state.waiting.pop(key, None)
        if kept is not None:
            self._endpoints -= _endpoints(kept)
        return kept

    def _given_up(self, before_wall_s: float, now_wall_s: float) -> Iterator[T]:
        waiting = self.state.waiting
        # Files of several pickers are read one after the other: the order is nearly that of time.
        for key in [key for key, kept in waiting.items() if kept["at"] < before_wall_s]:
            kept = waiting[key]
            self._taken(key)
            self.state.given_up += 1
            try:
                made = self.make(kept, None, now_wall_s)
            except _DAMAGE:
                self.state.damaged += 1
                continue
            yield from self._counted(kept, made)

    def _counted(self, kept: Mapping[str, Any], made: T | None) -> Iterator[T]:
        if made is None:
            return
        for low_s, high_s in self.state.steps:
            if low_s <= kept["at"] <= high_s:
                self.state.stepped += 1
                return
        self.state.seen += 1
        yield made


def _endpoints(kept: Mapping[str, Any]) -> int:
    return len(kept.get("endpoints", ()))
