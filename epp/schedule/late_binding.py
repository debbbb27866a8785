"""Send a request at once where its engine has room; let it wait otherwise, and choose its engine then.

Owns what room is, and what a request is worth waiting for. Room comes of what was sent and is not answered,
of what the engine says waits there from elsewhere, and of the largest batch that it was seen to run. It is
ample while nothing waits, so that the policy alone decides, and shrinks with what waits: what is not yet
bound can still go where its prefix is. A request waits for the engine that the policy chose, longer the more
prefill a miss would cost and the more requests it would delay, and then for any. Where the next turn is
another picker's, an engine that has room is left to that one for a moment.

A state machine: whoever drives it asks `decide`, and calls `poll` when `on_ready` was called or `due_s` is
reached. What has waited is located, measured and scheduled anew when its turn has come, among the engines
that are open.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from epp.errors import NoEndpointError, NotAdmittedError
from epp.schedule.admission import is_below_limit
from epp.schedule.decision import QueueWait
from epp.schedule.filters import Candidates
from epp.schedule.program_gate import HELD, ProgramGate
from epp.schedule.queue import ANY, MOST_TURNS, RequestQueue, Waiter
from epp.signals.ledger import DECODING, PENDING, RUNNING
from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from epp.config.schema import QueueSection
    from epp.schedule.decision import Decision
    from epp.schedule.queue import BandState
    from epp.schedule.scheduler import Measured, Scheduler
    from epp.signals.datastore import Datastore
    from epp.signals.metrics_text import EngineSample
    from epp.types import Floats, RequestInfo, Signals, Slots

#: Room of an engine while nothing waits: milliseconds of prefill that may await their first token there,
#: beside the time that any prompt takes from here to there. Where very much waits, that alone is left.
ROOM_MS = 2_000.0
#: So few requests without a first token find room while nothing waits, however long their prompts are.
FEW_REQUESTS = 4.0
#: Part of an engine's batch that is kept for a higher priority while requests wait, and how long after the
#: last one of it. With less than `MORE_REQUESTS` kept the batch that is known does not shrink by that.
KEPT, KEPT_S = 0.05, 60.0
#: By how many requests an engine may run more than it was ever seen to, and by what part of those while
#: nothing waits. What is sent beyond its batch waits there, and no priority passes it.
MORE_REQUESTS, MORE = 4.0, 0.5
#: What a request counts that waits at an engine, and was not sent from here.
FOREIGN_MS = 50.0
#: Waiting requests for each engine by which room comes half as near to the least.
HALVING = 4.0
#: Rule by which engines without room leave the candidates.
NO_ROOM = "room"
#: Age to which an engine's word on what waits there counts.
FRESH_S = 2.0
#: Rules that time may change: a pool that scales from zero, engines that return.
_PASSING = frozenset({"pool-empty", "health"})
#: What a request waits for whose model no engine of the pool serves yet: another look is worth its time once
#: the pool has changed.
_NOT_YET = frozenset({-1})
#: For so long an engine with room is left to other pickers: they hear of it, and take it if they can.
YIELD_S = 0.2


class Room:
    """How much more each engine may be sent.

    Args:
        datastore: the engines' signals.
    """

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._foreign: Floats = np.zeros(0)
        self._heard_s: Floats = np.zeros(0)
        datastore.engine.on_sample["queue"] = self._observe

    def _observe(self, slot: int, sample: EngineSample, now_s: float) -> None:
        """Take what waits at an engine beside what was sent from here."""
        self._grow(slot + 1)
        self._foreign[slot] = max((sample.waiting or 0.0) - self._unanswered(slot), 0.0)
        self._heard_s[slot] = now_s

    def _unanswered(self, slot: int) -> float:
        sent = self._datastore.in_flight_tokens(slice(slot, slot + 1))
        return float(sent[RUNNING, 0] - sent[DECODING, 0])

    def _grow(self, capacity: int) -> None:
        self._foreign = grown(self._foreign, capacity, 0.0)
        self._heard_s = grown(self._heard_s, capacity, -math.inf)

    def open(self, slots: Slots, crowd: _Crowd, now_s: float) -> set[int]:
        """Return those of the slots that have room beside what waits, and are not left alone."""
        datastore = self._datastore
        self._grow(datastore.ledger.block.shape[1])
        sent, rates = datastore.in_flight_tokens(slots), datastore.rates.block()[:, slots]
        foreign = np.where(now_s - self._heard_s[slots] <= FRESH_S, self._foreign[slots], 0.0)
        unanswered = sent[RUNNING] - sent[DECODING] + foreign
        pending_ms = sent[PENDING] * rates[1] + foreign * FOREIGN_MS
        room = crowd.leaves_room(
            pending_ms, rates[0], unanswered, sent[RUNNING], datastore.room.largest[slots]
        )
        return set(slots[room].tolist()).difference(datastore.retry_after.until_s(now_s) or ())

    def is_open(self, slot: int, seen: Signals[float], crowd: _Crowd, now_s: float) -> bool:
        """Tell the same of one slot, by its signals."""
        heard = slot < len(self._heard_s) and now_s - self._heard_s.item(slot) <= FRESH_S
        foreign = self._foreign.item(slot) if heard else 0.0
        unanswered = seen.running_requests - seen.decoding_requests + foreign
        pending_ms = seen.pending_uncached_tokens * seen.prefill_ms_per_token + foreign * FOREIGN_MS
        largest = self._datastore.room.largest.item(slot)
        running, base_ms = seen.running_requests, seen.prefill_base_ms
        free = not self._datastore.retry_after.left_s(slot, now_s)
        return free and bool(crowd.leaves_room(pending_ms, base_ms, unanswered, running, largest))


class _Crowd(NamedTuple):
    """What waits, to a band that asks for room.

    Attributes:
        each: requests that wait, for each engine.
        kept: share of each engine's batch that is kept for higher bands.
    """

    each: float
    kept: float

    def leaves_room(self, pending_ms: Any, base_ms: Any, unanswered: Any, running: Any, largest: Any) -> Any:
        """Compare what an engine was sent with its room, of one or of many; an unknown batch is no limit."""
        share = math.exp2(-self.each / HALVING)  # of the room that there is where nothing waits
        most = largest * (1.0 + MORE * share - self.kept) + MORE_REQUESTS
        short = (pending_ms < base_ms + ROOM_MS * share) | (unanswered < FEW_REQUESTS * share)
        return short & ((running < most) | (most != most))  # noqa: PLR0124 - NaN


_NOBODY = _Crowd(0.0, 0.0)


class LateBinding:
    """Decides now or later.

    Args:
        scheduler: decides where.
        settings: how long requests wait.
        saturation: measures the pool, for limits of it.

    Attributes:
        queue: what waits.
        programs: holds turns of agents, None where nothing does.
        on_ready: called, once until the next `poll`, when something may have room.
    """

    def __init__(
        self, scheduler: Scheduler, settings: QueueSection, saturation: Callable[[float], float]
    ) -> None:
        self.queue = RequestQueue(settings)
        self.on_ready: Callable[[], None] = lambda: None
        self._scheduler, self._datastore, self._settings = scheduler, scheduler.datastore, settings
        self._asked_s: dict[int, float] = {}
        #: By band, engines with room that others take first, and since when.
        self._yielded: dict[int, dict[int, float]] = {}
        self._saturation, self._looks = saturation, 0
        self._unmoved: deque[Waiter] = deque()  # they wait for engines of an earlier pool
        self.programs = ProgramGate(scheduler, settings) if settings.programs.holds else None
        self._room, self._ready, self._other_pool = Room(scheduler.datastore), False, False
        #: Whether a request that finds room needs no more than that.
        self._plain = self.programs is None and not settings.limits and not self.queue.attains
        scheduler.datastore.on_pool["queue"] = self._pool_changed

    @property
    def due_s(self) -> float:
        """When `poll` has something to do, whatever happens."""
        return self.queue.due_s if self.programs is None else min(self.queue.due_s, self.programs.due_s)

    def _changed(self, slot: int, promised_tokens: int) -> None:
        if not promised_tokens and len(self.queue) and self._may_open(slot):
            self._look()

    def _may_open(self, slot: int) -> bool:
        """Tell whether an engine may have room for any that waits; what is not asked here only takes room."""
        if self._settings.limits:
            return True
        datastore, (band, *_) = self._datastore, self.queue.bands
        sent, (base_ms, rate_ms, *_) = datastore.ledger.block[:, slot], datastore.rates.block()[:, slot]
        unanswered, largest = sent[RUNNING] - sent[DECODING], datastore.room.largest[slot]
        return bool(
            _Crowd(self._each(band), 0.0).leaves_room(
                sent[PENDING] * rate_ms, base_ms, unanswered, sent[RUNNING], largest
            )
        )

    def _pool_changed(self) -> None:
        self._other_pool = True
        if self.programs is not None:
            self.programs.pool_changed()
        self._look()

    def hear(self, origin: str, state: Mapping[int, BandState], now_s: float) -> None:
        """Take what another picker tells of its queue, and look for what it tells of its load."""
        self.queue.hear(origin, state, now_s)
        self._asked_s |= dict.fromkeys(state, now_s)
        self._look()

    def _look(self) -> None:
        if not self._ready and (len(self.queue) or (self.programs is not None and len(self.programs.held))):
            self._ready = True
            self.on_ready()

    def decide(
        self,
        request: RequestInfo,
        now_s: float,
        wall_s: float,
        *,
        flow: str,
        ttft_slo_s: float,
        held_bytes: int,
    ) -> Decision | Waiter:
        """Decide where a request goes, or let it wait.

        Args:
            request: the request.
            now_s: the instant.
            wall_s: the same as Unix time.
            flow: whose it is.
            ttft_slo_s: when its first token is due from its arrival on, 0 for no such time.
            held_bytes: what it keeps in memory while it waits.

        Raises:
            NoEndpointError: nobody is eligible, and waiting would not change that.
            NotAdmittedError: the queue is full.
        """
        self._asked_s[request.priority] = now_s
        self._looks += 1
        if not len(self.queue):
            self._yielded.clear()  # nobody has looked meanwhile
        try:
            found = self._scheduler.locate(request, now_s)
        except NoEndpointError as error:
            waiter = self._waiter(request, now_s, flow, ttft_slo_s, held_bytes)
            if error.rule not in _PASSING or self.queue.is_full(waiter):
                raise
            return self._put(waiter)
        measured = self._scheduler.measure(request, found, now_s)
        if self.queue.idle and self._plain:  # as most requests find it
            decision = self._scheduler.schedule(measured, now_s, wall_s)
            if self._has_room_for(decision, measured, _NOBODY, now_s):
                self._scheduler.reserve(decision, measured, now_s)
                return decision
        waiter = self._waiter(request, now_s, flow, ttft_slo_s, held_bytes)
        if (turn := self._turn_of_agent(waiter, measured, now_s, wall_s)) is not None:
            return turn
        return self._send_or_wait(waiter, found, measured, now_s, wall_s)

    def _has_room_for(self, decision: Decision, measured: Measured, crowd: _Crowd, now_s: float) -> bool:
        """Tell whether the engine chosen has room; at a peer its own picker queues."""
        chosen = decision.chosen
        slot, seen = int(measured.found.slots[chosen]), measured.seen.at(chosen)
        return self._datastore.is_peer(slot) or self._room.is_open(slot, seen, crowd, now_s)

    def _send_or_wait(
        self, waiter: Waiter, found: Candidates, measured: Measured, now_s: float, wall_s: float
    ) -> Decision | Waiter:
        """Send a request that came to an engine with room; it waits where none has any."""
        settings, priority = self._settings, waiter.request.priority
        decision = self._scheduler.schedule(measured, now_s, wall_s)
        slot, crowd = int(found.slots[decision.chosen]), self._crowd(priority, now_s)
        first = self._datastore.is_peer(slot) or not self.queue.before(priority, (), waiter)
        has_room = first and self._has_room_for(decision, measured, crowd, now_s)
        waiter.request = measured.request
        if settings.limits or not has_room:
            open_slots = self._open(found.slots, priority, now_s, waiter)
            patience_s, least_s = self._patience_s(measured, decision, crowd, waiter.deadline_s - now_s)
            waits = slot not in open_slots and (patience_s or not open_slots)
            if waits or (settings.limits and self.queue.ahead_of(priority)):
                self._aim(waiter, decision, found, patience_s, now_s)
                if not settings.limits:
                    waiter.expires_s = min(waiter.expires_s, waiter.deadline_s - least_s)
                return self._put(waiter)
            if len(open_slots) < len(found.slots):
                allowed = _only(found, open_slots, self._datastore)
                measured = self._scheduler.measure(measured.request, allowed, now_s)
                decision = self._scheduler.schedule(measured, now_s, wall_s)
        self._reserve(waiter, decision, measured, now_s)
        self.queue.served(priority, waiter.flow, waiter.tokens, now_s)
        return decision

    def _put(self, waiter: Waiter) -> Waiter:
        self.queue.put(waiter)
        self._datastore.ledger.on_change["queue"] = self._changed  # while something waits
        return waiter

    def _aim(
        self, waiter: Waiter, decision: Decision, found: Candidates, patience_s: float, now_s: float
    ) -> None:
        """Let a request wait for the engine chosen, and for any where it has no patience."""
        waiter.request, waiter.others = _packed(waiter.request), self._others(found, now_s)
        slot = int(found.slots[decision.chosen])
        best = (slot, patience_s, decision.endpoint) if patience_s else (waiter.others, 0.0, "")
        waiter.best, waiter.patience_s, waiter.wanted = best

    def _waiter(
        self, request: RequestInfo, now_s: float, flow: str, ttft_slo_s: float, held_bytes: int
    ) -> Waiter:
        """Return a request as one that may wait; one that an engine refused since it came first."""
        settings, band, came_s = self._settings, self._settings.of(request.priority), request.came_s or now_s
        deadline_s = came_s + ttft_slo_s if ttft_slo_s and band.ordering == "slo-deadline" else math.inf
        ttl_s = band.ttl_s if len(self._datastore) else settings.empty_ttl_s or band.ttl_s
        waiter = Waiter(request, flow, held_bytes, came_s, ANY, ANY, 0.0, deadline_s, came_s + ttl_s)
        if request.came_s and band.fairness == "tokens":  # its flow was served nothing
            self.queue.served(request.priority, flow, -waiter.tokens, now_s)
        return waiter

    def _turn_of_agent(
        self, waiter: Waiter, measured: Measured, now_s: float, wall_s: float
    ) -> Decision | Waiter | None:
        """Send an agent's turn home, or hold it; None for what goes on as any request does."""
        home = None if self.programs is None else self.programs.enter(waiter, measured, now_s)
        if home is None:
            return None
        waiter.request = _packed(measured.request)
        if home == HELD:
            return waiter
        return self._send(waiter, _only(measured.found, {home}, self._datastore), now_s, wall_s)

    def _reserve(self, waiter: Waiter, decision: Decision, measured: Measured, now_s: float) -> None:
        self._scheduler.reserve(decision, measured, now_s)
        if self.programs is not None:
            slot = int(measured.found.slots[decision.chosen])
            self.programs.sent(waiter.program, decision, slot, now_s)

    def _send(
        self, waiter: Waiter, found: Candidates, now_s: float, wall_s: float, wait: QueueWait | None = None
    ) -> Decision:
        """Decide a request among these, and send it whatever waits there."""
        measured = self._scheduler.measure(waiter.request, found, now_s)
        decision = replace(self._scheduler.schedule(measured, now_s, wall_s), wait=wait)
        self._reserve(waiter, decision, measured, now_s)
        self.queue.served(waiter.request.priority, waiter.flow, waiter.tokens, now_s)
        waiter.decision = decision
        return decision

    def _send_held(self, now_s: float, wall_s: float) -> list[Waiter]:
        """Send the turns of agents that have a place by now; return what is settled."""
        settled = list[Waiter]()
        for waiter, slot, why in () if self.programs is None else self.programs.poll(now_s):
            try:
                found = self._scheduler.locate(waiter.request, now_s)
                if slot is not None and slot in found.slots:
                    found = _only(found, {slot}, self._datastore)
                self._send(waiter, found, now_s, wall_s, QueueWait(now_s - waiter.came_s, "", why, True))
            except Exception as error:  # noqa: BLE001 - that request fails, the others do not
                waiter.refusal = error
            settled.append(waiter)
        return settled

    def decide_now(self, request: RequestInfo, now_s: float, wall_s: float) -> Decision:
        """Decide a request that cannot wait.

        Raises:
            NoEndpointError: nobody is eligible.
        """
        return self._scheduler.decide(request, now_s, wall_s)

    def poll(self, now_s: float, wall_s: float) -> list[Waiter]:
        """Let go what has room by now, and drop what waited too long; return what is settled."""
        self._ready = False
        settled = self.queue.expire(now_s)
        for waiter in settled:
            waiter.refusal = self._expired(waiter, now_s)
        settled += self._send_held(now_s, wall_s)
        if not len(self.queue):
            self._unmoved.clear()
            self._datastore.ledger.on_change.pop("queue", None)
            return settled
        if self._other_pool:  # whoever waits may be served by those that came
            self._other_pool = False
            self._unmoved = deque(self.queue.waiting())
        for _ in range(min(MOST_TURNS, len(self._unmoved))):
            if not (waiter := self._unmoved.popleft()).settled:
                self.queue.remove(waiter)
                waiter.best = waiter.others = ANY
                self.queue.put_back(waiter, impatient=True)
        serving = self._datastore.serving(now_s)
        is_open: dict[int, set[int]] = {}

        def open_to(band: int) -> set[int]:
            if band not in is_open:
                is_open[band] = self._open(serving, band, now_s)
            return is_open[band]

        for _ in range(MOST_TURNS):
            self._looks += 1
            if (turn := self.queue.take(open_to)) is None:
                break
            try:
                slot = self._bind(turn, open_to(turn.request.priority), now_s, wall_s)
            except Exception as error:  # noqa: BLE001 - that request fails, the others do not
                turn.refusal, slot = error, None
            if turn.settled:
                settled.append(turn)
            if slot is not None:
                is_open.clear()
        if turn or self._unmoved:
            self._look()
        return settled

    def _bind(self, waiter: Waiter, open_slots: Collection[int], now_s: float, wall_s: float) -> int | None:
        """Send a request whose turn it is to one of the open engines; it waits on where none of them may."""
        scheduler = self._scheduler
        try:
            found = scheduler.locate(waiter.request, now_s)
        except NoEndpointError as error:
            if error.rule == "model":
                waiter.best = waiter.others = _NOT_YET
                self.queue.put_back(waiter, impatient=True)
            else:
                waiter.refusal = error
            return None
        measured = scheduler.measure(waiter.request, found, now_s)
        decision = scheduler.schedule(measured, now_s, wall_s)
        best = int(found.slots[decision.chosen])
        if best not in open_slots:
            waiter.others = self._others(found, now_s)
            crowd = self._crowd(waiter.request.priority, now_s)
            patience_s, _ = self._patience_s(measured, decision, crowd, waiter.deadline_s - now_s)
            if best != waiter.best and patience_s:  # its prefix has come there while it waited
                waiter.best, waiter.patience_s = best, now_s - waiter.came_s + patience_s
                self.queue.put_back(waiter, impatient=False)
                return None
            allowed = _only(found, open_slots, self._datastore)
            if not len(allowed.slots):
                waiter.best = waiter.others  # of which none is open: it is not taken again at once
                self.queue.put_back(waiter, impatient=True)
                return None
            measured = scheduler.measure(waiter.request, allowed, now_s)
            decision = scheduler.schedule(measured, now_s, wall_s)
            best = int(allowed.slots[decision.chosen])
        wait = QueueWait(now_s - waiter.came_s, waiter.wanted, _let_go_by(waiter, decision.endpoint))
        decision = replace(decision, wait=wait)
        self._reserve(waiter, decision, measured, now_s)
        waiter.decision = decision
        self.queue.served(waiter.request.priority, waiter.flow, waiter.tokens, now_s)
        return best

    def leave(self, waiter: Waiter, now_s: float) -> None:
        """Forget a request whose client has gone."""
        if waiter.decision is not None:
            self._scheduler.end(waiter.decision.id, "client-gone", now_s)
        elif waiter.refusal is None:
            self._remove(waiter)
            if waiter.held and self.programs is not None:
                self.programs.left(waiter, now_s)
        waiter.refusal = waiter.refusal or NotAdmittedError("its client has gone", "client")

    def _remove(self, waiter: Waiter) -> None:
        programs = self.programs
        (self.queue if programs is None or not waiter.held else programs.held).remove(waiter)

    def waiting(self) -> list[Waiter]:
        """List all that wait, for room or for a place of their agent's context."""
        return self.queue.waiting() + ([] if self.programs is None else self.programs.held.waiting())

    def shut(self) -> list[Waiter]:
        """Refuse all that wait: the picker ends."""
        waiting = self.waiting()
        for waiter in waiting:
            self._remove(waiter)
            waiter.refusal = NoEndpointError("shutting-down", "the picker is shutting down")
        return waiting

    def _expired(self, waiter: Waiter, now_s: float) -> Exception:
        """Say why a request is dropped, and when another may find room: after what this one waited."""
        if not len(self._datastore) or waiter.best == _NOT_YET:
            return NoEndpointError("pool-empty", "no endpoint came while the request waited")
        waited_s = now_s - waiter.came_s
        late = waiter.deadline_s < waiter.came_s + self._settings.of(waiter.request.priority).ttl_s
        words = f"the request waited {waited_s:.1f} s for room, and its time is over"
        return NotAdmittedError(words, "queue-deadline" if late else "queue-ttl", math.ceil(waited_s))

    def without_endpoint(self, now_s: float) -> int:
        """Count the requests that wait because no endpoint may serve any."""
        return 0 if len(self._datastore.serving(now_s)) else len(self.queue)

    def open_engines(self, now_s: float) -> int:
        """Count the engines that have room for the lowest band that waits."""
        bands = self.queue.bands
        return len(self._has_room(self._datastore.serving(now_s), bands[-1] if bands else 0, now_s))

    def _others(self, found: Candidates, now_s: float) -> frozenset[int]:
        """Return the slots of all that may serve a request, and of engines whose pause will end."""
        slots, paused = found.slots, self._datastore.retry_after.until_s(now_s)
        return _any_of((np.union1d(slots, list(paused)) if paused else slots).tobytes())

    def _has_room(self, slots: Slots, band: int, now_s: float) -> set[int]:
        """Return those of the slots that have room for a band; all or none where it has a limit."""
        if (limits := self._settings.limits) is None:
            return self._room.open(slots, self._crowd(band, now_s), now_s)
        bands = {0, band, *self._asked_s, *(its.priority for its in self._settings.bands)}
        below = is_below_limit(self._saturation(now_s), limits, band, bands, self._looks)
        return set(slots.tolist()) if below else set()

    def _open(self, slots: Slots, band: int, now_s: float, newcomer: Waiter | None = None) -> set[int]:
        """Return those of the slots that are open to a band, or to a newcomer to it."""
        found = self._has_room(slots, band, now_s)
        if self.queue.before(band, found, newcomer) < max(len(found), 1):
            self._yielded.pop(band, None)
            return found  # there is room for all that go first
        since = self._yielded.get(band, {})
        if found - since.keys():
            self.queue.tell(urgent=True)
        since = self._yielded[band] = {slot: since.get(slot, now_s) for slot in found}
        return {slot for slot in found if now_s - since[slot] >= YIELD_S}

    def _crowd(self, band: int, now_s: float) -> _Crowd:
        """Say what waits, to a band."""
        if not (self.queue.ahead_of(band) or len(self.queue)):
            return _NOBODY
        higher = any(other > band and now_s - asked_s < KEPT_S for other, asked_s in self._asked_s.items())
        return _Crowd(self._each(band), KEPT if higher else 0.0)

    def _each(self, band: int) -> float:
        """Count what waits in a band and those above it, for each engine."""
        return self.queue.ahead_of(band) / max(len(self._datastore), 1)

    def _patience_s(
        self, measured: Measured, decision: Decision, crowd: _Crowd, left_s: float
    ) -> tuple[float, float]:
        """Return how long a request waits for its best engine, and its least time to first token.

        A miss costs its time to the request, and to each that waits for an engine. Where a first token is due
        in ``left_s``, half of the time that is left is for other engines.
        """
        seen, chosen = measured.seen, decision.chosen
        rate_ms, base_ms = float(seen.prefill_ms_per_token[chosen]), float(seen.prefill_base_ms[chosen])
        cached = seen.cached_tokens
        elsewhere = float(np.delete(cached, chosen).max(initial=0.0))
        least_ms = float(seen.rtt_ms[chosen]) + base_ms + float(seen.uncached_tokens[chosen]) * rate_ms
        if not self._settings.patience:
            return 0.0, least_ms / 1e3
        most_ms = max(left_s * 1e3 - least_ms, 0.0) / 2.0
        saved_ms = (float(cached[chosen]) - elsewhere) * rate_ms * (1.0 + crowd.each)
        patience_ms = min(max(self._settings.patience * saved_ms, 0.0), most_ms)
        return patience_ms / 1e3, least_ms / 1e3


def _let_go_by(waiter: Waiter, engine: str) -> str:
    """Say what ended the wait of a request that goes to an engine."""
    if engine == waiter.wanted:
        return "its engine had room"
    if waiter.best == ANY:
        return "an engine joined or had room"
    over = waiter.impatient and isinstance(waiter.best, int)
    return "its patience was over" if over else "an engine had room"


@lru_cache(64)
def _any_of(slots: bytes) -> frozenset[int]:
    """Return a set of slots, the same one for all that wait for them."""
    return frozenset(np.frombuffer(slots, np.intp).tolist())


def _packed(request: RequestInfo) -> RequestInfo:
    """Return a request that takes eight bytes for each block of its prompt."""
    engine_blocks = {key: array("Q", chain) for key, chain in request.engine_blocks.items()}
    return replace(request, blocks=array("Q", request.blocks), engine_blocks=engine_blocks)


def _only(found: Candidates, slots: Collection[int], datastore: Datastore) -> Candidates:
    """Return the candidates that have room."""
    rows = [row for row, slot in enumerate(found.slots.tolist()) if slot in slots]
    if len(rows) == len(found.slots):
        return found
    out = tuple(datastore.address_of(slot) or "" for slot in found.slots.tolist() if slot not in slots)
    models = tuple(found.served_models[row] for row in rows) if found.served_models else ()
    excluded = {**found.excluded, NO_ROOM: out}
    return Candidates(found.slots[rows], excluded, models, found.bound, found.workers)
