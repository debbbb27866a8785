"""The learner's loop: read what is new, hold a round when one is due, persist, publish; let the trial go on.

Owns the order within a tick. All it needs is brought to it: tests drive it with a clock and a disk of their
own.

Rules
- Memory first, model file second: whoever is killed in between publishes after the restart, and what was read
  since the last memory is read again. Nothing counts twice and nothing is lost.
- What cannot be written is told once and tried again; pickers keep what they have.
- Whoever lost the lock writes nothing any more; it is beaten within whatever takes long.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from epp.learn.feed import LogFeed
from epp.learner.rounds import Learner
from epp.tune.lock import Heart
from epp.tune.steps import ClockSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from epp.clock import Clock
    from epp.learn.disk import ModelDisk
    from epp.learn.places import ModelPlaces
    from epp.learn.publish import Publisher
    from epp.learn.store import MemoryStore
    from epp.learner.rounds import Round
    from epp.learner.settings import LearnerSettings
    from epp.policies.reward_model import RewardModel
    from epp.tune.audit import Audit
    from epp.tune.lock import TunerLock
    from epp.tune.tuner import Tuner

#: Without news the status is written so often.
STATUS_S = 5.0
#: A memory that could not be written is tried again so often.
_RETRY_S = 5.0


class Loop:
    """Drives a learner. Open it once, then tick.

    Args:
        settings: of the learner.
        places: where everything lies.
        disk: the file system.
        records: folder of the flight recorder.
        store: of the memory.
        publisher: of the model file.
        audit: the audit log.
        lock: held.
        clock: the time.
        tell: takes sentences for the log.
    """

    def __init__(
        self,
        *,
        settings: LearnerSettings,
        places: ModelPlaces,
        disk: ModelDisk,
        records: Path,
        store: MemoryStore,
        publisher: Publisher,
        audit: Audit,
        lock: TunerLock,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._places, self._disk, self._records = settings, places, disk, records
        self._store, self._publisher, self._audit = store, publisher, audit
        self._lock, self._clock, self._tell = lock, clock, tell
        #: Beats the lock, and those of the trial.
        self.heart = Heart(lock, clock, self._once)
        self._steps = ClockSteps(clock.mono_s(), clock.wall_s())
        self._status_s = self._retry_s = float("-inf")
        self._unsaved = False
        self._told: set[str] = set()
        #: Tries the learned policy against the heuristic; None where nothing is to be tried.
        self.trial: Tuner | None = None
        self.learner: Learner
        self._feed: LogFeed

    def open(self) -> None:
        """Read the memory; nothing is written before the first tick."""
        found = self._store.load()
        memory, feed = found if found is not None else (None, None)
        beat = self.heart.tick
        self.learner = Learner(self._settings, memory=memory, on_progress=beat)
        features = self._settings.network.features
        self._feed = LogFeed(self._records, features=features, tell=self._tell, state=feed, on_progress=beat)
        now_wall_s = self._clock.wall_s()
        seen = self.learner.memory.seen
        self._audit.write(now_wall_s, "start" if found is None else "resume", seen=seen)

    @property
    def incumbent(self) -> RewardModel | None:
        """The model in force."""
        return self.learner.incumbent

    @property
    def feed(self) -> LogFeed:
        """The reader of the records."""
        return self._feed

    def tick(self) -> None:
        """One round of the loop; call it every second or so.

        Raises:
            LockLostError: another learner has taken over; nothing may be written any more.
        """
        now_s, now_wall_s = self._clock.mono_s(), self._clock.wall_s()
        self.heart.tick()
        self._look_at_the_clock(now_s, now_wall_s)
        for logged in self._feed.new(now_wall_s, give_up_s=self._settings.late_s):
            self.learner.add(logged)
        self._tell_retreats(now_wall_s)
        # The feed's position covers all that was read, so a round is held when all of it was taken.
        if self.learner.due():
            self._hold(now_wall_s)
        self._write()
        if self.trial is not None:
            self.trial.tick()

    def close(self) -> None:
        """Stop: the memory is written, the locks given back."""
        if self.trial is not None:
            self.trial.close()
        self._unsaved, self._retry_s = True, float("-inf")
        self._write()
        self._lock.release()

    def _look_at_the_clock(self, now_s: float, now_wall_s: float) -> None:
        """Requests under way when the clock steps have not waited for as long as it says."""
        before_wall_s = self._steps.wall_s
        stepped_s = self._steps.look(now_s, now_wall_s)
        if stepped_s:
            self._feed.stepped(before_wall_s, now_wall_s, wait_s=self._settings.late_s)
            self._tell(f"the clock stepped by {stepped_s:+.1f} s: requests around it teach nothing")
        self.learner.look_at_the_clock(now_wall_s, stepped_s=stepped_s)

    def _tell_retreats(self, now_wall_s: float) -> None:
        retreats, self.learner.retreats = self.learner.retreats, []
        for reason in retreats:
            self._tell(f"the model in force is taken away, the heuristic decides: {reason}")
            self._audit.write(now_wall_s, "retreat", reason=reason)
            self._unsaved, self._retry_s = True, float("-inf")
            self._status_s = float("-inf")

    def _hold(self, now_wall_s: float) -> None:
        began_s = self._clock.mono_s()
        self.learner.train(now_wall_s)
        held = self.learner.last
        assert held is not None  # noqa: S101 - a round was just held
        took_s = self._clock.mono_s() - began_s
        self._tell(f"round {held.number}, {held.seen} requests seen: {held.verdict.reason} ({took_s:.1f} s)")
        if held.withdrawn:
            self._tell("the model in force is withdrawn; the heuristic decides")
        self._audit.write(now_wall_s, "round", **round_facts(held))
        self._unsaved, self._retry_s = True, float("-inf")
        self._status_s = float("-inf")

    def _write(self) -> None:
        now_s = self._clock.mono_s()
        if self._unsaved and now_s >= self._retry_s:
            self._lock.check()
            try:
                self._store.save(self.learner.memory, self._feed.state)
                self._unsaved = False
                self._told.clear()
            except OSError as error:
                self._once(f"cannot write the learner's memory: {error}; trying again")
                self._retry_s = now_s + _RETRY_S
        if now_s - self._status_s >= STATUS_S:
            self._publisher.look()
        if not self._unsaved:
            self._publisher.bring(self.learner.in_force(self._clock.wall_s()))
        if now_s - self._status_s >= STATUS_S:
            self._status_s = now_s
            self._tell_status()

    def _tell_status(self) -> None:
        content = msgspec.json.encode(status_facts(self.learner, self._feed, self._clock.wall_s()))
        try:
            self._disk.replace(self._places.status, content)
        except OSError as error:
            self._once(f"{self._places.status}: {error}")

    def _once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)


def round_facts(held: Round) -> dict[str, Any]:
    """A round as plain values, for the audit log and the status."""
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
