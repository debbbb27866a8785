"""The fleet: which endpoints there are, and everything known about each, composed into snapshots.

Owns the pool, the slots and their life cycle: an endpoint that joins gets columns, one that leaves or
restarts is forgotten by every store. The stores own their signals. A snapshot is one instant: columns of the
candidates with ages instead of timestamps and nothing left unknown - a missing value is filled with the worst
known one of the candidates, so that no endpoint gains by silence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import Struct

from epp.prefix_cache.sources import PrefixSources
from epp.signals.calibration import HitRatios
from epp.signals.capability import Capability
from epp.signals.engine_metrics import EngineMetrics
from epp.signals.health import HealthTracker
from epp.signals.ledger import RUNNING, LoadLedger
from epp.signals.links import Links
from epp.signals.model_means import AnswerLengths, FirstTokens, Popularity
from epp.signals.paths import PathTable
from epp.signals.rates import RateTable
from epp.signals.retry_after import RetryAfter
from epp.signals.room import Room
from epp.signals.rtt import RttTable
from epp.signals.slots import SlotMap, grown, rows_of
from epp.signals.stored_responses import StoredResponses
from epp.types import FILLABLE_COLUMNS, NUMERIC_COLUMNS, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from epp.apis.listed_models import ListedModel
    from epp.prefix_cache.index import PrefixIndex
    from epp.prefix_cache.sources import Match
    from epp.signals.capability import Success
    from epp.signals.engine_caches import EngineCaches
    from epp.signals.peer_load import PeerLoad
    from epp.signals.slots import Rows
    from epp.types import Endpoint, Flags, Floats, RequestInfo, Slots

    _Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], Rows]


_AGE_COLUMN = "engine_age_ms"


class Columns(Struct, frozen=True):
    """What was measured of some endpoints; a column each.

    Attributes:
        rows: where they are.
        versions: of the tables that it was taken from.
        values: ``[5, rows]`` in the order of `FILLABLE_COLUMNS`, nothing unknown.
        unknown: masks of what was not known and was filled, by column, that of ages included.
        updated_s: when each one's metrics came, NaN where they did not.
        rtt_sources: where round trips come from, as indices of `epp.types.RTT_SOURCES`.
    """

    rows: Rows
    versions: tuple[int, int]
    values: Floats
    unknown: Mapping[str, Flags]
    updated_s: Floats
    rtt_sources: NDArray[np.int8]

    def age_ms(self, now_s: float) -> Floats:
        """Return the age of the metrics by endpoint; where there are none the largest known."""
        ages_ms: Floats = (now_s - self.updated_s) * 1e3
        if _AGE_COLUMN in self.unknown:
            ages_ms[self.unknown[_AGE_COLUMN]] = np.fmax.reduce(ages_ms, initial=0.0)
        return ages_ms


class Measured:
    """The last candidates' columns of probes and scrapes, kept until either changes.

    Probes and scrapes come a few times a second and decisions by the hundred, so most decisions share the
    columns of the one before; only ages grow in between. Shared columns cannot be written.

    Args:
        rtt: round-trip times.
        engine: engine metrics.
    """

    def __init__(self, rtt: RttTable, engine: EngineMetrics) -> None:
        self._rtt, self._engine = rtt, engine
        self._kept: Columns | None = None

    def columns(self, rows: Rows, now_s: float) -> Columns:
        """Return the columns of these rows; ``rows`` is compared by identity."""
        rtt, engine, kept = self._rtt, self._engine, self._kept
        rtt_ms, block = rtt.rtt_ms(now_s), engine.block(now_s)  # what is stale by now goes, and is a change
        versions = rtt.version, engine.version
        if kept is not None and kept.rows is rows and kept.versions == versions:
            return kept
        updated_s = engine.updated_s[rows].copy()
        values = np.empty((len(FILLABLE_COLUMNS), len(updated_s)))
        values[0], values[1:] = rtt_ms[rows], block[:, rows]
        unknown: dict[str, Flags] = {}
        if math.isnan(np.minimum.reduce(values, axis=None)):  # the cheapest question for any NaN
            unknown = _fill(values)
        without = np.isnan(updated_s)
        if without.any():
            unknown[_AGE_COLUMN] = without
        sources = rtt.sources(now_s)[rows].copy()
        kept = self._kept = Columns(rows, versions, values, unknown, updated_s, sources)
        for shared in (values, sources):
            shared.flags.writeable = False
        return kept


def _fill(values: Floats) -> dict[str, Flags]:
    """Replace NaN by the largest known of its row, 0 when none is known; in all these larger is worse."""
    masks = np.isnan(values)
    worst = np.fmax.reduce(values, axis=1, initial=0.0)
    np.copyto(values, worst[:, None], where=masks)
    filled = np.flatnonzero(masks.any(axis=1)).tolist()
    return {FILLABLE_COLUMNS[row]: masks[row] for row in filled}


def _from(column: str, count: int) -> slice:
    """Return the rows of a snapshot's block from a column on."""
    first = NUMERIC_COLUMNS.index(column)
    return slice(first, first + count)


# Where a snapshot's block has what each store knows.
_RTT, _CACHED, _UNCACHED = map(NUMERIC_COLUMNS.index, ("rtt_ms", "cached_tokens", "uncached_tokens"))
_AGE, _HIT_RATIO, _SUCCESS = map(NUMERIC_COLUMNS.index, (_AGE_COLUMN, "hit_ratio", "success"))
_LEDGER, _ENGINE = _from("queued_tokens", 5), _from("engine_running", 4)
_RATES, _PATHS = _from("prefill_base_ms", 4), _from("cold_chance", 3)


class Remote(Protocol):
    """What is known of peer regions, each an endpoint of the pool that stands for many."""

    def recount(self) -> None:
        """Find the peers' slots anew: the pool has changed."""

    def unknown(self, now_s: float) -> Collection[int]:
        """Return the slots of peers of which nothing is known by now."""
        ...

    def match(self, prompt: RequestInfo) -> Match:
        """Look up a prompt among those that peers hold."""
        ...

    def fill(self, block: Floats, slots: Slots, now_s: float) -> None:
        """Set a snapshot's columns of the peers among the candidates."""

    def is_peer(self, slot: int) -> bool:
        """Tell whether a slot is a peer region."""
        ...

    def room(self, slot: int) -> float:
        """Return how many more requests a peer takes."""
        ...

    def prices_ms(self, request: RequestInfo, slots: Slots, uncached: Floats, answer_tokens: float) -> Floats:
        """Return what the request costs in money, as milliseconds, by candidate."""
        ...


#: Candidate sets whose names are kept ready; filters make a handful of them.
_REMEMBERED_SETS = 256


class Datastore:
    """The pool and its signals.

    Args:
        index: the prefix index, cleared and sized with the endpoints, and the first source of prefixes.
        stale_after_s: age from which engine metrics are unknown.
        probe_interval_s: RTTs go stale after sixty seconds or ten of these, whichever is longer; 0 for no
            probes.
        eject_s: length of a first ejection.
        capacity_stated: the index has its own capacity for every endpoint, whatever engines report.
    """

    def __init__(
        self,
        index: PrefixIndex,
        *,
        stale_after_s: float = 10.0,
        probe_interval_s: float = 2.0,
        eject_s: float = 5.0,
        capacity_stated: bool = False,
    ) -> None:
        #: Endpoints that by the policy answer no requests.
        self.helpers: frozenset[str] = frozenset()
        self._capacity_stated = capacity_stated
        self.index, self.prefixes = index, PrefixSources(index)
        self.ledger, self.links = LoadLedger(), Links()
        self.rtt = RttTable(max(60.0, 10.0 * probe_interval_s))
        self.engine = EngineMetrics(stale_after_s)
        self.health = HealthTracker(eject_s, probe_interval_s)
        self.calibration = HitRatios()
        self.rates = RateTable()
        self.answers = AnswerLengths()
        self.first_tokens = FirstTokens()
        self.popularity = Popularity()
        self.capability = Capability()
        self.paths = PathTable()
        self.retry_after = RetryAfter()
        self.stored = StoredResponses()
        self.room = Room()
        self.engine.on_sample["room"] = self.room.observe
        self.engine.on_sample["links"] = self.links.observe
        #: Called when the pool has changed, by name.
        self.on_pool: dict[str, Callable[[], None]] = {}
        #: Called with the slot of an endpoint whose process is another.
        self.on_restart: dict[str, Callable[[int], None]] = {}
        #: What is known of peer regions, None where there are none.
        self.remote: Remote | None = None
        #: What engines say that they hold, None where none is listened to.
        self.engine_caches: EngineCaches | None = None
        #: In-flight load of other pickers, None where there are none.
        self.peer_load: PeerLoad | None = None
        self._measured = Measured(self.rtt, self.engine)
        self._members: dict[str, tuple[int, Endpoint]] = {}
        self._applied = False
        self._fresh_s = np.zeros(0, np.float64)  # since when it starts slowly; -inf for past slow start
        self._last_fresh_s = -math.inf
        self._learned_tokens: dict[int, int] = {}
        self._listed: dict[int, Mapping[str, ListedModel]] = {}
        self._names: dict[bytes, _Names] = {}
        self._named: tuple[Slots | None, _Names] = (None, ((), (), (), slice(0)))
        stores = self.ledger, self.rtt, self.engine, self.health, self.calibration, self.rates, self.paths
        self._columns = (*stores, self.room, self.links)
        self._slots = SlotMap(self._resize)

    def __len__(self) -> int:
        """Count the endpoints, draining ones included."""
        return len(self._members)

    @property
    def members(self) -> tuple[tuple[int, Endpoint], ...]:
        """The pool as (slot, endpoint) pairs, in pool order."""
        return tuple(self._members.values())

    def slot_of(self, address: str) -> int | None:
        """Return the slot of an endpoint, None when it is not in the pool."""
        known = self._members.get(address)
        return None if known is None else known[0]

    def member(self, address: str) -> tuple[int, Endpoint] | None:
        """Return slot and endpoint of an address, None when it is not in the pool."""
        return self._members.get(address)

    def endpoints(self, slots: Slots) -> list[Endpoint]:
        """Return the endpoints of some slots."""
        known = dict(self._members.values())
        return [known[slot] for slot in slots.tolist()]

    def address_of(self, slot: int) -> str | None:
        """Return the address of the slot's endpoint, None when the slot is free."""
        return self._slots.address_of(slot)

    def apply(self, endpoints: Sequence[Endpoint], now_s: float) -> None:
        """Make these the pool, in this order.

        Endpoints that stay keep all that is known of them, unless their uid is another. Endpoints of the very
        first pool count as past slow start; later ones start slowly.
        """
        wanted = {endpoint.address: endpoint for endpoint in endpoints}
        for address in [address for address in self._members if address not in wanted]:
            self._remove(address)
        members: dict[str, tuple[int, Endpoint]] = {}
        for address, endpoint in wanted.items():
            known = self._members.get(address)
            slot = self._add(address, now_s) if known is None else known[0]
            members[address] = (slot, endpoint)
        before, self._members = self._members, members
        self._names.clear()
        self._named = (None, self._named[1])
        self._applied = self._applied or bool(members)
        for address, (slot, endpoint) in members.items():
            old = before[address][1] if address in before else None
            if old is None or old.engine_class != endpoint.engine_class:
                self.rates.assign(slot, endpoint.engine_class)
            if old is None or old.region != endpoint.region:
                self.paths.assign(slot, endpoint.region or address)
            if old is not None and old.uid and endpoint.uid and old.uid != endpoint.uid:
                self._learned_tokens.pop(slot, None)
                self.engine.forget(slot)
                self.restart(address, now_s)
            elif old is None or old.kv_capacity_tokens != endpoint.kv_capacity_tokens:
                self._size_index(slot, endpoint)
        for listener in self.on_pool.values():
            listener()

    def restart(self, address: str, now_s: float) -> None:
        """Forget the cache and the requests of an endpoint whose process is another.

        Its RTT stays: the network did not restart. Unknown addresses are ignored.
        """
        known = self._members.get(address)
        if known is None:
            return
        slot, endpoint = known
        self.index.forget(slot)
        if self.engine_caches is not None:
            self.engine_caches.restarted(slot, now_s)
        self.ledger.forget(slot)
        self.links.forget(slot)
        self.calibration.forget(slot)
        self.rates.assign(slot, endpoint.engine_class)
        self.paths.close(slot)
        self.health.admit(slot)
        self.retry_after.forget(slot)
        self.stored.forget(slot)
        self._listed.pop(slot, None)
        self._size_index(slot, endpoint)
        self._begin_slow_start(slot, now_s)
        for forget in self.on_restart.values():
            forget(slot)

    def labels(self, key: str) -> dict[int, str]:
        """Return the value of a label by slot, of the endpoints that have it."""
        return {slot: each.labels[key] for slot, each in self._members.values() if key in each.labels}

    def assume_rtt(self, address: str, rtt_ms: float | None) -> None:
        """State the RTT that counts while none is measured, None to state nothing."""
        slot = self.slot_of(address)
        if slot is not None:
            self.rtt.assume(slot, rtt_ms)

    def learn_capacity(self, slot: int, tokens: int) -> None:
        """Take the KV capacity that an engine reports; an operator's in the endpoint goes before it."""
        address = self._slots.address_of(slot)
        if address is None or self._learned_tokens.get(slot) == tokens:
            return
        self._learned_tokens[slot] = tokens
        self._size_index(slot, self._members[address][1])

    def kv_capacity_tokens(self, slot: int) -> int | None:
        """Return the KV capacity of an endpoint, as configured or reported; None where it is not known.

        An engine of a hybrid model keeps no more than its states let it take up.
        """
        address = self._slots.address_of(slot)
        if address is None or address not in self._members:
            return None
        tokens = self._members[address][1].kv_capacity_tokens or self._learned_tokens.get(slot)
        states = self.index.states
        return min(tokens, states.most_tokens) if tokens and states is not None else tokens

    def learn_models(self, slot: int, listed: Mapping[str, ListedModel]) -> None:
        """Take the models that an engine lists, by its names."""
        self._listed[slot] = listed

    def listed_models(self, slot: int) -> Mapping[str, ListedModel]:
        """Return the models that an engine lists, by its names; empty where that is not known."""
        return self._listed.get(slot, {})

    def adapter_name(self, slot: int, model: str) -> str:
        """Return what an endpoint's engine calls a public model that is an adapter, "" for a base model."""
        address = self._slots.address_of(slot)
        known = None if address is None else self._members.get(address)
        if known is None:
            return ""
        name = known[1].served_name(model)
        listed = self.listed_models(slot).get(name)
        is_adapter = model in known[1].adapters if listed is None else bool(listed.parent)
        return name if is_adapter else ""

    def context_tokens(self, slot: int) -> int | None:
        """Return the longest prompt plus answer of an endpoint: as listed, else as configured."""
        address = self._slots.address_of(slot)
        if address is None:
            return None
        listed = max((each.context_tokens or 0 for each in self.listed_models(slot).values()), default=0)
        return listed or self._members[address][1].context_tokens

    def warm_share(self, now_s: float, warmup_s: float) -> Floats | None:
        """Return the slow-start share by slot, 0..1; None when all are past it.

        The share grows linearly over ``warmup_s`` from the moment at which an endpoint joined, restarted or
        returned from an ejection.
        """
        last_s = max(self._last_fresh_s, self.health.standing(now_s).last_return_s)
        if warmup_s <= 0 or now_s - last_s >= warmup_s:
            return None
        fresh_s = np.maximum(self._fresh_s, self.health.returned_at_s(now_s))
        shares: Floats = np.clip((now_s - fresh_s) / warmup_s, 0.0, 1.0)
        return shares

    def snapshot(
        self,
        slots: Slots,
        cached_tokens: Floats | None,
        prompt_tokens: int,
        now_s: float,
        *,
        models: tuple[str, ...] = (),
        success: Success | None = None,
    ) -> Snapshot:
        """Take a snapshot of the candidates' columns at this instant.

        Args:
            slots: candidates, in the order wanted.
            cached_tokens: prompt tokens in the KV cache of each, None when there is no prompt to look up.
            prompt_tokens: tokens of the prompt.
            now_s: the instant.
            models: what each one's engine calls the model, empty when all use its public name.
            success: chances of a right answer, None when nothing is known of any.
        """
        # No `take` or `dot`: they let go of the interpreter, which another thread then holds meanwhile.
        endpoints, regions, engine_classes, rows = self._names_of(slots)
        measured = self._measured.columns(rows, now_s)
        unknown = measured.unknown
        if success is not None and success.unknown is not None:
            unknown = {**unknown, "success": success.unknown}
        block = np.empty((len(NUMERIC_COLUMNS), len(endpoints)))
        block[_RTT], block[_ENGINE] = measured.values[0], measured.values[1:]
        if cached_tokens is None:
            block[_CACHED] = 0.0
        else:
            cached, block_tokens = block[_CACHED], self.engine.kv_block_tokens[rows]
            # Engines compute a prompt's last token in any case, and find whole blocks.
            told = block_tokens > 0
            np.minimum(cached_tokens, prompt_tokens - told, out=cached)
            np.floor_divide(cached, block_tokens, out=cached, where=told)
            np.multiply(cached, block_tokens, out=cached, where=told)
        np.subtract(prompt_tokens, block[_CACHED], out=block[_UNCACHED])
        block[_LEDGER] = self.in_flight_tokens(rows)
        block[_AGE] = measured.age_ms(now_s)
        block[_HIT_RATIO] = self.calibration.hit_ratio[rows]
        block[_RATES] = self.rates.block()[:, rows]
        block[_SUCCESS] = 1.0 if success is None else success.values
        self.paths.fill(block[_PATHS], rows, measured.values[0], now_s)
        if self.remote is not None:
            self.remote.fill(block, slots, now_s)
        return Snapshot(endpoints, regions, engine_classes, block, unknown, measured.rtt_sources, models)

    def in_flight_tokens(self, rows: Rows) -> Floats:
        """Return all pickers' in-flight load of these slots: the rows of `LoadLedger.block`."""
        own: Floats = self.ledger.block[:, rows]
        return own if self.peer_load is None else own + self.peer_load.in_flight_tokens(rows, own)

    def is_peer(self, slot: int) -> bool:
        """Tell whether a slot stands for a peer region."""
        return self.remote is not None and self.remote.is_peer(slot)

    def serving(self, now_s: float) -> Slots:
        """Find the slots of the own engines that may answer now."""
        standing, paused = self.health.standing(now_s), self.retry_after.until_s(now_s) or {}
        return np.array(
            [
                slot
                for slot, endpoint in self.members
                if not (
                    endpoint.draining
                    or slot in paused
                    or endpoint.address in self.helpers
                    or self.is_peer(slot)
                )
                and standing.serves(slot)
            ],
            np.intp,
        )

    def places(self, slots: Slots) -> Floats:
        """Return how many more requests each endpoint or peer region takes before they wait."""
        found = self.room.places(slots, self.in_flight_tokens(slots)[RUNNING])
        for row, slot in enumerate(() if self.remote is None else slots.tolist()):
            if self.remote is not None and self.remote.is_peer(slot):
                found[row] = self.remote.room(slot)
        return found

    def has_room(self, now_s: float) -> bool:
        """Tell whether an own engine that may serve now takes a request before it waits."""
        return bool(self.places(self.serving(now_s)).any())

    def unknown(self, now_s: float) -> Collection[int]:
        """Return the slots of peer regions of which nothing is known by now."""
        return () if self.remote is None else self.remote.unknown(now_s)

    def use_remote(self, remote: Remote) -> None:
        """Take columns of peer regions from now on."""
        self.remote = self.prefixes.others["regions"] = remote
        self.on_pool["regions"] = remote.recount
        remote.recount()

    def count_peers(self, peer_load: PeerLoad) -> None:
        """Count other pickers' in-flight load from now on."""
        self.peer_load = peer_load
        self.on_pool["pickers"] = peer_load.recount
        peer_load.resize(self.ledger.block.shape[1])

    def _resize(self, capacity: int) -> None:
        for store in self._columns:
            store.resize(capacity)
        self._fresh_s = grown(self._fresh_s, capacity, -math.inf)
        if self.peer_load is not None:
            self.peer_load.resize(capacity)

    def _add(self, address: str, now_s: float) -> int:
        slot = self._slots.take(address)
        self.health.admit(slot)
        if self._applied:
            self._begin_slow_start(slot, now_s)
        return slot

    def _remove(self, address: str) -> None:
        slot, _ = self._members.pop(address)
        for store in (self.index, self.retry_after, self.stored, *self._columns):
            store.forget(slot)
        if self.engine_caches is not None:
            self.engine_caches.forget(slot)
        self._learned_tokens.pop(slot, None)
        self._listed.pop(slot, None)
        self._fresh_s[slot] = -math.inf
        self._slots.release(slot)

    def _begin_slow_start(self, slot: int, now_s: float) -> None:
        self._fresh_s[slot] = self._last_fresh_s = now_s

    def _size_index(self, slot: int, endpoint: Endpoint) -> None:
        learned = None if self._capacity_stated else self._learned_tokens.get(slot)
        self.index.set_capacity(slot, endpoint.kv_capacity_tokens or learned)

    def _names_of(self, slots: Slots) -> _Names:
        if slots is self._named[0]:
            return self._named[1]
        key = slots.tobytes()
        names = self._names.get(key)
        if names is None:
            if len(self._names) >= _REMEMBERED_SETS:
                self._names.clear()
            by_slot = dict(self._members.values())
            chosen = [by_slot[slot] for slot in slots.tolist()]
            names = self._names[key] = (
                tuple(endpoint.address for endpoint in chosen),
                tuple(endpoint.region for endpoint in chosen),
                tuple(endpoint.engine_class for endpoint in chosen),
                rows_of(slots),
            )
        self._named = (slots, names)
        return names
