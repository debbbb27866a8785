"""A tuner at work on one weights file: what it knows, where it is kept, and the order in which both change.

Owns the state in memory. Whoever drives it holds the lock. Everything goes through `handle`: the machine is
asked, the state is persisted, and only then is anything done; a publication that cannot be written stays
pending, and pickers go on with what they have until the trial's lease ends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from epp.errors import ConfigError
from epp.learn.sidecar.files import Files, Writes
from epp.learn.sidecar.memory import MemoryFile
from epp.learn.tuner import machine
from epp.learn.tuner.plan import Plan, parse_plan, render_plan
from epp.learn.tuner.record import forget_open
from epp.learn.tuner.state import TRIALS, Note, Publish, Rehearse, from_json, to_json
from epp.learn.tuner.tally import Baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from epp.learn.sidecar.paths import WeightsPaths
    from epp.learn.tuner.state import Action, Event, Rules, State

#: Weights that a trial ended are remembered up to so many, newest last.
_REFUSED = 50


def memory_at(paths: WeightsPaths, files: Files | None = None) -> MemoryFile[State]:
    """The memory of the tuner beside a weights file."""
    return MemoryFile(paths.memory, files or Files(), to_json, from_json)


class Session:
    """Keeps the state of a tuner and does what follows from it.

    Args:
        paths: where everything lies.
        files: the file system.
        rules: bounds and settings.
        policy: the policy that is tuned.
        file_bounds: of every weight, as pickers hold them.
        starting: weights in force where no file says other ones.
        tell: takes sentences for the log.
        warn: takes those of what is not as it should be.
    """

    def __init__(
        self,
        *,
        paths: WeightsPaths,
        files: Files,
        rules: Rules,
        policy: str,
        file_bounds: Mapping[str, tuple[float, float]],
        starting: Mapping[str, float],
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._paths, self._files, self._memory = paths, files, memory_at(paths, files)
        self.rules, self.policy, self._starting = rules, policy, starting
        self._file_bounds = file_bounds
        self._tell, self._warn, self._writes = tell, warn, Writes(warn)
        self._plan: Plan | None = None
        self._rendered: bytes | None = None
        self._unsaved = False
        self.rehearse = ""
        self.state: State

    def open(self, now_wall_s: float) -> None:
        """Take up where the last tuner was, or begin; to change it by an operator's word.

        Nothing is judged: what came since that tuner stopped is on file, and nobody has read it.

        Raises:
            OSError: the weights file cannot be read, or not be put aside where it says nothing.
            EppError: the memory is there and cannot be read.
        """
        self.load(now_wall_s)
        self.state.published = ""  # perhaps it never was

    def load(self, now_wall_s: float) -> None:
        """The first half of a start: the state as it was left, which has not heard yet what time it is.

        What other settings and bounds ask for is done here already: what came meanwhile is judged by them.

        Raises:
            OSError: the weights file cannot be read, or not be put aside where it says nothing.
            EppError: the memory is there and cannot be read.
        """
        found = self._memory.load()
        if found is not None and found.policy != self.policy:
            self._warn(f"the memory is of policy {found.policy!r}, not {self.policy!r}: beginning anew")
            found = None
        if found is None:
            weights = {**self._starting, **self._in_file()}
            self.state = machine.start(self.policy, weights, self.rules, now_wall_s)
            return
        self.state = found
        self._do(machine.settle(found, self.rules, now_wall_s))

    def resume(self, now_wall_s: float) -> None:
        """The second half: what was perhaps not done, under what is configured now."""
        self._do(machine.resume(self.state, self.rules, now_wall_s))
        self.state.settings = msgspec.to_builtins(self.rules.settings)

    def handle(self, event: Event) -> None:
        """One event, and all that follows from it."""
        self._do(machine.step(self.state, event, self.rules))

    def break_schedule(self) -> None:
        """Open blocks mean nothing any more; the schedule, or a baseline, begins anew with the next event."""
        record = msgspec.structs.replace(self.state.record)
        forget_open(record)
        self.state = msgspec.structs.replace(self.state, trial=None, record=record, baseline=Baseline())

    def save(self, *, cursor: str) -> bool:
        """Persist, then publish what is pending; whether all of it is on disk."""
        self.state.cursor = cursor
        self._unsaved = not self._writes.attempt("the tuner's state", lambda: self._memory.save(self.state))
        return not self._unsaved and self._publish()

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return self._unsaved or self._plan is not None

    def rewrite(self, content: bytes | None) -> None:
        """Write the plan again where the file does not hold it.

        Args:
            content: of the file now.
        """
        if self._plan is None and content != self._rendered:
            who = "is gone" if content is None else "was changed by somebody else"
            self._warn(f"{self._paths.weights} {who}; written again (pins belong into the overrides file)")
            self._plan = machine.plan_of(self.state)

    def _do(self, outcome: tuple[State, list[Action]]) -> None:
        before = self.state
        self.state, actions = outcome
        self.state.search = searched(before, self.state)
        for action in actions:
            if isinstance(action, Publish):
                self._plan = action.plan
            elif isinstance(action, Rehearse):
                self.rehearse = action.reason
            elif isinstance(action, Note):
                self._note(action)
        self._unsaved = self._unsaved or bool(actions)

    def _note(self, note: Note) -> None:
        moved = f"{note.before} -> {note.after}: " if note.before != note.after else ""
        self._tell(moved + note.reason)

    def _publish(self) -> bool:
        if self._plan is None:
            return True
        content = render_plan(self._plan)
        # Nothing leaves this process that a picker would have to refuse.
        parse_plan(content, str(self._paths.weights), policy=self.policy, bounds=self._file_bounds)
        if not self._writes.attempt(
            "the weights file", partial(self._files.replace, self._paths.weights, content)
        ):
            return False
        self._plan, self._rendered = None, content
        return True

    def _in_file(self) -> Mapping[str, float]:
        """Weights of a file that an earlier tuner, or a person, left."""
        content = self._files.read(self._paths.weights)
        if content is None:
            return {}
        source = str(self._paths.weights)
        try:
            plan = parse_plan(content, source, policy=self.policy, bounds=self._file_bounds)
        except ConfigError as error:
            aside = self._paths.unreadable
            self._files.replace(aside, content)
            self._warn(f"{error}; put aside as {aside}, beginning with the configuration's weights")
            return {}
        return plan.weights


def searched(before: State, after: State) -> dict[str, Any]:
    """State of the search after a step: what was proposed is refused from now on where it was tried in vain.

    Only what a trial ended, or an operator took back, says anything of the weights: a proposal that a pin or
    a freeze kept from its trial may be made again.
    """
    search = after.search
    proposed = search.get("proposed")
    in_vain = before.phase in TRIALS and after.fruitless > before.fruitless
    taken_back = after.history != before.history and after.history[-1].how == "rolled-back"
    if not proposed or not (in_vain or (taken_back and proposed.items() <= before.incumbent.items())):
        return search
    refused = [*search.get("refused", []), proposed][-_REFUSED:]
    return {**{key: value for key, value in search.items() if key != "proposed"}, "refused": refused}
