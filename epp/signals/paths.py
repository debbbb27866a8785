"""The way to each region: how likely the next request opens a connection, and what a body costs on it.

Owns what access-log timings say of connections. A path is a region's (its endpoints stand behind the same
links, proxies and kernels), or an endpoint's own where it names none. The pool of idle connections is
modelled by its requests: each end leaves one idle, each start takes the youngest. What an idle time means is
learned: engines close idle connections after seconds, proxies after minutes, and between tiers that speak
HTTP/2 a request nearly always finds one.

Rules: an older idle connection is never held likelier to be there than a younger one. Before any report the
chance is 0, with all of slow start: a policy then uses its own prior. After the first report of any path,
priors hold for the others, so that none gains by silence.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.signals.slots import grown
from epp.types import FIRST_FLIGHT_BYTES, network_ms, upload_doublings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.signals.slots import Rows
    from epp.types import Floats

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
#: Idle connections remembered of an endpoint.
_MOST_IDLE = 4096
#: Below this round trip a body's cost is lost in an engine's own time.
_LEAST_RTT_MS = 5.0
_ABSURD_MS = 60_000.0
_NAN = math.nan


@dataclass(frozen=True, slots=True)
class ConnectionTiming:
    """A request's connection, as the access log has it.

    Attributes:
        is_new: it was opened for this request.
        connect_ms: from its beginning to the first byte of the request, handshakes included; NaN if not new.
        first_byte_ms: from the first byte of the request to the first one of its answer; NaN if not known.
    """

    is_new: bool
    connect_ms: float = _NAN
    first_byte_ms: float = _NAN


class PathFigures(NamedTuple):
    """A path for people: requests so far, those on a connection opened for them, network time of a mean body.

    Times are NaN without a round trip.
    """

    requests: int
    cold: int
    warm_ms: float
    cold_ms: float


class LearnedPath(NamedTuple):
    """What a path rests on: by class requests, cold ones and median rounds; connect, mean body, counts."""

    requests: tuple[float, ...]
    colds: tuple[float, ...]
    rounds: tuple[float, ...]
    connect_ms: float
    body_bytes: float
    counts: tuple[int, int]

    @property
    def is_sound(self) -> bool:
        """Whether these can be numbers of a path."""
        if {_CLASSES} != {len(column) for column in self[:3]} or not 0.0 <= self.body_bytes < math.inf:
            return False
        rows = zip(self.colds, self.requests, self.rounds, strict=True)
        return all(0.0 <= cold <= count < math.inf and 0.0 <= rounds <= 1.0 for cold, count, rounds in rows)


class _Path:
    """What is known of one path.

    Args:
        name: the region's, or the endpoint's.
        first: where its classes begin in the table's columns.
    """

    def __init__(self, name: str, first: int) -> None:
        self.name, self.first = name, first
        # Lists: a handful of numbers for each report, which arrays would take longer for.
        self._requests, self._colds = [0.0] * _CLASSES, [0.0] * _CLASSES
        self._rounds = [deque[float](maxlen=_WINDOW) for _ in range(_CLASSES)]
        self._connects = deque[float](maxlen=_WINDOW)
        self.slots: set[int] = set()
        self.requests = self.cold = 0
        self.rounds = [1.0] * _CLASSES
        self.connect_ms, self.body_bytes = _NAN, 0.0

    def observe(self, idle: int, timing: ConnectionTiming, rtt_ms: float, body_bytes: int) -> None:
        self.requests += 1
        self.cold += timing.is_new
        keep = 1.0 - 1.0 / _MEMORY
        requests = self._requests = [count * keep for count in self._requests]
        colds = self._colds = [count * keep for count in self._colds]
        requests[idle] += 1.0
        colds[idle] += timing.is_new
        self.body_bytes += (body_bytes - self.body_bytes) / min(self.requests, 100)
        if timing.is_new and 0.0 <= timing.connect_ms <= _ABSURD_MS:
            self._connects.append(timing.connect_ms)
            self.connect_ms = min(self._connects)
        rounds = _rounds_of(timing, rtt_ms, body_bytes)
        if not math.isnan(rounds):
            self._rounds[idle].append(rounds)
            self.rounds[idle] = median(self._rounds[idle])

    @property
    def learned(self) -> LearnedPath:
        columns = tuple(self._requests), tuple(self._colds), tuple(self.rounds)
        return LearnedPath(*columns, self.connect_ms, self.body_bytes, (self.requests, self.cold))

    def adopt(self, learned: LearnedPath) -> None:
        """Take another's samples in the place of its own, where those are more."""
        requests, cold = learned.counts
        if requests <= self.requests or not learned.is_sound:
            return
        self.requests, self.cold = requests, cold
        self._requests, self._colds, self.rounds = (list(column) for column in learned[:3])
        self.body_bytes = learned.body_bytes
        if 0.0 <= learned.connect_ms <= _ABSURD_MS:
            self.connect_ms = learned.connect_ms
            self._connects.append(self.connect_ms)

    def chance(self) -> list[float]:
        """Estimate the chance of a new connection, by class; the prior before any request."""
        requests = self._requests
        return _rising(
            [
                (cold + prior) / (count + _PRIOR_REQUESTS)
                for cold, prior, count in zip(self._colds, _PRIOR_COLDS, requests, strict=True)
            ],
            requests,
        )

    @property
    def all_rounds(self) -> float:
        """Median over all classes; 1 if none is known."""
        known = [rounds for row in self._rounds for rounds in row]
        return median(known) if known else 1.0


class PathTable:
    """Paths by slot.

    What is shown of a path stands in a table, a column for each class; an endpoint's column is that of the
    connection that the next request would find. So what a report changes is written once, for however many
    endpoints.
    """

    def __init__(self) -> None:
        self._paths: dict[str, _Path] = {}
        self._of: dict[int, _Path] = {}
        self._idle: dict[int, deque[float]] = {}  # when each became idle, the youngest last
        self._table = np.zeros((3, 0), np.float64)
        self._free: list[int] = []  # first columns of paths that left
        self._at = np.zeros(0, np.intp)  # column by slot
        self._due_s = np.zeros(0, np.float64)  # when that connection is older than its class
        self._next_due_s = math.inf
        self._changed: set[_Path] = set()  # paths whose columns are not in the table yet
        #: Whether any connection was ever reported.
        self.known = False

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._at = grown(self._at, capacity, 0)
        self._due_s = grown(self._due_s, capacity, math.inf)

    def assign(self, slot: int, path: str) -> None:
        """Assign an endpoint to its path; its connections are not known."""
        self.forget(slot)
        known = self._paths.get(path) or self._add(path)
        self._of[slot] = known
        known.slots.add(slot)
        self._classify(slot, 0.0)

    def forget(self, slot: int) -> None:
        """Forget an endpoint; its path keeps what it learned while another uses it."""
        self.close(slot)
        path = self._of.pop(slot, None)
        if path is None:
            return
        path.slots.discard(slot)
        if not path.slots:
            del self._paths[path.name]
            self._changed.discard(path)
            self._free.append(path.first)

    def close(self, slot: int) -> None:
        """Forget the connections of a process that is gone."""
        self._idle.pop(slot, None)
        self._classify(slot, 0.0)

    def started(self, slot: int, now_s: float) -> int:
        """Take the connection that a request should find; return its class."""
        idle = self._idle.get(slot)
        if not idle:
            return NONE_IDLE
        found = bisect_right(IDLE_S, now_s - idle.pop())
        self._classify(slot, now_s)
        return found

    def ended(self, slot: int, now_s: float) -> None:
        """Return a connection whose request is over."""
        if slot not in self._of:
            return
        self._idle.setdefault(slot, deque(maxlen=_MOST_IDLE)).append(now_s)
        self._classify(slot, now_s)

    def observe(
        self, slot: int, idle: int, timing: ConnectionTiming, *, rtt_ms: float, body_bytes: int
    ) -> None:
        """What became of a request.

        Args:
            slot: who served it.
            idle: what `started` said of it.
            timing: of its connection.
            rtt_ms: round trip when it was sent; NaN when that was not known.
            body_bytes: its size.
        """
        path = self._of.get(slot)
        if path is None:
            return
        path.observe(idle, timing, rtt_ms, body_bytes)
        self._changed.add(path)
        if not self.known:
            self.known = True
            self._changed.update(self._paths.values())

    @property
    def learned(self) -> dict[str, LearnedPath]:
        """Return what the paths rest on that carried requests."""
        return {name: path.learned for name, path in self._paths.items() if path.requests}

    def adopt(self, learned: Mapping[str, LearnedPath]) -> None:
        """Take another picker's samples of the paths here, where those are more."""
        for name, samples in learned.items():
            if name in self._paths:
                self._paths[name].adopt(samples)
                self.known = True
        self._changed.update(self._paths.values())

    def fill(self, columns: Floats, rows: Rows, rtt_ms: Floats, now_s: float) -> None:
        """Write ``[3, rows]``: chance of a new connection, ms to open one, upload rounds on an open one.

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
        if self.known:
            np.copyto(columns[1], rtt_ms, where=np.isnan(columns[1]))

    def describe(self, rtt_ms: Floats) -> dict[str, PathFigures]:
        """Describe each path that carried requests, for people; round trips by slot."""
        rows: dict[str, PathFigures] = {}
        for name, path in self._paths.items():
            if path.requests:
                rtt = float(np.fmin.reduce(rtt_ms[list(path.slots)]))
                of_body = partial(network_ms, rtt, path.body_bytes, path.all_rounds)
                connect_ms = rtt if math.isnan(path.connect_ms) else path.connect_ms
                warm_ms, cold_ms = of_body(), of_body(connect_ms=connect_ms, cold=1.0)
                rows[name] = PathFigures(path.requests, path.cold, warm_ms, cold_ms)
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
        self._show(path)
        return path

    def _show(self, path: _Path) -> None:
        """Write the path's columns: as good as assumed before any report."""
        classes = slice(path.first, path.first + _CLASSES)
        self._table[0, classes] = path.chance() if self.known else 0.0
        self._table[1, classes] = path.connect_ms if self.known else 0.0
        self._table[2, classes] = path.rounds if self.known else 1.0


def _rounds_of(timing: ConnectionTiming, rtt_ms: float, body_bytes: int) -> float:
    """Round trips per doubling of a body, beside the one of every request; NaN if it is unknown.

    An engine's own time before its first byte counts in, so that a path never seems better than it is.
    """
    if timing.is_new or body_bytes <= FIRST_FLIGHT_BYTES or not rtt_ms >= _LEAST_RTT_MS:
        return _NAN
    if not 0.0 <= timing.first_byte_ms <= _ABSURD_MS:
        return _NAN
    return min(max((timing.first_byte_ms / rtt_ms - 1.0) / upload_doublings(body_bytes), 0.0), 1.0)


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
