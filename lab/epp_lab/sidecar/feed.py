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

#: Records handled before the caller gets to look after its other duties.
MAX_BATCH = 20_000
_MAX_STEPS = 100
#: Wall and monotonic time may part by so much between two looks; more is a step of the clock.
_STEP_S = 2.0
#: Tuner and pickers may not see a step in the same second.
_SLACK_S = 2.0
#: What `Feed.keep` and `Feed.make` may raise, of a record that is not what the recorder writes.
_DAMAGE = (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError)


class FeedState(msgspec.Struct):
    """Where a feed is. Changed in place by `Feed` alone.

    Attributes:
        lines: whole lines taken of each file.
        waiting: decision id -> what a sample needs of it, oldest first.
        steps: ``[from, to]`` Unix times around steps of the clock; samples dispatched within are dropped.
        seen: samples handed out.
        damaged: lines passed over.
        given_up: decisions without an outcome.
    """

    lines: dict[str, int] = {}
    waiting: dict[str, dict[str, Any]] = {}
    steps: list[tuple[float, float]] = []
    seen: int = 0
    damaged: int = 0
    given_up: int = 0


class Feed(Generic[T]):
    """What is made of a folder's requests; subclasses say what is kept of a decision and made of both.

    Args:
        folder: of the flight recorder; may not exist yet.
        report: takes sentences for the log, each once.
        state: where an earlier feed was; None for a first start.
        first: names of the files whose content counts on a first start; others are begun at their ends.
    """

    #: Decisions that wait for outcomes at most; the oldest go first. They are persisted with the memory.
    max_waiting = 100_000

    def __init__(
        self,
        folder: Path,
        *,
        report: Callable[[str], None],
        state: FeedState | None = None,
        first: frozenset[str] = frozenset(),
    ) -> None:
        self._folder, self._report = folder, report
        self._tails: dict[str, Tail] = {}
        self._foreign: set[str] = set()
        self._reported: set[str] = set()
        self._looked: tuple[float, float] | None = None
        #: Whether the last call left lines unread, of which the next one takes more.
        self.behind = False
        self.state = FeedState() if state is None else state
        self._skip = dict(self.state.lines)
        if state is None:
            for path in self._files():
                if path.name not in first:
                    for _ in self._lines(path):
                        pass

    def keep(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what is needed of a decision when its outcome comes, its ``at``; None to pass it over.

        Raises:
            KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError: the record is damaged.
        """
        raise NotImplementedError

    def make(self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float) -> T | None:
        """Return what a request comes to; None where it says nothing.

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
        self.state.waiting.clear()
        return stepped_s

    def new(self, now_wall_s: float, *, give_up_s: float) -> Iterator[T]:
        """Yield what came since the last call.

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
        if sentence not in self._reported:
            self._reported.add(sentence)
            self._report(sentence)

    def _of(self, record: Mapping[str, Any], now_wall_s: float) -> Iterator[T]:
        try:
            if record["kind"] == "decision":
                self._decided(record)
                return
            if record["kind"] != "outcome":
                return
            kept = self.state.waiting.pop(record["id"], None)
        except _DAMAGE:
            self.state.damaged += 1
            return
        if kept is not None:
            yield from self._made(kept, record, now_wall_s)

    def _decided(self, record: Mapping[str, Any]) -> None:
        kept = self.keep(record)
        if kept is None:
            return
        kept["at"] = float(kept["at"])
        if not math.isfinite(kept["at"]):
            raise ValueError("at is no time")
        key, waiting = str(record["id"]), self.state.waiting
        waiting.pop(key, None)
        waiting[key] = kept
        if len(waiting) > self.max_waiting:
            del waiting[next(iter(waiting))]
            self.report_once(
                f"more than {self.max_waiting:,} requests wait for outcomes: the oldest do not count"
            )

    def _given_up(self, before_wall_s: float, now_wall_s: float) -> Iterator[T]:
        waiting = self.state.waiting
        # Files of several pickers are read one after the other: the order is nearly that of time.
        for key in [key for key, kept in waiting.items() if kept["at"] < before_wall_s]:
            kept = waiting.pop(key)
            self.state.given_up += 1
            yield from self._made(kept, None, now_wall_s)

    def _made(
        self, kept: dict[str, Any], outcome: Mapping[str, Any] | None, now_wall_s: float
    ) -> Iterator[T]:
        try:
            made = self.make(kept, outcome, now_wall_s)
        except _DAMAGE:
            self.state.damaged += 1
            return
        if made is None or any(low_s <= kept["at"] <= high_s for low_s, high_s in self.state.steps):
            return
        self.state.seen += 1
        yield made
