"""Send a request at once where its engine has room; let it wait otherwise, and choose its engine then.

Owns what room is, and what a request is worth waiting for. Room comes of what was sent and is not answered,
of what the engine says waits there from elsewhere, and of the largest batch that it was seen to run. It is
ample while nothing waits, so that the policy alone decides, and shrinks with what waits: what is not yet
bound can still go where its prefix is. A request waits for the engine that the policy chose, longer the more
prefill a miss would cost and the more requests it would delay, and then for any.

A state machine: whoever drives it asks `decide`, and calls `poll` when `on_ready` was called or `due_s` is
reached. What has waited is located, measured and scheduled anew when its turn has come, among the engines
that are open.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from epp.errors import NoEndpointError, NotAdmittedError
from epp.schedule.filters import Candidates
from epp.schedule.queue import ANY, RequestQueue, Waiter
from epp.signals.ledger import DECODING, PENDING, RUNNING
from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from epp.config.schema import QueueSection
    from epp.schedule.decision import Decision
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
#: Requests that one look lets go or puts back; the event loop has a turn before the next.
MOST_TURNS = 64


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
        block = self._datastore.ledger.block
        return float(block[RUNNING, slot] - block[DECODING, slot])

    def _grow(self, capacity: int) -> None:
        self._foreign = grown(self._foreign, capacity, 0.0)
        self._heard_s = grown(self._heard_s, capacity, -math.inf)

    def open(self, slots: Slots, crowd: _Crowd, now_s: float) -> set[int]:
        """Return those of the slots that have room beside what waits."""
        datastore = self._datastore
        self._grow(datastore.ledger.block.shape[1])
        sent, rates = datastore.in_flight_tokens(slots), datastore.rates.block()[:, slots]
        foreign = np.where(now_s - self._heard_s[slots] <= FRESH_S, self._foreign[slots], 0.0)
        unanswered = sent[RUNNING] - sent[DECODING] + foreign
        pending_ms = sent[PENDING] * rates[1] + foreign * FOREIGN_MS
        room = crowd.leaves_room(
            pending_ms, rates[0], unanswered, sent[RUNNING], datastore.room.largest[slots]
        )
        return set(slots[room].tolist())

    def is_open(self, slot: int, seen: Signals[float], crowd: _Crowd, now_s: float) -> bool:
        """Tell the same of one slot, by its signals."""
        heard = slot < len(self._heard_s) and now_s - self._heard_s[slot] <= FRESH_S
        foreign = float(self._foreign[slot]) if heard else 0.0
        unanswered = seen.running_requests - seen.decoding_requests + foreign
        pending_ms = seen.pending_uncached_tokens * seen.prefill_ms_per_token + foreign * FOREIGN_MS
        largest = float(self._datastore.room.largest[slot])
        running, base_ms = seen.running_requests, seen.prefill_base_ms
        return bool(crowd.leaves_room(pending_ms, base_ms, unanswered, running, largest))


class _Crowd(NamedTuple):
    """What waits, to a band that asks for room.

    Attributes:
        each: requests that wait, for each engine.
        share: what they leave of the room that there is where nothing waits.
        kept: share of each engine's batch that is kept for higher bands.
    """

    each: float
    share: float
    kept: float

    def leaves_room(self, pending_ms: Any, base_ms: Any, unanswered: Any, running: Any, largest: Any) -> Any:
        """Compare what an engine was sent with its room, of one or of many; an unknown batch is no limit."""
        most = largest * (1.0 + MORE * self.share - self.kept) + MORE_REQUESTS
        short = (pending_ms < base_ms + ROOM_MS * self.share) | (unanswered < FEW_REQUESTS * self.share)
        return short & ((running < most) | (most != most))  # noqa: PLR0124 - NaN


_NOBODY = _Crowd(0.0, 1.0, 0.0)


class LateBinding:
    """Decides now or later.

    Args:
        scheduler: decides where.
        settings: how long requests wait.

    Attributes:
        queue: what waits.
        on_ready: called, once until the next `poll`, when something may have room.
    """

    def __init__(self, scheduler: Scheduler, settings: QueueSection) -> None:
        self.queue = RequestQueue(settings)
        self.on_ready: Callable[[], None] = lambda: None
        self._scheduler, self._datastore, self._settings = scheduler, scheduler.datastore, settings
        self._asked_s: dict[int, float] = {}
        self._room, self._ready, self._other_pool = Room(scheduler.datastore), False, False
        scheduler.datastore.ledger.on_change["queue"] = self._changed
        scheduler.datastore.on_pool["queue"] = self._pool_changed

    @property
    def due_s(self) -> float:
        """When `poll` has something to do, whatever happens."""
        return self.queue.due_s

    def _changed(self, _slot: int, promised_tokens: int) -> None:
        if not promised_tokens:
            self._look()

    def _pool_changed(self) -> None:
        self._other_pool = True
        self._look()

    def _look(self) -> None:
        if not self._ready and len(self.queue):
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
            ttft_slo_s: when its first token is due from now on, 0 for no such time.
            held_bytes: what it keeps in memory while it waits.

        Raises:
            NoEndpointError: nobody is eligible, and waiting would not change that.
            NotAdmittedError: the queue is full.
        """
        self._asked_s[request.priority] = now_s
        deadline_s = now_s + ttft_slo_s if ttft_slo_s else math.inf
        expires_s = now_s + self._settings.ttl_s
        waiter = Waiter(request, flow, held_bytes, now_s, ANY, ANY, 0.0, deadline_s, expires_s)
        try:
            found = self._scheduler.locate(request, now_s)
        except NoEndpointError as error:
            if error.rule not in _PASSING:
                raise
            self.queue.put(waiter)
            return waiter
        measured = self._scheduler.measure(request, found, now_s)
        decision = self._scheduler.schedule(measured, now_s, wall_s)
        slot, seen = int(found.slots[decision.chosen]), measured.seen.at(decision.chosen)
        crowd, is_peer = self._crowd(request.priority, now_s), self._datastore.is_peer(slot)
        if not (is_peer or self._room.is_open(slot, seen, crowd, now_s)):  # at a peer its own picker queues
            open_slots = self._open(found.slots, request.priority, now_s)
            patience_s, least_s = self._patience_s(measured, decision, crowd, deadline_s - now_s)
            if patience_s or not open_slots:
                waiter.request, waiter.others = _packed(measured.request), frozenset(found.slots.tolist())
                waiter.best, waiter.patience_s = slot if patience_s else waiter.others, patience_s
                waiter.expires_s = min(expires_s, deadline_s - least_s)
                self.queue.put(waiter)
                return waiter
            measured = self._scheduler.measure(
                measured.request, _only(found, open_slots, self._datastore), now_s
            )
            decision = self._scheduler.schedule(measured, now_s, wall_s)
        self._scheduler.reserve(decision, measured, now_s)
        self.queue.served(
            request.priority, flow, request.prompt_tokens + measured.request.expected_output_tokens
        )
        return decision

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
        if not len(self.queue):
            return settled
        if self._other_pool:  # whoever waits may be served by those that came
            self._other_pool = False
            for waiter in self.queue.waiting():
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
            if (turn := self.queue.take(open_to)) is None:
                return settled
            try:
                slot = self._bind(turn, open_to(turn.request.priority), now_s, wall_s)
            except Exception as error:  # noqa: BLE001 - that request fails, the others do not
                turn.refusal, slot = error, None
            if turn.settled:
                settled.append(turn)
            if slot is not None:
                is_open.clear()
        self._look()
        return settled

    def _bind(self, waiter: Waiter, open_slots: Collection[int], now_s: float, wall_s: float) -> int | None:
        """Send a request whose turn it is to one of the open engines; it waits on where none of them may."""
        scheduler = self._scheduler
        try:
            found = scheduler.locate(waiter.request, now_s)
        except NoEndpointError as error:
            waiter.refusal = error
            return None
        measured = scheduler.measure(waiter.request, found, now_s)
        decision = scheduler.schedule(measured, now_s, wall_s)
        best = int(found.slots[decision.chosen])
        if best not in open_slots:
            waiter.others = frozenset(found.slots.tolist())
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
        scheduler.reserve(decision, measured, now_s)
        waiter.decision = decision
        self.queue.served(waiter.request.priority, waiter.flow, waiter.tokens)
        return best

    def leave(self, waiter: Waiter, now_s: float) -> None:
        """Forget a request whose client has gone."""
        if waiter.decision is not None:
            self._scheduler.end(waiter.decision.id, "client-gone", now_s)
        elif waiter.refusal is None:
            self.queue.remove(waiter)
            waiter.refusal = NotAdmittedError("its client has gone", "client")

    def shut(self) -> list[Waiter]:
        """Refuse all that wait: the picker ends."""
        waiting = self.queue.waiting()
        for waiter in waiting:
            self.queue.remove(waiter)
            waiter.refusal = NoEndpointError("shutting-down", "the picker is shutting down")
        return waiting

    def _expired(self, waiter: Waiter, now_s: float) -> Exception:
        """Say why a request is dropped, and when another may find room: after what this one waited."""
        if not len(self._datastore):
            return NoEndpointError("pool-empty", "no endpoint came while the request waited")
        waited_s = now_s - waiter.came_s
        words = f"the request waited {waited_s:.1f} s for room, and its time is over"
        return NotAdmittedError(words, "queue-ttl", math.ceil(waited_s))

    def open_engines(self, now_s: float) -> int:
        """Count the engines that have room for the lowest band that waits."""
        bands = self.queue.bands
        return len(self._open(self._datastore.serving(now_s), bands[-1] if bands else 0, now_s))

    def _open(self, slots: Slots, band: int, now_s: float) -> set[int]:
        """Return those of the slots that are open to a band."""
        return self._room.open(slots, self._crowd(band, now_s), now_s)

    def _crowd(self, band: int, now_s: float) -> _Crowd:
        """Count what waits in a band and those above it, for each engine."""
        if not len(self.queue):
            return _NOBODY
        each = self.queue.ahead_of(band) / max(len(self._datastore), 1)
        higher = any(other > band and now_s - asked_s < KEPT_S for other, asked_s in self._asked_s.items())
        return _Crowd(each, 0.5 ** (each / HALVING), KEPT if higher else 0.0)

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
        elsewhere = float(np.delete(cached, chosen).max(initial=0.0)) if len(cached) > 1 else -math.inf
        least_ms = float(seen.rtt_ms[chosen]) + base_ms + float(seen.uncached_tokens[chosen]) * rate_ms
        if not self._settings.patience:
            return 0.0, least_ms / 1e3
        most_ms = max(left_s * 1e3 - least_ms, 0.0) / 2.0
        saved_ms = (float(cached[chosen]) - elsewhere) * rate_ms * (1.0 + crowd.each)
        patience_ms = min(max(self._settings.patience * saved_ms, 0.0), most_ms)
        return patience_ms / 1e3, least_ms / 1e3


def _packed(request: RequestInfo) -> RequestInfo:
    """Return a request that takes eight bytes for each block of its prompt."""
    return replace(request, blocks=array("Q", request.blocks))


def _only(found: Candidates, slots: Collection[int], datastore: Datastore) -> Candidates:
    """Return the candidates that have room."""
    rows = [row for row, slot in enumerate(found.slots.tolist()) if slot in slots]
    if len(rows) == len(found.slots):
        return found
    out = tuple(datastore.address_of(slot) or "" for slot in found.slots.tolist() if slot not in slots)
    models = tuple(found.served_models[row] for row in rows) if found.served_models else ()
    excluded = {**found.excluded, NO_ROOM: out}
    return Candidates(found.slots[rows], excluded, models, found.bound)
