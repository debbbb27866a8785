"""The tuner's loop: look at the clock, the operator's files and the records; hand it all to the session.

Owns the order within a tick and nothing else. All it needs is brought to it: tests drive it with a clock, a
disk and a rehearsal of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from epp.config.load import parse_weights
from epp.errors import ConfigError
from epp.learn.sidecar.feed import State as FeedState  # noqa: TC001  # msgspec reads annotations at run time
from epp.learn.tuner.feed import SampleFeed
from epp.learn.tuner.operator_requests import as_done, not_done, read_requests
from epp.learn.tuner.state import NothingBetter, Observed, Pinned, Proposed
from epp.learn.tuner.trials import late_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.learn.sidecar.files import Files
    from epp.learn.sidecar.paths import WeightsPaths
    from epp.learn.tuner.session import Session
    from epp.learn.tuner.state import State

#: Without news the state is persisted so often.
SAVE_S = 5.0
#: A rehearsal that failed is begun again after so long, each time twice as long, up to the other.
RETRY_S, MAX_RETRY_S = 60.0, 3600.0


class Rehearsal(Protocol):
    """Searches for a candidate and tries it in the simulator, beside the loop."""

    def start(self, state: State, reason: str) -> None:
        """Begin; one that runs already is given up.

        Raises:
            OSError: there is no room for it.
        """
        ...

    def poll(self) -> Found | None:
        """What was found, once; None while it runs or when nothing was begun."""
        ...

    def stop(self) -> None:
        """Give up what runs."""
        ...


class Found(msgspec.Struct, frozen=True):
    """A rehearsal's end.

    Attributes:
        weights: of the candidate; None when nothing is worth a trial.
        reason: in words.
        search: state of the search, to go on from.
        failed: nothing was searched; it says nothing of weights and is to be done again later.
    """

    weights: dict[str, float] | None
    reason: str
    search: dict[str, object] = {}
    failed: bool = False


class Cursor(msgspec.Struct):
    """What is persisted with the state: what was taken from outside.

    Attributes:
        feed: where the records were read to.
        requests: of operators that were done.
    """

    feed: FeedState
    requests: str = ""


def cursor_of(state: State, tell: Callable[[str], None]) -> Cursor | None:
    """What a state says of it; None for a first start, and, which is told, where it cannot be read."""
    if not state.cursor:
        return None
    try:
        return msgspec.json.decode(state.cursor, type=Cursor)
    except msgspec.MsgspecError as error:
        tell(f"where the records were read to is not known any more ({error}): from their end")
        return None


class Tuner:
    """Drives a session. Open it once, then tick.

    Args:
        session: state and files.
        paths: where everything lies.
        files: the file system.
        records: folder of the flight recorder.
        overrides: the operator's file; None where there is none.
        bounds: of every weight, for the operator's file.
        clock: the time.
        rehearsal: finds candidates.
        tell: takes sentences of what is not as it should be.
    """

    def __init__(
        self,
        *,
        session: Session,
        paths: WeightsPaths,
        files: Files,
        records: Path,
        overrides: Path | None,
        bounds: Mapping[str, tuple[float, float]],
        clock: Clock,
        rehearsal: Rehearsal,
        tell: Callable[[str], None],
    ) -> None:
        self.session, self._paths, self._files, self._records = session, paths, files, records
        self._overrides, self._bounds, self._clock = overrides, bounds, clock
        self._rehearsal, self._tell = rehearsal, tell
        self._overrides_text: bytes | None = b"?"
        self._unreadable = ""
        self._requests_done = ""
        self._failures = 0
        self._again: tuple[float, str] | None = None
        self._saved_s = clock.mono_s()
        self._feed: SampleFeed

    def open(self) -> None:
        """Read the memory, the operator's words and the backlog; nothing is published before the first tick.

        Raises:
            OSError: the weights file cannot be read.
            EppError: the memory is there and cannot be read.
        """
        self.session.load(self._clock.wall_s())
        self._look_at_overrides(self._clock.wall_s())  # the backlog is judged by the pins in force
        cursor = cursor_of(self.session.state, self._tell)
        self._feed = SampleFeed(
            self._records,
            policy=self.session.policy,
            tell=self._tell,
            state=None if cursor is None else cursor.feed,
        )
        if cursor is not None:
            self._requests_done = cursor.requests
            self._catch_up()
        else:
            self._requests_done = as_done(
                read_requests(self._paths, self._files)
            )  # of somebody who is no more
        self.session.resume(self._clock.wall_s())

    def tick(self) -> None:
        """One round; call it every second or so."""
        now_s, now_wall_s = self._clock.mono_s(), self._clock.wall_s()
        self._look_at_the_clock()
        self._look_at_overrides(now_wall_s)
        self._look_at_requests(now_wall_s)
        news = self._observe(now_wall_s)
        self._rehearse(now_s, now_wall_s)
        pending = self.session.pending
        if pending or news or now_s - self._saved_s >= SAVE_S:
            self._save(now_s, hurry=pending)

    def close(self) -> None:
        """Stop: what runs beside is given up, the memory is written."""
        self._rehearsal.stop()
        self._save(self._clock.mono_s(), hurry=True)

    @property
    def feed(self) -> SampleFeed:
        """The reader of the records."""
        return self._feed

    def _catch_up(self) -> None:
        """What came while no tuner ran is read before the state hears what time it is by now."""
        self._observe(self._clock.wall_s())
        while self._feed.behind:
            self._observe(self._clock.wall_s())

    def _observe(self, now_wall_s: float) -> bool:
        """Hand over what is new on file; whether there was anything.

        Blocks are closed by the clock: while there are records unread it stands still for the state, or their
        samples would come too late for the blocks that they belong to.
        """
        session = self.session
        give_up_s = late_s(session.state, session.rules.settings)
        samples = list(self._feed.new(now_wall_s, give_up_s=give_up_s))
        heard_wall_s = min(session.state.clock_wall_s, now_wall_s) if self._feed.behind else now_wall_s
        session.handle(Observed(heard_wall_s, samples))
        return bool(samples)

    def _look_at_the_clock(self) -> None:
        session = self.session
        wait_s = late_s(session.state, session.rules.settings)
        stepped_s = self._feed.check_clock(self._clock, wait_s=wait_s)
        if stepped_s:
            self._tell(f"the clock stepped by {stepped_s:+.1f} s: samples around it do not count")
            session.break_schedule()

    def _look_at_overrides(self, now_wall_s: float) -> None:
        # Not configured any more is as good as gone: pickers do not read it, either.
        try:
            text = None if self._overrides is None else self._files.read(self._overrides)
        except OSError as error:
            self._once(f"{self._overrides}: {error}; pins stay as they were")
            return
        if text == self._overrides_text:
            return
        self._overrides_text = text
        pins: dict[str, float] = {}
        if text is not None:
            source = str(self._overrides)
            try:
                pins = parse_weights(text, source, policy=self.session.policy, bounds=self._bounds)
            except ConfigError as error:
                self._tell(f"{error}; pins stay as they were")
                return
        if pins != self.session.state.pins:
            self.session.handle(Pinned(now_wall_s, pins))

    def _look_at_requests(self, now_wall_s: float) -> None:
        requests = read_requests(self._paths, self._files)
        for request in not_done(requests, self._requests_done):
            self.session.handle(request.event(now_wall_s))
        if requests:
            self._requests_done = as_done(requests)

    def _rehearse(self, now_s: float, now_wall_s: float) -> None:
        if self._begun(now_s):
            return
        session = self.session
        try:
            found = self._rehearsal.poll()
        except OSError as error:
            self._rehearsal.stop()
            found = Found(None, f"the rehearsal's answer cannot be read: {error}", failed=True)
        if found is None:
            return
        if found.failed:
            self._failed(found.reason, now_s)
            return
        self._failures = 0
        if session.state.phase == "search":  # else it was asked before what is remembered now
            session.state.search = dict(found.search)
        if found.weights is None:
            session.handle(NothingBetter(now_wall_s, found.reason))
        else:
            session.handle(Proposed(now_wall_s, found.weights, found.reason))
        self._begun(now_s)  # another one at once

    def _begun(self, now_s: float) -> bool:
        """Begin the rehearsal that is asked for, or due again; whether there was one."""
        session = self.session
        if session.state.phase != "search":
            self._again = None  # nobody waits for it any more
        if session.rehearse:
            reason, session.rehearse = session.rehearse, ""
        elif self._again is not None and now_s >= self._again[0]:
            reason = self._again[1]
        else:
            return False
        self._again = None
        try:
            self._rehearsal.start(session.state, reason)
        except OSError as error:
            self._failed(f"the rehearsal cannot be begun: {error}", now_s)
        return True

    def _failed(self, reason: str, now_s: float) -> None:
        """A rehearsal that searched nothing is no evidence against the search: it is begun again later."""
        state = self.session.state
        if state.phase != "search":
            return
        wait_s = min(RETRY_S * 2.0**self._failures, MAX_RETRY_S)
        self._failures = min(self._failures + 1, 16)
        self._again = now_s + wait_s, f"once more, because {reason}"
        # Beside what was remembered: what failed live is not to be forgotten for it.
        state.search = {**state.search, "failed": reason}
        self._tell(f"{reason}; once more in {wait_s:.0f} s")

    def _save(self, now_s: float, *, hurry: bool) -> None:
        if not hurry and now_s - self._saved_s < SAVE_S:
            return
        self._saved_s = now_s
        try:
            self.session.rewrite(self._files.read(self._paths.weights))
        except OSError as error:
            self._once(f"{self._paths.weights}: {error}")
        cursor = Cursor(self._feed.state, self._requests_done)
        self.session.save(cursor=msgspec.json.encode(cursor).decode())

    def _once(self, sentence: str) -> None:
        if sentence != self._unreadable:
            self._unreadable = sentence
            self._tell(sentence)
