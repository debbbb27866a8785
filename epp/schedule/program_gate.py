"""Hold the turns of programs that have no place: `epp.schedule.programs` beside queue and scheduler.

Owns which turns are held, and what the sets are told of engines and requests. Held turns wait in a queue of
their own: in its order of priorities, flows and arrival, which fills no engine's room, so that requests of no
program never wait for one. Whoever drives it sends what `poll` lets go.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from epp.schedule.feedback import DONE
from epp.schedule.program_book import ProgramBook
from epp.schedule.program_sharing import ProgramSharing, ProgramsState
from epp.schedule.programs import NOWHERE, PAUSE, Guard, Program, ProgramSets
from epp.schedule.queue import ANY, MOST_TURNS, RequestQueue, Waiter
from epp.signals.ledger import PENDING
from epp.signals.stored_responses import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from epp.config.schema import QueueSection
    from epp.schedule.decision import Decision, Outcome
    from epp.schedule.queue import BandState
    from epp.schedule.scheduler import Measured, Scheduler
    from epp.types import RequestInfo

#: Turns that a program has at engines at once: a key with more names no agent.
MOST_AT_ONCE = 8
#: While turns are held, places are looked for so often, and engines are asked for their caches. For so long
#: a place is left to turns at other pickers that go first.
LOOK_S = 1.0
#: Prefill that awaits its first token at an engine which is computing a context: held turns go elsewhere, for
#: what comes behind two contexts waits long. And for how long: an engine that always has as much to compute
#: takes them, too.
COLD_MS, COLD_S = 500.0, 10.0
#: Share of a KV cache that other traffic has taken of late: from there on half of the engines are kept from
#: held turns while the others compute contexts.
CHAT = 0.002
#: So many turns that callers gave up in a row, none of the others having waited as long, say that nobody here
#: waits so long: none is held for so long then, and none of a caller that gave one up.
GIVEN_UP, UNHELD_S = 3, 600.0
#: `ProgramGate.enter`: it is held.
HELD = -2


class ProgramGate:
    """Says which turns go home, which are held, and which are none of its business.

    Args:
        scheduler: whose requests they are.
        settings: bounds of what is held.

    Attributes:
        held: turns that wait for a place.
        sets: who has one.
        guard: whether anything is held at all.
        counts: turns that were held, and of these the ones forced, let go without a place, and the ones left,
            given up by their callers; tokens of agents' prompts, and those expected cached.
        longest_s: the longest that one was held.
        unheld_until_s: until when none is held, for callers do not wait.
        on_unheld: called when that begins, with the time that the last one waited.
    """

    def __init__(self, scheduler: Scheduler, settings: QueueSection) -> None:
        programs = settings.programs
        self.held, self.guard = RequestQueue(settings), Guard()
        self.sets = ProgramSets(programs.quantum_s, programs.age_s)
        self.counts = dict.fromkeys(("held", "forced", "left", "prompt", "cached"), 0)
        self.longest_s = 0.0
        self.unheld_until_s = self._left_s = -math.inf
        self.on_unheld: Callable[[float], None] = lambda _: None
        self._left_in_a_row, self._shortest_left_s = 0, math.inf
        self._book = ProgramBook(self.sets.pause)
        self._datastore, self._longest_hold_s = scheduler.datastore, programs.longest_hold_s
        self._turns: dict[str, tuple[Program, RequestInfo, int]] = {}
        self._busy_s: dict[int, float] = {}
        self._looked_s = self._asked_s = -math.inf
        self._sharing: ProgramSharing | None = None
        self._left: dict[int, float] = {}  # slots with a place that is left to other pickers, since when
        scheduler.datastore.on_restart["programs"] = self.sets.forget
        scheduler.on_end["programs"] = self.ended
        scheduler.on_stored["programs"] = self._stored

    @property
    def due_s(self) -> float:
        """When `poll` has something to do, whatever happens; infinite where nothing is held."""
        return min(self.held.due_s, self._looked_s + LOOK_S) if len(self.held) else math.inf

    def share(self, tell: Callable[..., None]) -> None:
        """Share programs from now on; ``tell`` asks for `state` to be told soon."""
        self._sharing = ProgramSharing(self._book, self.sets, self.guard, self._datastore, tell)
        self.held.tell = tell

    def state(self, now_s: float, *, whole: bool) -> ProgramsState | None:
        """Tell other pickers what changed, or with ``whole`` all that is active here."""
        draining = self.sets.draining if len(self.held) else NOWHERE
        return None if self._sharing is None else self._sharing.state(draining, now_s, whole=whole)

    def hear(
        self, origin: str, held: Mapping[int, BandState], programs: ProgramsState | None, now_s: float
    ) -> None:
        """Take what another picker tells of turns that are held there and of programs, nothing when gone."""
        self.held.hear(origin, held, now_s)
        self._ask_engines(now_s)
        if self._sharing is not None:
            self._sharing.hear(origin, programs, now_s)

    def enter(self, waiter: Waiter, measured: Measured, now_s: float) -> int | None:
        """Take a request that came.

        Args:
            waiter: how it would wait; is given its program.
            measured: the request, and who may serve it.
            now_s: the instant.

        Returns:
            The slot that it goes to now, `HELD`, or None where it goes on as any request does.

        Raises:
            NotAdmittedError: too much is held.
        """
        request, slots = measured.request, measured.found.slots.tolist()
        if not request.prompt_tokens:
            return None
        self._ask_engines(now_s)
        waiter.program = program = self._program_of(measured)
        known = [slot for slot in slots if slot in self.sets.engines]
        if not known or not self._is_gated(program, known[0], now_s):
            self.sets.pause(program)
            return None
        rate_ms = float(self._datastore.rates.block()[1, known].mean())
        self.guard.count(program.tokens * rate_ms / 1e3, now_s)
        if not self._holds(now_s) or waiter.deadline_s < math.inf:
            return None
        none_waits = not self.held.ahead_of(request.priority)
        if none_waits and self.sets.has_room(program, known, now_s):  # the policy balances as it does
            return None
        cached = measured.seen.cached_tokens - program.shared_tokens
        best = slots[int(cached.argmax())]
        if program.home == NOWHERE and best in known and cached.max() > program.tokens / 2:
            program.home = best  # as after a restart of this picker
            if self.sets.engines[best].room_tokens(now_s, PAUSE) >= program.tokens:
                self.sets.admit(program, best, now_s)
        if program.active and program.home in slots:
            self.sets.shrink(program.home, now_s)
            return program.home
        self.sets.pause(program)
        if none_waits and (slot := self.sets.place(program, slots, 0.0, now_s)) is not None:
            return slot
        waiter.best = waiter.others = frozenset(slots)
        waiter.expires_s = now_s + self._longest_hold_s
        self.held.put(waiter)
        waiter.held = True
        self.counts["held"] += 1
        return HELD

    def _program_of(self, measured: Measured) -> Program:
        """Find the program of a request, and take what its context is now."""
        request = measured.request
        program = self._book.find(request)
        tokens, shared = request.prompt_tokens + request.expected_output_tokens, program.shared_tokens
        if request.previous_response and not request.came_s:  # the engine puts it behind what it has
            tokens += program.context_tokens
        if not program.context_tokens and measured.parted:  # others begin alike
            shared = float(measured.seen.cached_tokens.max(initial=0.0))
        self._resize(program, tokens, shared)
        return program

    def _resize(self, program: Program, tokens: float, shared_tokens: float) -> None:
        """Take the tokens of a turn; a far longer context may be that of an agent beside this one."""
        if not program.running:
            self.sets.resize(program, max(tokens, program.context_tokens / 2), shared_tokens)

    def _is_gated(self, program: Program, slot: int, now_s: float) -> bool:
        worth = program.known and not self.sets.is_small(program, slot)
        return worth and program.running < MOST_AT_ONCE and now_s >= program.unheld_until_s

    def sent(self, program: Program | None, decision: Decision, slot: int, now_s: float) -> None:
        """Note that a request goes to an engine."""
        if program is None:
            return
        request, seen = decision.request, decision.snapshot
        if self._is_gated(program, slot, now_s):
            self.sets.sent(program, slot, now_s)
            self.counts["prompt"] += request.prompt_tokens
            self.counts["cached"] += round(float(seen.cached_tokens[decision.chosen]))
        else:
            self.sets.pause(program)
            program.home, program.running = slot, program.running + 1
            uncached = float(seen.uncached_tokens[decision.chosen])
            self.sets.count_others(slot, uncached + request.expected_output_tokens, now_s)
        self._turns[decision.id] = program, request, slot
        self._book.sent(program, request, decision.id)

    def ended(self, outcome: Outcome, now_s: float) -> None:
        """Note what became of a request; unknown ones are fine."""
        turn = self._turns.pop(outcome.id, None)
        if turn is None:
            return
        program, request, slot = turn
        expected_tokens, usage = request.expected_output_tokens, outcome.usage
        answer_tokens = usage.completion_tokens
        if answer_tokens is None:  # engines may tell it later, or not at all
            answer_tokens = round(expected_tokens)
        prompt_tokens = float(usage.prompt_tokens or request.prompt_tokens)
        if request.previous_response and not usage.prompt_tokens:
            prompt_tokens = program.context_tokens - expected_tokens
        self.sets.ended(program, now_s)
        self._resize(program, prompt_tokens + answer_tokens, program.shared_tokens)
        if outcome.cause in DONE:
            self._book.answered(program, request)
        self.sets.on_change(program)
        if request.last_turn and not program.running:
            self.sets.pause(program)
        self.sets.shrink(slot, now_s)

    def _stored(self, decision_id: str, response_id: str) -> None:
        if (program := self._book.stored(decision_id, key_of(response_id))) is not None:
            self.sets.on_change(program)

    def poll(self, now_s: float) -> Iterator[tuple[Waiter, int | None, str]]:
        """Yield what is let go by now: to an engine, or to any where that is None; and why, for people."""
        if not len(self.held):
            return
        self._looked_s = now_s
        self._ask_engines(now_s)
        for waiter in self.held.expire(now_s):
            self.counts["forced"] += 1
            yield self._let_go(waiter, now_s), None, "no place came in time"
        if self._holds(now_s):
            yield from self._places(now_s)
        else:
            for waiter in self.held.waiting()[:MOST_TURNS]:
                self.held.remove(waiter)
                yield self._let_go(waiter, now_s), None, "turns are held no longer"

    def _places(self, now_s: float) -> Iterator[tuple[Waiter, int, str]]:
        """Give places in the queue's order; who finds none keeps those behind from its engines."""
        free, back = self._ready(now_s), list[Waiter]()
        self.sets.draining, self._left, left_s = NOWHERE, {}, self._left
        drained = set(() if self._sharing is None else self._sharing.draining.values())

        def is_left(slot: int) -> bool:
            self._left[slot] = left_s.get(slot, now_s)
            return now_s - self._left[slot] < LOOK_S

        for _ in range(MOST_TURNS):
            waiter = self.held.take(lambda _: free)
            if waiter is None or (program := waiter.program) is None:
                break
            slots = free if waiter.others == ANY else free & waiter.others
            if self.held.before(waiter.request.priority, (), waiter):  # a turn at another picker goes first
                slot = self.sets.place(program, slots - drained, 0.0, now_s, is_left=is_left)
            else:
                slot = self.sets.place(program, slots, now_s - waiter.came_s, now_s)
            if slot is None:
                back.append(waiter)
                free.difference_update(slots)
                continue
            self.held.served(waiter.request.priority, waiter.flow, program.tokens, now_s)
            self._busy_s.pop(slot, None)
            yield self._let_go(waiter, now_s), slot, "it has one"
            free.intersection_update(self._ready(now_s) - {slot})
            for other in self.held.waiting():
                if other.program is program:
                    self.held.remove(other)
                    yield self._let_go(other, now_s), slot, "it has one"
        for waiter in back:
            self.held.put_back(waiter, impatient=False)

    def _ready(self, now_s: float) -> set[int]:
        """Return the engines that a held turn may go to now: its context may have to be computed there."""
        slots = self._datastore.serving(now_s)
        pending = self._datastore.in_flight_tokens(slots)[PENDING] * self._datastore.rates.block()[1, slots]
        since_s = self._busy_s
        self._busy_s = {slot: since_s.get(slot, now_s) for slot in slots[pending >= COLD_MS].tolist()}
        ready = {slot for slot in slots.tolist() if now_s - self._busy_s.get(slot, -math.inf) >= COLD_S}
        busy, engines = len(slots) - len(ready), self.sets.engines.values()
        chats = any(one.others(now_s) > CHAT * one.capacity_tokens for one in engines)
        return ready if busy < (max(len(slots) // 2, 1) if chats else len(slots)) else set()

    def _let_go(self, waiter: Waiter, now_s: float) -> Waiter:
        waiter.held, waited_s = False, now_s - waiter.came_s
        self.longest_s = max(self.longest_s, waited_s)
        if waited_s >= self._shortest_left_s:
            self._left_in_a_row, self._shortest_left_s = 0, math.inf
        return waiter

    def left(self, waiter: Waiter, now_s: float) -> None:
        """Take that a held turn was given up, by its client or by what is between: it cannot wait as long.

        Those of one moment count once: a gateway that dies says nothing of how long others wait.
        """
        self.counts["left"] += 1
        if waiter.program is not None:
            waiter.program.unheld_until_s = now_s + UNHELD_S
        if now_s - self._left_s < LOOK_S:
            return
        waited_s, self._left_s = now_s - waiter.came_s, now_s
        self._left_in_a_row += 1
        self._shortest_left_s = min(self._shortest_left_s, waited_s)
        if self._left_in_a_row == GIVEN_UP:
            self._left_in_a_row, self._shortest_left_s = 0, math.inf
            self.unheld_until_s = now_s + UNHELD_S
            self.on_unheld(waited_s)

    def pool_changed(self) -> None:
        """Forget engines that left; let whoever waits be served by those that came."""
        for slot in self.sets.engines.keys() - {slot for slot, _ in self._datastore.members}:
            self.sets.forget(slot)
        for waiter in self.held.waiting():
            if waiter.others == ANY:
                continue
            self.held.remove(waiter)
            waiter.best = waiter.others = ANY
            self.held.put_back(waiter, impatient=False)
        self._asked_s = -math.inf

    def _ask_engines(self, now_s: float) -> None:
        """Take capacities and prefill rates, once in a while."""
        if now_s - self._asked_s < LOOK_S:
            return
        self._asked_s = now_s
        rates = self._datastore.rates.block()[1]
        for slot, _ in self._datastore.members:
            tokens = self._datastore.kv_capacity_tokens(slot)
            if tokens and not self._datastore.is_peer(slot):
                self.sets.set_engine(slot, float(tokens), float(rates[slot]) / 1e3)

    def _holds(self, now_s: float) -> bool:
        return self.guard.look(len(self.sets.engines), now_s) and now_s >= self.unheld_until_s
