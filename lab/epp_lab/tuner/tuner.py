"""The tuner beside a picker: clock, operator's files and records go in, the weights file comes out.

Owns the state in memory and the order in which memory and files change: the machine is asked, its state is
persisted, and only then the plan is published. A plan that cannot be written stays pending; pickers go on
with what they have until the trial's lease ends. Whoever makes a `Tuner` holds the lock.

Owns the file of operators' requests, too. Commands add to it in turns, by an `flock` beside it; the tuner
remembers which it has done, so that several that come within one of its looks are all done, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from epp.config.plan import Plan, parse_plan, render_plan
from epp.errors import ConfigError
from epp.feeds.files import exclusive, read_file
from epp.records.files import DAMAGED
from epp.records.weight_files import load_memory
from epp_lab.sidecar.feed import FeedState  # noqa: TC001  # msgspec reads annotations at run time
from epp_lab.sidecar.process import Files, Writes, lead_of, lost
from epp_lab.tuner import machine
from epp_lab.tuner.samples import SampleFeed
from epp_lab.tuner.search import Measured  # noqa: TC001
from epp_lab.tuner.state import (
    Note,
    NothingBetter,
    Observed,
    OperatorAsked,
    OperatorRequest,
    Pinned,
    Proposed,
    Publish,
    Rehearse,
    TunerState,
)
from epp_lab.tuner.trials import late_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epp.clock import Clock
    from epp.records.weight_files import WeightsPaths
    from epp_lab.tuner.setup import Setup
    from epp_lab.tuner.state import Action, Event

#: Without actions the state is persisted so often.
SAVE_S = 5.0
#: A rehearsal that failed is begun again after so long, each time twice as long, up to the other.
RETRY_S, MAX_RETRY_S = 60.0, 3600.0
#: Requests that the file keeps, the newest; a tuner that runs does each within seconds.
KEPT = 20


def ask(paths: WeightsPaths, request: OperatorRequest) -> None:
    """Add a request to those on file.

    Raises:
        OSError: the file cannot be written.
    """
    with exclusive(paths.requests_lock):
        Files().replace(paths.requests, msgspec.json.encode([*read_requests(paths), request][-KEPT:]))


def read_requests(paths: WeightsPaths) -> list[OperatorRequest]:
    """Read the requests on file, oldest first, done or not; none where the file is torn or cannot be read."""
    try:
        return msgspec.json.decode(read_file(paths.requests) or b"[]", type=list[OperatorRequest])
    except (OSError, *DAMAGED):
        return []


def undone(paths: WeightsPaths, done: Sequence[str]) -> tuple[list[OperatorRequest], list[str]]:
    """List the requests on file that are not among those done, and the ids of all that are once these are."""
    requests = read_requests(paths)
    new = [request for request in requests if request.id not in done]
    return new, [request.id for request in requests] or [*done]


class Found(msgspec.Struct, frozen=True):
    """The end of a rehearsal.

    Attributes:
        weights: of the candidate; None when nothing is worth a trial.
        reason: in words.
        measured: what the search has measured, to go on from.
        failed: nothing was searched: this says nothing of weights and is to be done again later.
    """

    weights: dict[str, float] | None
    reason: str
    measured: Measured | None = None
    failed: bool = False


class Rehearsal(Protocol):
    """Searches for a candidate beside the loop."""

    def start(self, state: TunerState, reason: str) -> None:
        """Begin, in the place of one that runs; raise OSError where there is no room for it."""

    def poll(self) -> Found | None:
        """Return what was found, once; None while it runs or when nothing was begun."""

    def stop(self) -> None:
        """Give up what runs."""


class Memory(msgspec.Struct):
    """All that a tuner persists.

    Attributes:
        state: of the machine.
        feed: where the records were read to; None before a tuner ran.
        requests_done: ids of the operators' requests on file that were done.
    """

    state: TunerState
    feed: FeedState | None = None
    requests_done: list[str] = []


def _read_memory(paths: WeightsPaths) -> Memory | None:
    return load_memory(paths.memory, msgspec.json.Decoder(Memory).decode)


def read_state(paths: WeightsPaths) -> TunerState | None:
    """Read what a tuner's memory says of its machine; None when there is none.

    Raises:
        EppError: it is there and cannot be used.
    """
    memory = _read_memory(paths)
    return None if memory is None else memory.state


class Tuner:
    """Drives the machine. `open` it once, then `tick`.

    Args:
        setup: policy, bounds and files.
        rehearsal: finds candidates; None where the tuner is only loaded to obey an operator.
        clock: the time.
        report: takes sentences for the log.
        files: writes.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        rehearsal: Rehearsal | None,
        clock: Clock,
        report: Callable[[str], None],
        files: Files | None = None,
    ) -> None:
        self.setup, self.rehearsal, self._clock, self._report = setup, rehearsal, clock, report
        self._files = files or Files()
        self._writes = Writes(report, self._files)
        self._plan: Plan | None = None
        self._rendered: bytes | None = None
        self._unsaved = False
        self._problem = ""
        self._failures = 0
        #: When a rehearsal is to begin, and why.
        self._due: tuple[float, str] | None = None
        self._saved_s = clock.mono_s()
        self.memory: Memory
        self.feed: SampleFeed

    @property
    def state(self) -> TunerState:
        """The machine's state."""
        return self.memory.state

    def load(self) -> None:
        """Read the memory, or begin; what other settings and bounds ask for is done, nothing is judged.

        Raises:
            OSError: the weights file cannot be read, or not be put aside where it is torn.
            EppError: the memory is there and cannot be used.
        """
        setup, now_wall_s = self.setup, self._clock.wall_s()
        memory = _read_memory(setup.paths)
        if memory is not None and memory.state.policy != setup.policy:
            self._report(
                f"the memory is of policy {memory.state.policy!r}, not {setup.policy!r}: beginning anew"
            )
            memory = None
        if memory is None:
            weights = {**setup.rules.starting, **self._in_file()}
            on_file = [request.id for request in read_requests(setup.paths)]  # asked of somebody who is gone
            memory = Memory(machine.start(setup.policy, weights, setup.rules, now_wall_s), None, on_file)
        self.memory = memory
        self._do(machine.settle(memory.state, setup.rules, now_wall_s))
        self.state.published = ""  # perhaps it never was

    def open(self) -> None:
        """Load, and judge the backlog of records by the pins in force; nothing is published before a tick.

        Raises:
            OSError, EppError: as `load` does.
        """
        self.load()
        self._read_overrides()
        setup, before = self.setup, self.memory.feed
        self.feed = SampleFeed(setup.records, policy=setup.policy, report=self._report, state=before)
        self.memory.feed = self.feed.state
        if before is None:  # of a tuner that led before, beside another picker: its open blocks stay open
            machine.break_schedule(self.state)
        else:  # what came while no tuner ran, before the state hears what time it is by now
            self._observe()
            while self.feed.behind:
                self._observe()
        self._do(machine.resume(self.state, setup.rules, self._clock.wall_s()))

    def tick(self) -> None:
        """Do one round; call it every second or so."""
        now_s = self._clock.mono_s()
        stepped_s = self.feed.check_clock(self._clock, wait_s=late_s(self.state, self.setup.rules.settings))
        if stepped_s:
            self._report(f"the clock stepped by {stepped_s:+.1f} s: samples around it do not count")
            machine.break_schedule(self.state)
        self._read_overrides()
        self.obey()
        self._observe()
        self._rehearse(now_s)
        if self._unsaved or self._plan is not None or now_s - self._saved_s >= SAVE_S:
            self.save()

    def close(self) -> None:
        """Give up what runs beside, and write the memory."""
        self.drop()
        self.save()

    def drop(self) -> None:
        """Give up what runs beside, and write nothing."""
        if self.rehearsal is not None:
            self.rehearsal.stop()

    def handle(self, event: Event) -> None:
        """Take one event, and note what follows from it."""
        self._do(machine.step(self.state, event, self.setup.rules))

    def obey(self) -> list[str]:
        """Do the operators' requests on file that were not done, in order; return what was asked for."""
        new, done = undone(self.setup.paths, self.memory.requests_done)
        for request in new:
            self.handle(OperatorAsked(self._clock.wall_s(), request))
        self.memory.requests_done = done
        return [request.what for request in new]

    def save(self) -> bool:
        """Persist, then publish what is pending; whether all of it is on disk."""
        self._saved_s = self._clock.mono_s()
        self._check_file()
        content = msgspec.json.encode(self.memory)
        saved = self._writes.replace("the tuner's state", self.setup.paths.memory, content)
        self._unsaved = not saved
        return saved and self._publish()

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish(plan):
                    self._plan = plan
                case Rehearse(reason):
                    self._due = 0.0, reason
                case Note(_, before, after, reason):
                    self._report((f"{before} -> {after}: " if before != after else "") + reason)
        self._unsaved = self._unsaved or bool(actions)

    def _check_file(self) -> None:
        """Have the plan written again where the file does not hold it."""
        path = self.setup.paths.weights
        if self._plan is None and (what := lost(path, self._rendered)):
            self._report(f"{path} {what}; written again (pins belong into the overrides file)")
            self._plan = machine.plan_of(self.state)

    def _publish(self) -> bool:
        if self._plan is None:
            return True
        content = render_plan(self._plan)
        self._parsed(content)  # nothing leaves this process that a picker would have to refuse
        if not self._writes.replace("the weights file", self.setup.paths.weights, content):
            return False
        self._plan, self._rendered = None, content
        return True

    def _parsed(self, content: bytes) -> Plan:
        setup = self.setup
        return parse_plan(content, str(setup.paths.weights), policy=setup.policy, bounds=setup.book.bounds)

    def _in_file(self) -> Mapping[str, float]:
        """Return weights of a file that an earlier tuner, or a person, left."""
        content = read_file(self.setup.paths.weights)
        try:
            return {} if content is None else self._parsed(content).weights
        except ConfigError as error:
            aside = self.setup.paths.unreadable
            self._files.replace(aside, content or b"")
            self._report(f"{error}; put aside as {aside}, beginning with the configuration's weights")
            return {}

    def _observe(self) -> None:
        """Hand over what is new on file.

        Blocks are closed by the clock: while there are records unread the clock stands still for the state,
        or their samples would come too late for their blocks.
        """
        state, now_wall_s = self.state, self._clock.wall_s()
        give_up_s = late_s(state, self.setup.rules.settings)
        samples = list(self.feed.new(now_wall_s, give_up_s=give_up_s))
        heard_wall_s = min(state.clock_wall_s, now_wall_s) if self.feed.behind else now_wall_s
        skew_s = lead_of(self.setup.config, self.setup.records).skew_s
        self.handle(Observed(heard_wall_s, samples, skew_s))

    def _read_overrides(self) -> None:
        pins, problem = self.state.pins, ""
        try:
            pins = dict(self.setup.read_pins())
        except ConfigError as error:
            problem = str(error)
        if problem and problem != self._problem:
            self._report(f"{problem}; pins stay as they were")
        self._problem = problem
        if pins != self.state.pins:
            self.handle(Pinned(self._clock.wall_s(), pins))

    def _rehearse(self, now_s: float) -> None:
        rehearsal = self.rehearsal
        if rehearsal is None or self._begun(rehearsal, now_s):
            return
        found = rehearsal.poll()
        if found is None:
            return
        if found.failed:
            self._failed(found.reason, now_s)
            return
        self._failures, self.state.rehearsal_failed = 0, ""
        if self.state.phase == "search":
            self.state.measured = found.measured
        now_wall_s = self._clock.wall_s()
        if found.weights is None:
            self.handle(NothingBetter(now_wall_s, found.reason))
        else:
            self.handle(Proposed(now_wall_s, found.weights, found.reason))
        self._begun(rehearsal, now_s)  # another one at once

    def _begun(self, rehearsal: Rehearsal, now_s: float) -> bool:
        """Begin the rehearsal that is asked for, or due again; whether there was one."""
        if self.state.phase != "search":
            self._due = None  # nobody waits for it any more
        if self._due is None or now_s < self._due[0]:
            return False
        reason, self._due = self._due[1], None
        try:
            rehearsal.start(self.state, reason)
        except OSError as error:
            self._failed(f"the rehearsal cannot be begun: {error}", now_s)
        return True

    def _failed(self, reason: str, now_s: float) -> None:
        """Begin a rehearsal again later: one that searched nothing is no evidence against the search."""
        if self.state.phase != "search":
            return
        wait_s = min(RETRY_S * 2.0**self._failures, MAX_RETRY_S)
        self._failures = min(self._failures + 1, 16)
        self._due = now_s + wait_s, f"once more, because {reason}"
        self.state.rehearsal_failed = reason
        self._report(f"{reason}; once more in {wait_s:.0f} s")
