"""The way to each region: how likely the next request opens a connection, and what a body costs on it.

Owns what access-log timings tell of connections. A path is a region's (its endpoints stand behind the same
links, proxies and kernels), or an endpoint's own where it names none. Nobody tells how many connections are
idle, but a pool that hands out the one used last is foretold by its requests: each end leaves one idle, each
start takes the youngest. What its idle time means is learned, not assumed: engines close idle connections
after seconds, proxies after minutes, and between tiers that speak HTTP/2 a request finds one nearly always.

Rules: an older idle connection is never held likelier to be there than a younger one. A path that nothing is
known of is as good as any was assumed to be before: chance 0 and all of slow start, which a policy takes as
"no better than my own prior". Once any path has told of its connections, priors hold for the others, so that
none gains by silence.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown
from epp.types import FIRST_FLIGHT_BYTES, upload_doublings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.signals.slots import Rows

#: Idle seconds that part the classes of a table's rows; the last class is "none is idle".
IDLE_S = (1.0, 4.0, 15.0, 60.0, 300.0)
NONE_IDLE = len(IDLE_S) + 1
_CLASSES = NONE_IDLE + 1
#: Chance of a cold connection by class before any was seen; engines close theirs after 5 s and more.
_PRIOR = (0.02, 0.05, 0.3, 0.5, 0.7, 0.9, 0.95)
#: Requests that a prior counts as, and that a path remembers.
_PRIOR_REQUESTS, _MEMORY = 2.0, 500.0
_PRIOR_COLDS = [_PRIOR_REQUESTS * prior for prior in _PRIOR]
#: What a class that no request was seen of counts as beside one that was, where both are averaged.
_UNSEEN = 0.1
#: Timings of bodies and of connects that an estimate is taken over.
_WINDOW = 15
#: A connection's idle time is not told to be longer than this, and so many are remembered of an endpoint.
_MOST_IDLE = 4096
#: Below this round trip bodies cost nothing that could be told from an engine's own time.
_LEAST_RTT_MS = 5.0
_ABSURD_MS = 60_000.0
_NAN = math.nan


@dataclass(frozen=True, slots=True)
class Travelled:
    """What one request told of its connection.

    Attributes:
        anew: it was opened for this request.
        opened_ms: from its beginning to the first byte of the request, handshakes included; NaN if not anew.
        first_byte_ms: from the first byte of the request to the first one of its answer; NaN if not known.
    """

    anew: bool
    opened_ms: float = _NAN
    first_byte_ms: float = _NAN


@dataclass(frozen=True, slots=True)
class PathFigures:
    """A path for people.

    Attributes:
        requests: told of so far.
        cold: of these, on a connection opened for them.
        cold_share: the same of late.
        connect_ms: time to open a connection; NaN if none was seen.
        upload_rounds: round trips per doubling of a body on connections that were there; NaN if not known.
        body_bytes: mean body of late.
        warm_ms: network time of such a body on a warm connection; NaN without a round trip.
        cold_ms: on a cold one, its opening included.
    """

    requests: int
    cold: int
    cold_share: float
    connect_ms: float
    upload_rounds: float
    body_bytes: float
    warm_ms: float
    cold_ms: float


class _Path:
    """What is known of one path.

    Args:
        name: the region's, or the endpoint's.
        first: where its classes begin in the table's columns.
    """

    __slots__ = (
        "_colds",
        "_connects",
        "_requests",
        "_rounds",
        "body_bytes",
        "cold",
        "connect_ms",
        "first",
        "name",
        "requests",
        "rounds",
        "slots",
    )

    def __init__(self, name: str, first: int) -> None:
        self.name, self.first = name, first
        # Lists: a handful of numbers for each report, which arrays would take longer for.
        self._requests, self._colds = [0.0] * _CLASSES, [0.0] * _CLASSES
        self._rounds: list[list[float]] = [[] for _ in range(_CLASSES)]
        self._connects: list[float] = []
        self.slots: set[int] = set()
        self.requests = self.cold = 0
        self.rounds = [1.0] * _CLASSES
        self.connect_ms = self.body_bytes = _NAN

    def observe(self, idle: int, told: Travelled, rtt_ms: float, body_bytes: int) -> None:
        self.requests += 1
        self.cold += told.anew
        keep = 1.0 - 1.0 / _MEMORY
        requests = self._requests = [count * keep for count in self._requests]
        colds = self._colds = [count * keep for count in self._colds]
        requests[idle] += 1.0
        colds[idle] += told.anew
        before = 0.0 if math.isnan(self.body_bytes) else self.body_bytes
        self.body_bytes = before + (body_bytes - before) / min(self.requests, 100)
        if told.anew and 0.0 <= told.opened_ms <= _ABSURD_MS:
            _push(self._connects, told.opened_ms)
            self.connect_ms = min(self._connects)
        rounds = _rounds_of(told, rtt_ms, body_bytes)
        if not math.isnan(rounds):
            _push(self._rounds[idle], rounds)
            self.rounds[idle] = median(self._rounds[idle])

    def chance(self) -> list[float]:
        """Of a cold connection, by class; the prior before any request."""
        requests = self._requests
        return _rising(
            [
                (cold + prior) / (count + _PRIOR_REQUESTS)
                for cold, prior, count in zip(self._colds, _PRIOR_COLDS, requests, strict=True)
            ],
            requests,
        )

    @property
    def cold_share(self) -> float:
        """Of late, whatever was idle; NaN before any request."""
        total = math.fsum(self._requests)
        return math.fsum(self._colds) / total if total else _NAN

    @property
    def all_rounds(self) -> float:
        """Median over all classes; NaN if none is known."""
        known = [rounds for row in self._rounds for rounds in row]
        return median(known) if known else _NAN


class PathTable:
    """Paths by slot.

    What is shown of a path stands in a table, a column for each class; an endpoint's column is that of the
    connection that the next request would find. So what a report changes is written once, for however many
    endpoints.
    """

    def __init__(self) -> None:
        self._paths: dict[str, _Path] = {}
        self._of: dict[int, _Path] = {}
        self._idle: dict[int, list[float]] = {}  # when each became idle, the youngest last
        self._table = np.zeros((3, 0), np.float64)
        self._free: list[int] = []  # first columns of paths that left
        self._at = np.zeros(0, np.intp)  # column by slot
        self._due_s = np.zeros(0, np.float64)  # when that connection is older than its class
        self._next_due_s = math.inf
        self._changed: set[_Path] = set()  # paths whose columns are not in the table yet
        self._unopened = 0  # paths of which no connect was seen
        #: Whether anything was ever told of a connection.
        self.known = False

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._at = np.append(self._at, np.zeros(capacity - len(self._at), np.intp))
        self._due_s = grown(self._due_s, capacity, math.inf)

    def assign(self, slot: int, path: str) -> None:
        """The slot's endpoint is reached by this path; its connections are not known."""
        self.forget(slot)
        known = self._paths.get(path) or self._add(path)
        self._of[slot] = known
        known.slots.add(slot)
        self._classify(slot, 0.0)

    def forget(self, slot: int) -> None:
        """The endpoint left; its path keeps what it learned while somebody else uses it."""
        self.close(slot)
        path = self._of.pop(slot, None)
        if path is None:
            return
        path.slots.discard(slot)
        if not path.slots:
            del self._paths[path.name]
            self._changed.discard(path)
            self._free.append(path.first)
            self._unopened -= math.isnan(path.connect_ms)

    def close(self, slot: int) -> None:
        """Its connections are gone, because the process behind them is."""
        self._idle.pop(slot, None)
        self._classify(slot, 0.0)

    def started(self, slot: int, now_s: float) -> int:
        """A request goes out; the class of the connection that it should find."""
        idle = self._idle.get(slot)
        if not idle:
            return NONE_IDLE
        found = bisect_right(IDLE_S, now_s - idle.pop())
        self._classify(slot, now_s)
        return found

    def ended(self, slot: int, now_s: float) -> None:
        """A request is over and its connection is idle."""
        if slot not in self._of:
            return
        idle = self._idle.setdefault(slot, [])
        idle.append(now_s)
        self._classify(slot, now_s)
        if len(idle) > _MOST_IDLE:
            del idle[0]

    def observe(self, slot: int, idle: int, told: Travelled, *, rtt_ms: float, body_bytes: int) -> None:
        """What became of a request.

        Args:
            slot: who served it.
            idle: what `started` said of it.
            told: of its connection.
            rtt_ms: round trip when it was sent; NaN when that was not known.
            body_bytes: its size.
        """
        path = self._of.get(slot)
        if path is None:
            return
        unopened = math.isnan(path.connect_ms)
        path.observe(idle, told, rtt_ms, body_bytes)
        self._unopened -= unopened and not math.isnan(path.connect_ms)
        self._changed.add(path)
        if not self.known:
            self.known = True
            self._changed.update(self._paths.values())

    def fill(
        self, columns: NDArray[np.float64], rows: Rows, rtt_ms: NDArray[np.float64], now_s: float
    ) -> None:
        """Write ``[3, rows]``: chance of a cold connection, ms to open one, upload rounds on a warm one.

        Where no connect was seen it takes a round trip, of ``rtt_ms`` by row.
        """
        if now_s >= self._next_due_s:
            for slot in np.flatnonzero(self._due_s <= now_s).tolist():
                self._classify(slot, now_s)
            self._next_due_s = float(np.minimum.reduce(self._due_s))
        if self._changed:
            for path in self._changed:
                self._show(path)
            self._changed.clear()
        at, (chance, connect_ms, rounds) = self._at[rows], self._table
        # One by one: of two dimensions at once it would take three times as long.
        columns[0], columns[1], columns[2] = chance[at], connect_ms[at], rounds[at]
        if self.known and self._unopened:
            if self._unopened == len(self._paths):
                columns[1] = rtt_ms
            else:
                np.copyto(columns[1], rtt_ms, where=np.isnan(columns[1]))

    def describe(self, rtt_ms: NDArray[np.float64]) -> dict[str, PathFigures]:
        """By path, for people; round trips by slot."""
        rows: dict[str, PathFigures] = {}
        for name, path in self._paths.items():
            if not path.requests:
                continue
            known = [float(rtt_ms[slot]) for slot in path.slots if not math.isnan(rtt_ms[slot])]
            rtt, rounds = (min(known) if known else _NAN), path.all_rounds
            doublings = upload_doublings(path.body_bytes)
            opened_ms = rtt if math.isnan(path.connect_ms) else path.connect_ms
            rows[name] = PathFigures(
                requests=path.requests,
                cold=path.cold,
                cold_share=path.cold_share,
                connect_ms=path.connect_ms,
                upload_rounds=rounds,
                body_bytes=path.body_bytes,
                warm_ms=rtt * (1.0 + (1.0 if math.isnan(rounds) else rounds) * doublings),
                cold_ms=opened_ms + cold_body_ms(rtt, path.body_bytes),
            )
        return rows

    def _classify(self, slot: int, now_s: float) -> None:
        """Which class the slot's youngest idle connection is in, and until when."""
        idle, due_s = self._idle.get(slot), math.inf
        if idle:
            found = bisect_right(IDLE_S, now_s - idle[-1])
            due_s = idle[-1] + IDLE_S[found] if found < len(IDLE_S) else math.inf
        else:
            found = NONE_IDLE
        path = self._of.get(slot)
        self._at[slot] = found if path is None else path.first + found
        self._due_s[slot] = due_s
        self._next_due_s = min(self._next_due_s, due_s)

    def _add(self, name: str) -> _Path:
        """A new path, with columns of its own."""
        first = self._free.pop() if self._free else len(self._paths) * _CLASSES
        if first == self._table.shape[1]:
            self._table = grown(self._table, max(2 * first, _CLASSES), 0.0)
        path = self._paths[name] = _Path(name, first)
        self._unopened += 1
        self._show(path)
        return path

    def _show(self, path: _Path) -> None:
        """Write the path's columns: as good as assumed before while nothing was told of any."""
        classes = slice(path.first, path.first + _CLASSES)
        self._table[0, classes] = path.chance() if self.known else 0.0
        self._table[1, classes] = path.connect_ms if self.known else 0.0
        self._table[2, classes] = path.rounds if self.known else 1.0


def cold_body_ms(rtt_ms: float, body_bytes: float) -> float:
    """Network time of a body on a new connection, once that is open, to the first byte of the answer.

    A body within the first flight of RFC 6928 takes the round trip of any request; beyond it windows double
    with every round trip (RFC 5681), ``log2(1 + body / first flight)`` of them. Measured over 210 ms without
    loss: 212, 431, 750 and 1,084 ms for 2, 20, 72 and 200 KB, where this says 210, 470, 751 and 1,023.
    """
    extra = upload_doublings(body_bytes) if body_bytes > FIRST_FLIGHT_BYTES else 0.0
    return rtt_ms * (1.0 + extra)


def _rounds_of(told: Travelled, rtt_ms: float, body_bytes: int) -> float:
    """Round trips per doubling of a body, beside the one of every request; NaN if it cannot be told.

    An engine's own time before its first byte counts in, so that a path never seems better than it is.
    """
    if told.anew or body_bytes <= FIRST_FLIGHT_BYTES or not rtt_ms >= _LEAST_RTT_MS:
        return _NAN
    if not 0.0 <= told.first_byte_ms <= _ABSURD_MS:
        return _NAN
    return min(max((told.first_byte_ms / rtt_ms - 1.0) / upload_doublings(body_bytes), 0.0), 1.0)


def _rising(values: list[float], requests: list[float]) -> list[float]:
    """The nearest column that never falls, by weighted squares: neighbours that do are averaged."""
    if values == sorted(values):  # nearly always
        return values
    parts: list[tuple[float, float, int]] = []  # mean, weight, count
    for value, seen in zip(values, requests, strict=True):
        mean, total, count = value, seen + _UNSEEN, 1
        while parts and parts[-1][0] > mean:
            before, its, many = parts.pop()
            mean = (before * its + mean * total) / (its + total)
            total, count = total + its, count + many
        parts.append((mean, total, count))
    return [mean for mean, _, count in parts for _ in range(count)]


def _push(recent: list[float], value: float) -> None:
    recent.append(value)
    if len(recent) > _WINDOW:
        del recent[0]
