"""The learner's loop: read what is new, hold a round when one is due, persist, publish; let the trial go on.

Owns the order within a tick. All it needs is brought to it: tests drive it with a clock and a disk of their
own.

Rules
- Memory first, model file second: whoever is killed in between publishes after the restart, and what was read
  since the last memory is read again. Nothing counts twice and nothing is lost.
- What cannot be written is reported once and tried again; pickers keep what they have.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from epp.errors import EppError
from epp.learn.reward_model.feed import LogFeed
from epp.learn.reward_model.publish import Publisher
from epp.learn.reward_model.rounds import Learner
from epp.learn.reward_model.store import decode, encode, memory_of, saved_of
from epp.learn.sidecar.files import Writes
from epp.learn.sidecar.memory import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.learn.reward_model.rounds import Memory, Round
    from epp.learn.reward_model.settings import LearnerSettings
    from epp.learn.sidecar.feed import State as FeedState
    from epp.learn.sidecar.files import Files
    from epp.learn.sidecar.paths import ModelPaths
    from epp.learn.tuner.tuner import Tuner
    from epp.policies.reward_model import RewardModel

#: Without news the status is written so often.
STATUS_S = 5.0
#: A memory that could not be written is tried again so often.
_RETRY_S = 5.0


class Loop:
    """Drives a learner. Open it once, then tick; whoever makes one holds the lock.

    Args:
        settings: of the learner.
        paths: where everything lies.
        files: the file system.
        records: folder of the flight recorder.
        clock: the time.
        tell: takes sentences for the log.
    """

    def __init__(
        self,
        *,
        settings: LearnerSettings,
        paths: ModelPaths,
        files: Files,
        records: Path,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._paths, self._files, self._records = settings, paths, files, records
        self._clock, self._tell = clock, tell
        self._memory = MemoryFile(paths.memory, files, encode, decode)
        self._writes = Writes(tell)
        self._publisher = Publisher(paths, files, self._writes, tell)
        self._status_s = self._retry_s = float("-inf")
        self._unsaved = False
        #: Tries the learned policy against the heuristic; None where nothing is to be tried.
        self.trial: Tuner | None = None
        self.learner: Learner
        self.feed: LogFeed

    def open(self) -> None:
        """Read the memory; nothing is written before the first tick.

        Raises:
            EppError: the memory is there and cannot be read.
        """
        memory, feed = self._remembered()
        self.learner = Learner(self._settings, memory=memory)
        features = self._settings.network.features
        self.feed = LogFeed(self._records, features=features, tell=self._tell, state=feed)

    def _remembered(self) -> tuple[Memory, FeedState] | tuple[None, None]:
        saved = self._memory.load()
        if saved is None:
            return None, None
        if saved.features != self._settings.network.features:
            self._tell(f"{self._paths.memory}: it is of other features; learning begins anew")
            return None, None
        try:
            return memory_of(saved, self._settings), saved.feed
        except ValueError as error:
            raise EppError(f"{self._paths.memory}: {error}") from error

    @property
    def incumbent(self) -> RewardModel | None:
        """The model in force."""
        return self.learner.incumbent

    def tick(self) -> None:
        """One round of the loop; call it every second or so."""
        now_wall_s = self._clock.wall_s()
        stepped_s = self.feed.check_clock(self._clock, wait_s=self._settings.late_s)
        if stepped_s:
            self._tell(f"the clock stepped by {stepped_s:+.1f} s: requests around it teach nothing")
        self.learner.look_at_the_clock(now_wall_s, stepped_s=stepped_s)
        for logged in self.feed.new(now_wall_s, give_up_s=self._settings.late_s):
            self.learner.add(logged)
        for reason in self.learner.retreats:
            self._tell(f"the model in force is taken away, the heuristic decides: {reason}")
            self._hurry()
        self.learner.retreats.clear()
        # The feed's position covers all that was read, so a round is held when all of it was taken.
        if self.learner.due():
            self._hold(now_wall_s)
        self._write()
        if self.trial is not None:
            self.trial.tick()

    def close(self) -> None:
        """Stop: the memory is written."""
        if self.trial is not None:
            self.trial.close()
        self._hurry()
        self._write()

    def _hurry(self) -> None:
        self._unsaved, self._retry_s, self._status_s = True, float("-inf"), float("-inf")

    def _hold(self, now_wall_s: float) -> None:
        began_s = self._clock.mono_s()
        self.learner.train(now_wall_s)
        held = self.learner.last
        assert held is not None  # noqa: S101 - a round was just held
        took_s = self._clock.mono_s() - began_s
        self._tell(f"round {held.number}, {held.seen} requests seen: {held.verdict.reason} ({took_s:.1f} s)")
        if held.withdrawn:
            self._tell("the model in force is withdrawn; the heuristic decides")
        self._hurry()

    def _write(self) -> None:
        now_s = self._clock.mono_s()
        if self._unsaved and now_s >= self._retry_s:
            saved = saved_of(self.learner.memory, self.feed.state, self._settings)
            self._unsaved = not self._writes.attempt(
                "the learner's memory", partial(self._memory.save, saved)
            )
            self._retry_s = now_s + _RETRY_S
        look = now_s - self._status_s >= STATUS_S
        if look:
            self._publisher.look()
        if not self._unsaved:
            self._publisher.bring(self.learner.in_force(self._clock.wall_s()))
        if look:
            self._status_s = now_s
            content = msgspec.json.encode(status_facts(self.learner, self.feed, self._clock.wall_s()))
            self._writes.attempt("the status", partial(self._files.replace, self._paths.status, content))


def round_facts(held: Round) -> dict[str, Any]:
    """A round as plain values."""
    facts = asdict(held)
    facts["round"] = facts.pop("number")
    facts["held_wall_s"] = round(facts.pop("at_wall_s"), 3)
    facts["forgetting"] = {str(number): error_ms for number, error_ms in held.forgetting.items()}
    return facts


def status_facts(learner: Learner, feed: LogFeed, now_wall_s: float) -> Mapping[str, Any]:
    """Where a learner stands, as plain values."""
    memory, model = learner.memory, learner.incumbent
    data, guard = learner.settings.data, memory.guard
    return {
        "at_wall_s": round(now_wall_s, 3),
        "seen": memory.seen,
        "silent": memory.silent,
        "recent": len(memory.pools.recent),
        "older": len(memory.pools.older),
        "rounds": memory.rounds,
        "passed": memory.passed,
        "missing": max((data.every if memory.rounds else data.first) - memory.since, 0),
        "damaged": feed.state.damaged,
        "given_up": feed.state.given_up,
        "waiting": len(feed.state.waiting),
        "model": None
        if model is None
        else {
            "version": model.version,
            "round": model.round,
            "trained_at_s": model.trained_at_s,
            "samples": model.samples,
            "heads": list(model.heads),
            "classes": list(model.classes),
            "congestion_ms": model.congestion_ms,
            "validation": dict(model.validation),
        },
        "guard": {
            **guard.watch.figures(),
            "heuristic_blocks": float(len(guard.watch.baseline)),
            "retreats": float(guard.retreats),
            "held_s": max(guard.held_until_wall_s - now_wall_s, 0.0),
            "heuristics_turn": float(model is not None and learner.rests(now_wall_s)),
        }
        if learner.settings.guarded
        else None,
        "last": None if learner.last is None else round_facts(learner.last),
    }
