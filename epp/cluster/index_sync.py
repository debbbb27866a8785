"""What one picker sends the others of its pool, and what it makes of what they send.

Owns its message counter, the changes that wait to be sent, and what was heard of each peer. In-flight loads
are gauges and go out whole each second, what waits with every message; facts of the index are added, and
those of a lost message are asked for again. Changes wait for `BATCH_S` at most; a large reservation goes at
once, for others would choose the same endpoint meanwhile.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from epp.cluster.answers import ALL_S, Answers
from epp.cluster.messages import (
    MAX_BLOCKS,
    MAX_USES,
    Group,
    IndexDelta,
    Message,
    decode,
    encode,
    facts_of,
    taken,
)
from epp.errors import UnreadableError
from epp.signals.peer_load import PeerLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from epp.clock import Clock
    from epp.cluster.leading import Leading
    from epp.prefix_cache.prefix import Prefix
    from epp.schedule.late_binding import LateBinding
    from epp.schedule.program_gate import ProgramGate
    from epp.signals.datastore import Datastore

BATCH_S, LEAST_S, WHOLE_S = 0.05, 0.01, 1.0
#: Timers count whole milliseconds: a flush may come too early by this.
EARLY_S = 0.001
#: Uncached tokens of a reservation that goes at once.
URGENT_TOKENS = 2000
#: A peer that was silent for so long counts no more.
SILENT_S = 2.0
#: Facts that a peer can ask for again; who missed more asks for all that is known.
JOURNAL = 8192
#: Silent peers are remembered for so long: what they sent meanwhile is asked for when they are back.
REMEMBERED_S = 600.0
#: Peers that are listened to.
MAX_PEERS = 256
#: Sequence of a message to one picker.
TO_ONE = -1
#: A picker that hears nobody for so long after its start is the first.
ALONE_S = 3.0
#: A picker wants no requests for so long at most, while it waits for another's index.
JOIN_S = 15.0
#: Start times nearer than this are one process.
_SAME_START_S = 1.0


class HopTokens(Protocol):
    """Hop tokens of forwarded requests, each good for one use in a region (`epp.regions.hop.Hops`)."""

    on_use: Callable[[bytes, int], None]

    def used(self, most: int) -> list[tuple[bytes, int]]:
        """List the newest uses."""
        ...

    def hold(self, used: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Note the uses at another picker."""


@dataclass(slots=True)
class _PeerPicker:
    heard_s: float
    sequence: int | None = None  # of its last message to all
    alive: bool = True
    asked_s: float = -math.inf


@dataclass(slots=True)
class Counts:
    """What became of messages.

    Attributes:
        sent: messages sent.
        sent_bytes: their bytes.
        received: messages taken.
        ignored: messages not taken, by reason.
        lost: messages of peers that never came.
        staleness_s: ages of the last changes that came.
    """

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    staleness_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))


class IndexSync:
    """One picker's part.

    Args:
        datastore: the signals; `Datastore.peer_load` and the hooks of ledger and index are taken.
        group: whom it understands.
        origin: name of this process, another one at each start.
        clock: the time.
        publish: sends bytes to a peer, ``""`` for all.
        wake: asks for a `flush` within so many seconds; more than one at a time may be asked for.
        load: whether in-flight load is shared, beside prefixes.
        leading: hears who leads; None where nobody does.
        second: pickers that name prompts by another key, and are understood but for that; None for none.

    Attributes:
        counts: what became of messages.
        warm: whether the index has what the pool knew when this picker joined, as far as peers could say.
    """

    def __init__(
        self,
        datastore: Datastore,
        group: Group,
        origin: str,
        clock: Clock,
        *,
        publish: Callable[[str, bytes], None],
        wake: Callable[[float], None],
        load: bool = True,
        leading: Leading | None = None,
        second: Group | None = None,
    ) -> None:
        self._second = second
        self._tokens: HopTokens | None = None
        self._uses: deque[tuple[bytes, int]] = deque()
        self._datastore, self._group, self._origin, self._clock = datastore, group, origin, clock
        self._publish, self._wake = publish, wake
        self._peer_load = PeerLoad(datastore.slot_of)
        self._peers: dict[str, _PeerPicker] = {}
        self._changed_slots: set[int] = set()
        self._facts: deque[IndexDelta] = deque()
        self._ejected: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        #: Facts sent, each with the sequence of its message.
        self._journal: deque[tuple[int, IndexDelta]] = deque(maxlen=JOURNAL)
        self._sequences = count()
        self._changed_s = math.inf
        self._sent_s = self._whole_s = -math.inf
        self._due_s = math.inf
        self._started_s = clock.mono_s()
        self.warm = False
        self._answers = Answers(self)
        self.counts = Counts()
        self._load, self._leading = load, leading
        self._binding: LateBinding | None = None
        self._programs: ProgramGate | None = None
        if load:
            datastore.count_peers(self._peer_load)
            datastore.ledger.on_change["sharing"] = self._in_flight_tokens
            datastore.health.on_eject["sharing"] = self._eject
            datastore.retry_after.on_pause["sharing"] = self._pause
        datastore.index.on_insert["sharing"] = self._inserted
        datastore.stored.on_store["sharing"] = self._stored

    @property
    def peers(self) -> int:
        """Peers that were heard of in the last `SILENT_S`."""
        return sum(peer.alive for peer in self._peers.values())

    @property
    def joining(self) -> bool:
        """Whether this picker has just started, and waits for what the pool knows."""
        return not self.warm and self._clock.mono_s() - self._started_s < JOIN_S

    @property
    def first(self) -> bool:
        """Whether this picker has listened, and is the first by name of those heard."""
        listened = self._clock.mono_s() - self._started_s > SILENT_S
        return listened and all(self._origin < name for name, peer in self._peers.items() if peer.alive)

    def _in_flight_tokens(self, slot: int, tokens: int) -> None:
        self._changed_slots.add(slot)
        self._change(urgent=tokens > URGENT_TOKENS)

    def _inserted(self, slot: int, prefix: Prefix) -> None:
        address = self._datastore.address_of(slot)
        if address is not None:
            self._facts.extend(facts_of(address, self._datastore.engine.started_s(slot), prefix))
            self._change()

    def _stored(self, slot: int, key: int) -> None:
        self._facts.append(self._stores(slot, [key]))
        self._change(urgent=True)  # the next turn may come at any moment, and elsewhere it fails

    def _stores(self, slot: int, keys: list[int]) -> IndexDelta:
        address, started_s = self._datastore.address_of(slot) or "", self._datastore.engine.started_s(slot)
        return IndexDelta(address, started_s, stored=array("Q", keys).tobytes())

    def share_queue(self, binding: LateBinding) -> None:
        """Share what waits, and places of agents, from now on."""
        self._binding, binding.queue.tell, self._programs = binding, self._change, binding.programs
        if self._programs is not None:
            self._programs.share(self._change)

    def share_tokens(self, tokens: HopTokens) -> None:
        """Share which hop tokens are used, from now on."""
        self._tokens, tokens.on_use = tokens, self._use

    def _use(self, use: bytes, expires_ms: int) -> None:
        self._uses.append((use, expires_ms))
        self._change()

    def _eject(self, slot: int, until_s: float) -> None:
        self._ejected[self._datastore.address_of(slot) or ""] = until_s - self._clock.mono_s()
        self._change(urgent=True)

    def _pause(self, slot: int, length_s: float) -> None:
        self._paused[self._datastore.address_of(slot) or ""] = length_s
        self._change(urgent=True)

    def _change(self, *, urgent: bool = False) -> None:
        now_s, wall_s = self._clock.mono_s(), self._clock.wall_s()
        self._changed_s = min(self._changed_s, wall_s)
        # At moments that all pickers share, so that their messages come together and wake each once.
        wait_s = 0.0 if urgent else BATCH_S - wall_s % BATCH_S
        due_s = max(now_s + wait_s, self._sent_s + LEAST_S)
        if due_s < self._due_s:
            self._due_s = due_s
            self._wake(due_s - now_s)

    def flush(self) -> None:
        """Send what is due: changes, all load each second, pieces of snapshots that were asked for."""
        now_s = self._clock.mono_s()
        whole = now_s - self._whole_s >= WHOLE_S
        if whole:
            self._forget_silent(now_s)
            self._join(now_s)
        if whole or now_s >= self._due_s - EARLY_S:
            self._send(now_s, whole=whole)
        elif self._due_s < math.inf:  # another wake replaced this one's timer
            self._wake(self._due_s - now_s)
        self._send_piece(now_s)

    def leave(self) -> None:
        """Tell the others that this picker ends."""
        self._say("", next(self._sequences), leaves=True)

    def _send(self, now_s: float, *, whole: bool) -> None:
        facts = taken(self._facts.popleft() for _ in range(len(self._facts)))
        changed_s = self._changed_s if self._changed_s < math.inf else 0.0
        sequence = next(self._sequences)
        self._journal.extend((sequence, delta) for delta in facts)
        uses = [self._uses.popleft() for _ in range(min(len(self._uses), MAX_USES))]
        content = {
            "changed_s": changed_s,
            "whole": whole,
            "load": self._gauges(whole=whole),
            "facts": facts,
            "used": uses,
            "ejected": dict(self._ejected),
            "paused": dict(self._paused),
            "queue": {} if self._binding is None else self._binding.queue.state(now_s),
            "held": {} if self._programs is None else self._programs.held.state(now_s),
            "programs": self._programs and self._programs.state(now_s, whole=whole),
            "lead": self._leading.said(self._clock.wall_s()) if whole and self._leading is not None else None,
        }
        for sent in (self._changed_slots, self._ejected, self._paused):
            sent.clear()
        self._changed_s, self._due_s, self._sent_s = math.inf, math.inf, now_s
        self._peer_load.sent(self._datastore.ledger.block)
        if whole:
            self._whole_s = now_s
        self._say("", sequence, **content)
        if self._facts or self._uses:
            self._change()

    def _gauges(self, *, whole: bool) -> dict[str, Any]:
        if not self._load:
            return {}
        block, datastore = self._datastore.ledger.block, self._datastore
        slots = (
            [slot for slot, _ in datastore.members if block[:, slot].any()] if whole else self._changed_slots
        )
        named = ((datastore.address_of(slot), slot) for slot in slots)
        return {address: block[:, slot].tolist() for address, slot in named if address is not None}

    def _say(self, to: str, sequence: int = TO_ONE, **content: Any) -> None:
        data = encode(Message(self._group, self._origin, sequence, **content))
        self.counts.sent += 1
        self.counts.sent_bytes += len(data)
        self._publish(to, data)

    def fits(self, group: Group) -> bool:
        """Tell whether pickers of a group are understood."""
        return group in (self._group, self._second)

    def receive(self, data: bytes) -> None:
        """Take a message; what does not read or fit is counted and ignored."""
        try:
            message = decode(data)
        except UnreadableError:
            self.counts.ignored["unreadable"] += 1
            return
        if message is None or not self.fits(message.group):
            self.counts.ignored["format" if message is None else _unlike(message.group, self._group)] += 1
            return
        if message.origin == self._origin:
            return
        now_s, peer = self._clock.mono_s(), self._peers.get(message.origin)
        if message.leaves:
            self._drop(message.origin, now_s)
            self._peers.pop(message.origin, None)
            self._answers.forget(message.origin)
            if self._leading is not None:
                self._leading.left(message.origin)
            return
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                self.counts.ignored["too many peers"] += 1
                return
            peer = self._peers[message.origin] = _PeerPicker(now_s)
        self.counts.received += 1
        peer.heard_s, peer.alive = now_s, True
        if message.lead is not None and self._leading is not None:
            heard = self._leading.hear(message.origin, message.lead, now_s, self._clock.wall_s())
            self.counts.ignored["a term too high"] += not heard
        if message.ask is not None or message.wants:
            self._answers.ask(message.origin, message.ask, message.wants)
            self._wake(0.0)
        else:
            self._take(message, peer, now_s)

    def _take(self, message: Message, peer: _PeerPicker, now_s: float) -> None:
        if peer.sequence is None or message.sequence > peer.sequence:
            if message.sequence >= 0:
                self._follow(message, peer)
            if self._load:
                own, slot_of = self._datastore.ledger.block, self._datastore.slot_of
                load = {address: row for address, row in message.load.items() if slot_of(address) is not None}
                self._peer_load.update(message.origin, load, own, whole=message.whole)
                self._leave_alone(message, now_s)
                if self._programs is not None and message.group == self._group:  # it names them as we do
                    self._programs.hear(message.origin, message.held, message.programs, now_s)
                if self._binding is not None:
                    self._binding.hear(message.origin, message.queue, now_s)
        if message.changed_s:
            self.counts.staleness_s.append(max(0.0, self._clock.wall_s() - message.changed_s))
        if message.used and self._tokens is not None:
            self._tokens.hold(message.used, round(self._clock.wall_s() * 1e3))
        named = message.group == self._group
        wants = [
            delta
            for delta in message.facts
            if (named or delta.stored) and not self._apply_remote(delta, now_s)
        ]
        if wants and self.warm:  # a joiner gets all of it anyway
            self._say(message.origin, wants=wants)
        if message.last and not self.warm:
            self.warm = True
            self._adopt(message)

    def _follow(self, message: Message, peer: _PeerPicker) -> None:
        """Note a peer's message to all, and ask for what was missed before it."""
        before = peer.sequence
        if before is None:  # of a newcomer: a joiner asks one peer for all, instead
            before = -1 if self.warm else message.sequence - 1
        peer.sequence = message.sequence
        if missed := message.sequence - before - 1:
            self.counts.lost += missed
            self._say(message.origin, ask=before)

    def _leave_alone(self, message: Message, now_s: float) -> None:
        datastore = self._datastore
        for address, length_s in message.ejected.items():
            if (slot := datastore.slot_of(address)) is not None:
                datastore.health.eject_until(slot, now_s + length_s, now_s)
        for address, length_s in message.paused.items():
            if (slot := datastore.slot_of(address)) is not None:
                datastore.retry_after.pause_for(slot, length_s, now_s, "it asked another picker to wait")

    def _apply_remote(self, delta: IndexDelta, now_s: float) -> bool:
        """Insert a fact; False where it names runs that are not known here.

        What an earlier process of the endpoint was given says nothing; a later process is a restart.
        """
        datastore = self._datastore
        slot = datastore.slot_of(delta.endpoint)
        if slot is None:
            return True
        started_s = datastore.engine.started_s(slot)
        if delta.started_s and started_s:
            if delta.started_s < started_s - _SAME_START_S:
                return True
            if delta.started_s > started_s + _SAME_START_S:
                datastore.restart(delta.endpoint, now_s)
                datastore.engine.restarted(slot, delta.started_s, now_s)
        for key in array("Q", delta.stored):
            datastore.stored.hold(slot, key, now_s)
        return bool(delta.stored) or datastore.index.apply_remote(slot, delta.prefix())

    def since(self, sequence: int) -> Iterator[IndexDelta] | None:
        """List the facts sent after a message; None where they are kept no more."""
        journal = self._journal
        if len(journal) == JOURNAL and journal[0][0] > sequence:
            return None
        return iter([delta for at, delta in journal if at > sequence])

    def whole(self, wants: Iterable[IndexDelta]) -> Iterator[IndexDelta]:
        """List facts again, with the runs that their reader misses."""
        for delta in wants:
            prefix = self._datastore.index.whole(delta.prefix())
            if prefix is not None:
                yield from facts_of(delta.endpoint, delta.started_s, prefix)

    def everything(self) -> Iterator[IndexDelta]:
        """List all that is known."""
        datastore = self._datastore
        for slot, endpoint in datastore.members:
            for prefix in datastore.index.prefixes(slot):
                yield from facts_of(endpoint.address, datastore.engine.started_s(slot), prefix)
            keys = datastore.stored.keys(slot)
            for at in range(0, len(keys), MAX_BLOCKS):
                yield self._stores(slot, keys[at : at + MAX_BLOCKS])

    def _send_piece(self, now_s: float) -> None:
        """Send a piece of what was asked for; the rest waits for the next flush."""
        if (piece := self._answers.next(now_s)) is None:
            return
        if piece.facts:
            self._say(piece.origin, facts=piece.facts)
        else:
            datastore = self._datastore
            hits = {
                endpoint.address: datastore.calibration.sums(slot) for slot, endpoint in datastore.members
            }
            rates, paths = datastore.rates.learned, datastore.paths.learned
            uses = [] if self._tokens is None else self._tokens.used(MAX_USES)
            self._say(piece.origin, last=True, rates=rates, paths=paths, hits=hits, used=uses)
        self._wake(LEAST_S)

    def _adopt(self, message: Message) -> None:
        """Start from what a peer has learned."""
        datastore = self._datastore
        datastore.rates.adopt(message.rates)
        datastore.paths.adopt(message.paths)
        for address, (reported, predicted) in message.hits.items():
            if (slot := datastore.slot_of(address)) is not None:
                datastore.calibration.adopt(slot, reported, predicted)

    def _join(self, now_s: float) -> None:
        """Ask a peer for what it knows, until one has answered or nobody is there."""
        if self.warm:
            return
        alive = {name: peer for name, peer in self._peers.items() if peer.alive}
        if not alive:
            self.warm = now_s - self._started_s > ALONE_S
        elif all(now_s - peer.asked_s > ALL_S for peer in alive.values()):
            origin = min(alive, key=lambda name: (alive[name].asked_s, name))
            alive[origin].asked_s = now_s
            self._say(origin, ask=-1)

    def _forget_silent(self, now_s: float) -> None:
        for origin, peer in list(self._peers.items()):
            if peer.alive and now_s - peer.heard_s > SILENT_S:
                peer.alive = False
                self._drop(origin, now_s)
            if now_s - peer.heard_s > REMEMBERED_S:
                del self._peers[origin]
                self._answers.forget(origin)

    def _drop(self, origin: str, now_s: float) -> None:
        """Count what a peer has in flight and in its queue no more."""
        self._peer_load.drop(origin)
        if self._programs is not None:
            self._programs.hear(origin, {}, None, now_s)
        if self._binding is not None:
            self._binding.hear(origin, {}, now_s)


def _unlike(theirs: Group, ours: Group) -> str:
    """Name the first thing that differs."""
    for name in ("pool", "policy"):
        if getattr(theirs, name) != getattr(ours, name):
            return f"another {name}"
    return "another key or block size"
