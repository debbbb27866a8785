"""Which agents may keep their contexts in the engines' KV caches, and which wait their turn.

A program is a session that comes back again and again with a long context. Each engine has an active set:
programs whose contexts together fit its KV cache, idle ones included. Turns of active programs go home at
once; those of others wait until there is room for the whole context. What is held is therefore never much
more than the caches keep, and an active program finds its context.

A pure state machine: it takes the instant and says who goes where; it sends nothing and keeps no queue.

Rules
- While no engine is filled to `AMPLE`, programs go where the policy sends them.
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
    from collections.abc import Callable, Collection

#: Shares of an engine's KV cache: contexts up to which programs need no place, up to which they are admitted,
#: and beyond which one is paused.
AMPLE, ADMIT, PAUSE = 0.8, 0.95, 1.05
#: The share below which a context is not worth a place: it is soon computed again.
SMALL = 0.005
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
        busy_until_s: until when other pickers are believed to have a turn of it at an engine.
        name: by which its next turn is found (`epp.schedule.program_book`), 0 for none.
        told: the name by which other pickers know it, 0 for none.
        version: counts changes at all pickers: the higher one holds.
        theirs: another picker told of it last.
        unheld_until_s: until when its turns are not held, for its caller gave one up.
    """

    known: bool = False
    home: int = NOWHERE
    context_tokens: float = 0.0
    shared_tokens: float = 0.0
    active: bool = False
    running: int = 0
    idle_since_s: float = 0.0
    admitted_s: float = 0.0
    busy_until_s: float = -math.inf
    name: int = 0
    told: int = 0
    version: int = 0
    theirs: bool = False
    unheld_until_s: float = -math.inf

    @property
    def tokens(self) -> float:
        """What of a KV cache it alone needs."""
        return max(self.context_tokens - self.shared_tokens, 0.0)

    def is_busy(self, now_s: float) -> bool:
        """Tell whether a turn of it is at an engine, sent by any picker."""
        return self.running > 0 or now_s < self.busy_until_s


@dataclass(slots=True)
class _Engine:
    """An engine's set.

    Attributes:
        capacity_tokens: of its KV cache.
        lease_s: how long it takes to compute all of that.
        active: programs that have a place.
        used_tokens: of these, kept beside them.
        others_tokens: what other traffic has put into the cache within a lease, by `others_s`.
        elsewhere: the same of other pickers, by picker, as of now.
    """

    capacity_tokens: float
    lease_s: float
    active: dict[Program, bool] = field(default_factory=dict)
    used_tokens: float = 0.0
    others_tokens: float = 0.0
    others_s: float = 0.0
    elsewhere: dict[str, float] = field(default_factory=dict)

    def others(self, now_s: float) -> float:
        """Return what other traffic has in the cache by now."""
        return self.sent_others(now_s) + sum(self.elsewhere.values())

    def sent_others(self, now_s: float) -> float:
        """Return that part of it which this picker sent."""
        return self.others_tokens * _left(now_s - self.others_s, self.lease_s)

    def room_tokens(self, now_s: float, share: float = ADMIT) -> float:
        """Return what is left up to a share of the cache, negative where that is exceeded."""
        others = min(self.others(now_s), MOST_OTHERS * self.capacity_tokens)
        return share * (self.capacity_tokens - others) - self.used_tokens

    def fits(self, program: Program, now_s: float) -> bool:
        """Tell whether there is room for a program; one that is larger than the cache has it for itself."""
        return not self.active or self.room_tokens(now_s) >= program.tokens

    def losers(self, now_s: float, least_run_s: float) -> list[Program]:
        """List the idle programs that may lose their place.

        First are those whose lease is over, the longest idle first; then those that ran for so long.
        """
        idle = [one for one in self.active if not one.is_busy(now_s)]
        over = [one for one in idle if now_s - one.idle_since_s >= self.lease_s]
        ran = [one for one in idle if one not in over and now_s - one.admitted_s >= least_run_s]
        over.sort(key=lambda one: one.idle_since_s)
        return over + sorted(ran, key=lambda one: one.admitted_s)


class ProgramSets:
    """The active sets of all engines.

    Args:
        quantum_s: how long a program keeps its place before one that waited too long may have it.
        age_s: how long that is.

    Attributes:
        engines: those whose KV caches are known, by slot; no other one has a set.
        draining: slot of the engine that was last found to make room for a turn that waited too long,
            `NOWHERE` for none.
        on_change: called with a program whose state changed.
    """

    def __init__(self, quantum_s: float, age_s: float) -> None:
        self._quantum_s, self._age_s = quantum_s, age_s
        self.engines: dict[int, _Engine] = {}
        self.draining = NOWHERE
        self._drained: tuple[Program, int] | None = None
        self.on_change: Callable[[Program], None] = lambda _: None

    def set_engine(self, slot: int, capacity_tokens: float, prefill_s_per_token: float) -> None:
        """Say what an engine's KV cache holds, and how fast it fills it."""
        lease_s = capacity_tokens * prefill_s_per_token
        engine = self.engines.setdefault(slot, _Engine(capacity_tokens, lease_s))
        engine.capacity_tokens, engine.lease_s = capacity_tokens, lease_s

    def forget(self, slot: int) -> None:
        """Forget an engine that left or lost its cache; its programs are paused, and at home nowhere."""
        if engine := self.engines.pop(slot, None):
            for program in engine.active:
                program.active, program.home = False, NOWHERE

    def has_room(self, program: Program, slots: Collection[int], now_s: float) -> bool:
        """Tell whether a program has ample room wherever of these it goes."""
        tokens = 0.0 if program.active else program.tokens
        return all(self.engines[slot].room_tokens(now_s, AMPLE) >= tokens for slot in slots)

    def is_small(self, program: Program, slot: int) -> bool:
        """Tell whether a program's context is not worth a place at an engine, which may be unknown."""
        engine = self.engines.get(slot)
        return engine is None or program.tokens < SMALL * engine.capacity_tokens

    def count_others(self, slot: int, tokens: float, now_s: float) -> None:
        """Count what a request that belongs to no program puts into an engine's cache."""
        if engine := self.engines.get(slot):
            engine.others_tokens, engine.others_s = engine.sent_others(now_s) + tokens, now_s

    def place(
        self,
        program: Program,
        slots: Collection[int],
        waited_s: float,
        now_s: float,
        *,
        is_left: Callable[[int], bool] = lambda _: False,
    ) -> int | None:
        """Admit a program; return the slot of its engine, None where it has to wait.

        Args:
            program: which one; its tokens are those of the turn that waits.
            slots: of the engines that may serve it.
            waited_s: how long its turn has waited.
            now_s: the instant.
            is_left: tells whether room that is found in a slot is left to others.
        """
        if program.active:  # by another turn of it, meanwhile
            if program.home in slots:
                return program.home
            self.pause(program)
        if (found := self._find(program, slots, waited_s, now_s)) is None or is_left(found[0]):
            return None
        slot, losers = found
        while losers and not self.engines[slot].fits(program, now_s):  # sums round
            self.pause(losers.pop(0))
        self.admit(program, slot, now_s)
        return slot

    def _find(
        self, program: Program, slots: Collection[int], waited_s: float, now_s: float
    ) -> tuple[int, list[Program]] | None:
        """Find an engine with room, and who loses a place for it; one is drained for who waited too long."""
        engines = self.engines
        known = [slot for slot in slots if slot in engines]
        known.sort(key=lambda slot: (slot != program.home, -engines[slot].room_tokens(now_s)))
        for slot in known:
            if engines[slot].fits(program, now_s):
                return slot, []
        aged = waited_s >= self._age_s
        for slot in known:
            losers = engines[slot].losers(now_s, self._quantum_s if aged else math.inf)
            freed = sum(loser.tokens for loser in losers)
            if freed + engines[slot].room_tokens(now_s) >= program.tokens:
                return slot, losers
        if aged and known:
            self.draining = self._drain(program, known, now_s)
            for loser in engines[self.draining].losers(now_s, self._quantum_s):
                self.pause(loser)
        return None

    def _drain(self, program: Program, slots: list[int], now_s: float) -> int:
        """Choose the engine that makes room for a program, the same until then: turns end one by one."""
        if self._drained is None or self._drained[0] is not program or self._drained[1] not in slots:

            def room_tokens(slot: int) -> float:
                engine = self.engines[slot]
                ran = (one.tokens for one in engine.active if now_s - one.admitted_s >= self._quantum_s)
                return engine.room_tokens(now_s) + sum(ran)

            self._drained = program, max(slots, key=room_tokens)
        return self._drained[1]

    def admit(self, program: Program, slot: int, now_s: float) -> None:
        """Give a program a place at an engine."""
        program.admitted_s = program.idle_since_s = now_s
        self.set(program, slot, active=True)
        self.on_change(program)

    def set(self, program: Program, slot: int, *, active: bool) -> None:
        """Take where a program is at home, and whether it has a place there, without a word to others."""
        self._leave(program)
        program.home = slot
        if active and (engine := self.engines.get(slot)):
            program.active = engine.active[program] = True
            engine.used_tokens += program.tokens

    def pause(self, program: Program) -> None:
        """Take a program's place, if it has one; its home stays, for its context may still be there."""
        if program.active:
            self._leave(program)
            self.on_change(program)

    def _leave(self, program: Program) -> None:
        if program.active:
            program.active = False
            engine = self.engines[program.home]
            del engine.active[program]
            engine.used_tokens = engine.used_tokens - program.tokens if engine.active else 0.0

    def resize(self, program: Program, context_tokens: float, shared_tokens: float) -> None:
        """Take what a program's context is by now."""
        before = program.tokens
        program.context_tokens, program.shared_tokens = context_tokens, shared_tokens
        if program.active:
            self.engines[program.home].used_tokens += program.tokens - before

    def shrink(self, slot: int, now_s: float) -> None:
        """Pause idle programs of an engine while their contexts are more than it keeps."""
        if engine := self.engines.get(slot):
            for program in engine.losers(now_s, 0.0):
                if engine.room_tokens(now_s, PAUSE) >= 0.0:
                    return
                self.pause(program)

    def sent(self, program: Program, slot: int, now_s: float) -> None:
        """Note that a turn went to an engine, wherever it was to go: its context is there now."""
        program.running += 1
        if not program.active or program.home != slot:
            self.admit(program, slot, now_s)
        else:
            self.on_change(program)

    def ended(self, program: Program, now_s: float) -> None:
        """Note that a turn is over; who calls this tells `on_change`."""
        program.running, program.idle_since_s = program.running - 1, now_s


class Guard:
    """Says whether it pays to hold programs: computing their contexts again would take much engine time.

    That is what turns would cost if nothing but what programs share were cached, as a mean of two minutes.

    Attributes:
        holds: it does.
        share: of engine time.
        elsewhere: what turns at other pickers would cost, by picker, as `work_s` tells there.
    """

    def __init__(self) -> None:
        self.holds, self.share = False, 0.0
        self.elsewhere: dict[str, float] = {}
        self._work_s = self._at_s = 0.0

    def count(self, prefill_s: float, now_s: float) -> None:
        """Count a turn by the time that its context takes to compute."""
        self._work_s, self._at_s = self.work_s(now_s) + prefill_s, now_s

    def work_s(self, now_s: float) -> float:
        """Return what the turns of this picker would cost: a fading sum."""
        return self._work_s * _left(now_s - self._at_s, GUARD_S)

    def look(self, engines: int, now_s: float) -> bool:
        """Decide whether programs are held from now on."""
        work_s = self.work_s(now_s) + sum(self.elsewhere.values())
        self.share = work_s / (GUARD_S * max(engines, 1))
        self.holds = self.share >= (GUARD_OFF if self.holds else GUARD_ON)
        return self.holds


def _left(passed_s: float, constant_s: float) -> float:
    """Return what is left of a fading sum."""
    return math.exp(-max(passed_s, 0.0) / constant_s) if constant_s > 0.0 else 0.0
