"""Which agents may keep their contexts in the engines' KV caches, and which wait their turn.

A program is a session that comes back again and again with a long context. Each engine has an active set:
programs whose contexts together fit its KV cache, idle ones included. Turns of active programs go home at
once; those of others wait until there is room for the whole context. What is held is therefore never much
more than the caches keep, and an active program finds its context.

A pure state machine: it takes the instant and says who goes where; it sends nothing and keeps no queue.

Rules
- A program is admitted where the sum of contexts is at most `ADMIT` of the KV cache: at home first, else
  where there is most room. Beyond `PAUSE` programs lose their places, for contexts grow.
- Idle programs that cannot be back before the engine could compute their context again lose their place when
  another program needs it (the lease: KV cache x prefill time a token).
- A turn that waited longer than the age bound drains one engine: there programs that ran for a quantum lose
  their place, at the end of their turn. Without the quantum that would be the thrash itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Shares of an engine's KV cache: contexts up to which a program is admitted, and beyond which one is paused.
ADMIT, PAUSE = 0.95, 1.05
#: Most of an engine's KV cache that is left to traffic which belongs to no program.
MOST_OTHERS = 0.5
#: Time over which the guard takes the mean, and the shares of engine time at which it lets programs be held
#: and lets them go again.
GUARD_S, GUARD_ON, GUARD_OFF = 120.0, 0.20, 0.15

NOWHERE = -1


@dataclass(slots=True, eq=False)
class Program:
    """One session.

    Attributes:
        known: it names itself, or has come back; others never wait.
        home: slot of the engine that has its context, `NOWHERE` before its first turn and once that is gone.
        context_tokens: tokens of its last prompts and answers.
        shared_tokens: of these, what other programs send as well.
        active: it has a place in its home's set.
        running: turns that are at an engine.
        idle_since_s: when it had no turn there any more.
        admitted_s: since when it is active.
    """

    known: bool = False
    home: int = NOWHERE
    context_tokens: float = 0.0
    shared_tokens: float = 0.0
    active: bool = False
    running: int = 0
    idle_since_s: float = 0.0
    admitted_s: float = 0.0

    @property
    def tokens(self) -> float:
        """What of a KV cache it alone needs."""
        return max(self.context_tokens - self.shared_tokens, 0.0)


@dataclass(slots=True)
class _Engine:
    """An engine's set.

    Attributes:
        capacity_tokens: of its KV cache.
        lease_s: how long it takes to compute all of that.
        used_tokens: of the active programs, kept beside them.
        others_tokens: what other traffic has put into the cache within a lease, by `others_s`.
    """

    capacity_tokens: float
    lease_s: float
    active: dict[Program, None] = field(default_factory=dict)
    used_tokens: float = 0.0
    others_tokens: float = 0.0
    others_s: float = 0.0

    def room_tokens(self, share: float, now_s: float) -> float:
        """Return what is left up to a share of the cache, negative where that is exceeded."""
        others = self.others_tokens * _left(now_s - self.others_s, self.lease_s)
        mine = self.capacity_tokens - min(others, MOST_OTHERS * self.capacity_tokens)
        return share * mine - self.used_tokens


class ProgramSets:
    """The active sets of all engines.

    Args:
        quantum_s: how long a program keeps its place before one that waited too long may have it.
        age_s: how long that is.
    """

    def __init__(self, quantum_s: float, age_s: float) -> None:
        self.quantum_s, self.age_s = quantum_s, age_s
        self._engines: dict[int, _Engine] = {}
        self._draining: tuple[int, Program] | None = None

    def set_engine(self, slot: int, capacity_tokens: float, prefill_s_per_token: float) -> None:
        """Say what an engine's KV cache holds, and how fast it fills it."""
        engine = self._engines.get(slot)
        lease_s = capacity_tokens * prefill_s_per_token
        if engine is None:
            self._engines[slot] = _Engine(capacity_tokens, lease_s)
        else:
            engine.capacity_tokens, engine.lease_s = capacity_tokens, lease_s

    def forget(self, slot: int) -> None:
        """Forget an engine that left or lost its cache; its programs are paused, and at home nowhere."""
        engine = self._engines.pop(slot, None)
        for program in () if engine is None else engine.active:
            program.active, program.home = False, NOWHERE

    def engines(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield slot, active programs, their tokens and the KV cache's of each engine."""
        for slot, engine in self._engines.items():
            yield slot, len(engine.active), engine.used_tokens, engine.capacity_tokens

    def knows(self, slot: int) -> bool:
        """Tell whether an engine's KV cache is known: no other one has a set."""
        return slot in self._engines

    def count_others(self, slot: int, tokens: float, now_s: float) -> None:
        """Count what a request that belongs to no program puts into an engine's cache."""
        if engine := self._engines.get(slot):
            left = _left(now_s - engine.others_s, engine.lease_s)
            engine.others_tokens, engine.others_s = engine.others_tokens * left + tokens, now_s

    def place(self, program: Program, slots: Collection[int], waited_s: float, now_s: float) -> int | None:
        """Admit a program that is not active; return the slot of its engine, None where it has to wait.

        Args:
            program: which one; its tokens are those of the turn that waits.
            slots: of the engines that may serve it.
            waited_s: how long its turn has waited.
            now_s: the instant.
        """
        slot = self._with_room(program, slots, now_s)
        if slot is None:
            slot = self._reclaim(program, slots, waited_s, now_s)
        if slot is not None:
            self._admit(program, slot, now_s)
        return slot

    def _with_room(self, program: Program, slots: Collection[int], now_s: float) -> int | None:
        rooms = {slot: self._engines[slot].room_tokens(ADMIT, now_s) for slot in slots if self.knows(slot)}
        if rooms.get(program.home, -math.inf) >= program.tokens:
            return program.home
        most = max(rooms, key=rooms.__getitem__, default=None)
        if most is None:
            return None
        # A context that is larger than a cache alone has it for itself.
        fits = rooms[most] >= program.tokens or not self._engines[most].active
        return most if fits else None

    def _reclaim(self, program: Program, slots: Collection[int], waited_s: float, now_s: float) -> int | None:
        """Take places from idle programs where that makes room: of expired leases, and of old ones by age."""
        aged = waited_s >= self.age_s
        known = sorted(
            (slot for slot in slots if self.knows(slot)),
            key=lambda slot: (slot != program.home, -self._engines[slot].room_tokens(ADMIT, now_s)),
        )
        for slot in known:
            engine = self._engines[slot]
            short = program.tokens - engine.room_tokens(ADMIT, now_s)
            losers = self._losers(engine, short, now_s, aged=aged)
            if losers is not None:
                self._pause_all(losers)
                return slot
        if aged and known:
            self._drain(program, known, now_s)
        return None

    def _losers(self, engine: _Engine, short: float, now_s: float, *, aged: bool) -> list[Program] | None:
        """Choose idle programs whose places make up for what is short; None where they do not."""
        found = list[Program]()
        for program in self._idle(engine, now_s, aged=aged):
            found.append(program)
            short -= program.tokens
            if short <= 0.0:
                return found
        return None

    def _idle(self, engine: _Engine, now_s: float, *, aged: bool) -> list[Program]:
        """List who may lose their place: leases that ended first, then who ran longest."""
        idle = [program for program in engine.active if not program.running]
        expired = [one for one in idle if now_s - one.idle_since_s >= engine.lease_s]
        old = [one for one in idle if aged and one not in expired and self._ran(one, now_s)]
        return [
            *sorted(expired, key=lambda one: one.idle_since_s),
            *sorted(old, key=lambda one: one.admitted_s),
        ]

    def _ran(self, program: Program, now_s: float) -> bool:
        return now_s - program.admitted_s >= self.quantum_s

    def _drain(self, program: Program, slots: Collection[int], now_s: float) -> None:
        """Pause who may be at one engine, the same until the program is admitted: turns end one by one."""
        draining = self._draining
        if draining is None or draining[1] is not program or draining[0] not in slots:
            sizes = {slot: self._displaceable(self._engines[slot], now_s) for slot in slots}
            best = max(slots, key=lambda slot: sizes[slot])
            self._draining = draining = best, program
        self._pause_all(self._idle(self._engines[draining[0]], now_s, aged=True))

    def _displaceable(self, engine: _Engine, now_s: float) -> float:
        old = sum(program.tokens for program in engine.active if self._ran(program, now_s))
        return old + engine.room_tokens(ADMIT, now_s)

    def _pause_all(self, programs: Collection[Program]) -> None:
        for program in programs:
            self.pause(program)

    def _admit(self, program: Program, slot: int, now_s: float) -> None:
        engine = self._engines[slot]
        program.home, program.active, program.admitted_s = slot, True, now_s
        program.idle_since_s = now_s
        engine.active[program] = None
        engine.used_tokens += program.tokens
        if self._draining is not None and self._draining[1] is program:
            self._draining = None

    def pause(self, program: Program) -> None:
        """Take a program's place; its home stays, for its context may still be there."""
        if not program.active:
            return
        program.active = False
        engine = self._engines[program.home]
        del engine.active[program]
        engine.used_tokens = engine.used_tokens - program.tokens if engine.active else 0.0

    def resize(self, program: Program, context_tokens: float, shared_tokens: float) -> None:
        """Take what a program's context is by now."""
        before = program.tokens
        program.context_tokens, program.shared_tokens = context_tokens, shared_tokens
        if program.active:
            self._engines[program.home].used_tokens += program.tokens - before

    def shrink(self, slot: int, now_s: float) -> None:
        """Pause idle programs of an engine while their contexts are more than it keeps.

        Those that idled longest beyond their lease go first, then those that ran longest.
        """
        engine = self._engines.get(slot)
        if engine is None or engine.room_tokens(PAUSE, now_s) >= 0.0:
            return
        idle = sorted((one for one in engine.active if not one.running), key=lambda one: one.admitted_s)
        idle.sort(key=lambda one: now_s - one.idle_since_s < engine.lease_s)
        for program in idle:
            if engine.room_tokens(PAUSE, now_s) >= 0.0:
                return
            self.pause(program)

    def sent(self, program: Program, slot: int, now_s: float) -> None:
        """Note that a turn went to an engine, wherever it was to go: its context is there now."""
        if program.active and program.home != slot:
            self.pause(program)
        program.home = slot
        if not program.active and self.knows(slot):
            self._admit(program, slot, now_s)
        program.running += 1

    def ended(self, program: Program, now_s: float) -> None:
        """Note that a turn is over."""
        program.running -= 1
        program.idle_since_s = now_s


class Guard:
    """Says whether it pays to hold programs: computing their contexts again would take much engine time.

    That is what turns would cost if nothing but what programs share were cached, as a mean of two minutes.
    """

    def __init__(self) -> None:
        self.holds = False
        self._work_s, self._at_s = 0.0, 0.0

    def count(self, prefill_s: float, now_s: float) -> None:
        """Count a turn by the time that its context takes to compute."""
        self._work_s = self._work_s * _left(now_s - self._at_s, GUARD_S) + prefill_s
        self._at_s = now_s

    def share(self, engines: int, now_s: float) -> float:
        """Return the share of engine time."""
        return self._work_s * _left(now_s - self._at_s, GUARD_S) / (GUARD_S * max(engines, 1))

    def look(self, engines: int, now_s: float) -> bool:
        """Decide whether programs are held from now on."""
        share = self.share(engines, now_s)
        self.holds = share >= (GUARD_OFF if self.holds else GUARD_ON)
        return self.holds


def _left(passed_s: float, constant_s: float) -> float:
    """Return what is left of a fading sum."""
    return math.exp(-max(passed_s, 0.0) / constant_s) if constant_s > 0.0 else 0.0
