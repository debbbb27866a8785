"""What is known of peer regions from their summaries: columns of a snapshot, and when they are unknown.

Owns the last summary of each peer, the copy of its sketch, and this region's in-flight load there when the
summary was made: what was sent since counts on top, and what ended since is taken off. A peer that was
silent for `STALE_S` is unknown. Messages that a broken path kept back and brings late are as old as they are:
the least difference between a peer's clock and this one shows how late each is.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from epp.errors import UnreadableError
from epp.regions.sketch import CONTENT_BYTES, Sketch
from epp.regions.summary import Summary, decode
from epp.signals.ledger import QUEUED, ROWS, RUNNING
from epp.signals.metrics_text import EngineSample
from epp.types import NUMERIC_COLUMNS, PEER_CLASS, Endpoint
from epp.wire import unpack

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from epp.regions.summary import SketchContent
    from epp.signals.datastore import Datastore
    from epp.types import Floats, RequestInfo, Slots

#: A peer that was silent for so long is unknown.
STALE_S = 3.0
#: A whole sketch is asked for again after so long.
ASK_EVERY_S = 2.0
#: Tokens of prompts forwarded of late that a peer is believed to hold before its sketch says so.
RECENT_TOKENS = 200_000
#: In-flight load is looked at so often at most, and so many looks are kept.
_SAMPLE_S, _SAMPLES = 0.01, 512
#: Round trip to a peer before any is measured.
_RTT_S = 0.2
#: A peer whose messages were all late for so long has set its clock.
_CLOCK_SET_S = 30.0
#: Bytes of an event of one token (OpenAI's, in a stream), and of a token of text.
_EVENT_BYTES, _TEXT_BYTES = 250.0, 5.0

_FIRST_LOAD, _FIRST_RATE, _HIT_RATIO = map(
    NUMERIC_COLUMNS.index, ("queued_tokens", "prefill_base_ms", "hit_ratio")
)
_LOAD, _RATES = slice(_FIRST_LOAD, _FIRST_LOAD + ROWS), slice(_FIRST_RATE, _FIRST_RATE + 4)


def peer_endpoint(region: str, address: str) -> Endpoint:
    """Make the endpoint of the pool that stands for a peer region."""
    return Endpoint(address, region=region, engine_class=PEER_CLASS)


@dataclass(slots=True)
class _PeerRegion:
    region: str
    address: str
    slot: int | None = None
    summary: Summary | None = None
    sketch: Sketch = field(default_factory=Sketch)
    least_late_s: float = math.inf  # this clock less the peer's, at the fastest message
    made_s: float = -math.inf  # when the summary was made, by this clock
    late_since_s: float = math.inf  # since when every message was late
    promises: deque[tuple[float, Floats]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    base: Floats = field(default_factory=lambda: np.zeros(ROWS))  # in-flight load when the summary was made
    #: Changes heard since the whole sketch was asked for, with their sequences; None while it is whole.
    since: list[tuple[int, bytes]] | None = None
    needed: int = -1  # the last summary that the whole sketch must have the changes of
    asked_s: float = -math.inf


class SketchMatch:
    """Say how much of a prompt the peers hold by their sketches.

    Args:
        prompt: the prompt.
        peers: the peers, by slot.
        key_id: of the prompt's hashes; a sketch of others says nothing.
    """

    __slots__ = ("_key_id", "_peers", "_prompt")

    def __init__(self, prompt: RequestInfo, peers: Mapping[int, _PeerRegion], key_id: str) -> None:
        self._prompt, self._peers, self._key_id = prompt, peers, key_id

    def cached_tokens(self, slots: Slots) -> Floats:
        """Return the tokens cached by candidate, 0 for the own engines."""
        found = np.zeros(len(slots))
        for row, slot in enumerate(slots.tolist()):
            peer = self._peers.get(slot)
            if peer is not None and peer.summary is not None and peer.summary.key_id == self._key_id:
                found[row] = self._prompt.tokens_before(peer.sketch.depth(self._prompt.blocks))
        return found


class RemoteRegions:
    """The peers of a region; `Datastore.remote`.

    Args:
        datastore: the signals.
        region: the own one.
        key_id: of the index's hashes.
        peers: region -> address of the endpoint that stands for it.
        prices: region -> per GB that leaves it, per million tokens computed there.
        ms_per_unit: milliseconds that a unit of money weighs.
    """

    def __init__(
        self,
        datastore: Datastore,
        *,
        region: str,
        key_id: str,
        peers: Mapping[str, str],
        prices: Mapping[str, tuple[float, float]] | None = None,
        ms_per_unit: float = 0.0,
    ) -> None:
        self._datastore, self._region, self._key_id = datastore, region, key_id
        self._peers = {name: _PeerRegion(name, address) for name, address in peers.items()}
        self._by_slot: dict[int, _PeerRegion] = {}
        self._prices, self._ms_per_unit = prices or {}, ms_per_unit
        datastore.use_remote(self)

    def hear(self, data: bytes, now_s: float) -> str:
        """Take a peer's summary or whole sketch.

        Returns:
            The peer's region, "" where the message is none that counts.
        """
        try:
            message = decode(data)
            peer = None if message is None else self._peers.get(message.region)
            if message is None or peer is None:
                return ""
            taken = (
                self._take(peer, message, now_s)
                if isinstance(message, Summary)
                else self._restore(peer, message)
            )
        except UnreadableError:
            return ""
        return message.region if taken else ""

    def missing(self, now_s: float) -> list[str]:
        """Return the regions whose whole sketch is to be asked for now."""
        asked = []
        for peer in self._peers.values():
            if peer.since is not None and peer.summary is not None and now_s - peer.asked_s >= ASK_EVERY_S:
                peer.asked_s, peer.needed = now_s, peer.summary.sequence
                peer.since.clear()
                asked.append(peer.region)
        return asked

    def age_s(self, region: str, now_s: float) -> float:
        """Return the age of what is known of a peer, infinite before its first summary."""
        return now_s - self._peers[region].made_s

    def is_peer(self, slot: int) -> bool:
        """Tell whether a slot is a peer region."""
        return slot in self._by_slot

    def recount(self) -> None:
        """Find the peers' slots anew; what they are believed to hold is no part of the own sketch."""
        self._by_slot.clear()
        for peer in self._peers.values():
            peer.slot = self._datastore.slot_of(peer.address)
            if peer.slot is not None:
                self._by_slot[peer.slot] = peer
                self._datastore.index.set_capacity(peer.slot, RECENT_TOKENS)
        self._datastore.index.counted = ~sum(1 << slot for slot in self._by_slot)

    def unknown(self, now_s: float) -> Collection[int]:
        """Return the slots of peers that were silent for too long, or have no engine that may serve."""
        return [
            slot
            for slot, peer in self._by_slot.items()
            if now_s - peer.made_s > STALE_S or not (peer.summary and peer.summary.replicas)
        ]

    def match(self, prompt: RequestInfo) -> SketchMatch:
        """Look up a prompt in the sketches of the peers' caches."""
        return SketchMatch(prompt, self._by_slot, self._key_id)

    def fill(self, block: Floats, slots: Slots, now_s: float) -> None:
        """Set the peers' load, rates and hit ratio: of their replica of average, with own forwards since."""
        for row, slot in enumerate(slots.tolist()):
            peer = self._by_slot.get(slot)
            if peer is None or peer.summary is None:
                continue
            summary, own = peer.summary, block[_LOAD, row].copy()
            if not peer.promises or now_s - peer.promises[-1][0] >= _SAMPLE_S:
                peer.promises.append((now_s, own))
            since = (own - peer.base) / max(summary.replicas, 1)
            block[_LOAD, row] = np.maximum(summary.load + since, 0.0)
            block[_RATES, row] = summary.rates
            block[_HIT_RATIO, row] = summary.hit_ratio

    def room(self, slot: int) -> float:
        """Return the requests that a peer takes, less those forwarded since it said so."""
        peer = self._by_slot[slot]
        if peer.summary is None:
            return 0.0
        since = float(self._in_flight_tokens(peer)[RUNNING] - peer.base[RUNNING])
        return max(peer.summary.room - max(since, 0.0), 0.0)

    def prices_ms(self, request: RequestInfo, slots: Slots, uncached: Floats, answer_tokens: float) -> Floats:
        """Return what a request costs in money by candidate: tokens computed, bytes that leave a region."""
        prices = np.zeros(len(slots))
        if not self._ms_per_unit:
            return prices
        answer_bytes = answer_tokens * (_EVENT_BYTES if request.stream else _TEXT_BYTES)
        own_gb, _ = self._prices.get(self._region, (0.0, 0.0))
        for row, slot in enumerate(slots.tolist()):
            peer = self._by_slot.get(slot)
            peer_gb, tokens = self._prices.get(peer.region if peer else self._region, (0.0, 0.0))
            prices[row] = tokens * (float(uncached[row]) + answer_tokens) / 1e6
            if peer is not None:
                prices[row] += (own_gb * request.body_bytes + peer_gb * answer_bytes) / 1e9
        return prices * self._ms_per_unit

    def _take(self, peer: _PeerRegion, summary: Summary, now_s: float) -> bool:
        known = peer.summary
        if known is not None and (known.origin != summary.origin or not summary.sequence):
            known = None  # another process, or another start of its summaries
        if known is not None and summary.sequence <= known.sequence:
            return False
        if known is None:
            peer.sketch, peer.since, peer.needed = Sketch(), None, -1
        if known is None or now_s - peer.late_since_s > _CLOCK_SET_S:
            peer.least_late_s = math.inf
        if summary.sequence != (0 if known is None else known.sequence + 1):
            peer.since, peer.needed = [], summary.sequence - 1
        peer.sketch.apply(summary.changes)
        if peer.since is not None:
            peer.since.append((summary.sequence, summary.changes))
        late_s = now_s - summary.wall_s
        peer.least_late_s = min(peer.least_late_s, late_s)
        peer.summary, peer.made_s = summary, summary.wall_s + peer.least_late_s
        if late_s - peer.least_late_s > STALE_S:
            peer.late_since_s = min(peer.late_since_s, now_s)
        else:
            peer.late_since_s = math.inf
            self._apply(peer, peer.slot, summary, now_s)
        return True

    def _apply(self, peer: _PeerRegion, slot: int | None, summary: Summary, now_s: float) -> None:
        """Hand a summary's figures to the stores, and note the in-flight load when it was made."""
        if slot is None:
            return
        datastore = self._datastore
        running, waiting, usage, used = summary.engine
        unknown = usage is None or used is None
        capacity = None if unknown else round((used or 0.0) / usage) if usage else 0
        datastore.engine.update(slot, EngineSample("", running, waiting, usage, capacity), now_s)
        own = self._in_flight_tokens(peer)
        rtt_s = float(datastore.rtt.rtt_ms(now_s)[slot]) / 1e3
        # What it says crosses the same path as what is sent there: that takes a round trip to show.
        then_s = peer.made_s - (_RTT_S if math.isnan(rtt_s) else rtt_s)
        while peer.promises and peer.promises[0][0] < then_s:
            peer.promises.popleft()
        peer.base = peer.promises[0][1] if peer.promises else own
        if (
            own[QUEUED] <= 0.0 < datastore.index.tokens(slot)
        ):  # all that was forwarded is over: its sketch has it
            datastore.index.forget(slot)
            datastore.index.set_capacity(slot, RECENT_TOKENS)

    def _restore(self, peer: _PeerRegion, whole: SketchContent) -> bool:
        known = peer.summary
        if peer.since is None or known is None or known.origin != whole.origin:
            return False
        if whole.sequence < peer.needed:
            return False
        content = unpack(whole.cells, CONTENT_BYTES)
        if len(content) < CONTENT_BYTES:
            raise UnreadableError("no sketch")
        peer.sketch.load(content)
        for sequence, changes in peer.since:
            if sequence > whole.sequence:
                peer.sketch.apply(changes)
        peer.since = None
        return True

    def _in_flight_tokens(self, peer: _PeerRegion) -> Floats:
        return self._datastore.in_flight_tokens(np.array([peer.slot], np.intp))[:, 0]
