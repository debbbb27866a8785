"""What became of requests in the last hour: counts in buckets of `BUCKET_S`, by replica and by model.

A bucket is sparse: it has counts of failures, of tokens, and of requests by their TTFT and E2E in bins
`_STEP` times as wide as the one before, so that a percentile is some 10 % off at most. Counts of several
pickers add up; percentiles would not.

Closed buckets are packed into `MOST_BYTES` at most: the oldest go first. With what is open and the sums that
is less than 20 MB. An hour of 1,000 replicas, 20 models and 500 requests/s takes half of that.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import numpy as np

from epp.metrics.metrics import BROKEN
from epp.schedule.decision import FIRST_ERROR, Source
from epp.signals.engine_metrics import WAITING
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.clock import Clock
    from epp.schedule.decision import Outcome
    from epp.signals.fleet import Fleet

    _Cells = dict[int, int]

BUCKET_S = 10.0
#: Buckets of each window.
WINDOWS = 30, 360
MOST_BYTES = 14_000_000
#: Names told apart, of models also none; what comes after them is `OTHER`. When there are more replicas,
#: because they come and go, the history begins anew.
MOST = {"replica": 4096, "model": 21}
OTHER = "other"
#: Failures that are remembered.
MOST_FAILURES = 20

#: Counts of a name: failed requests, others that nobody timed, tokens of prompts and of them those that were
#: cached, requests that wait in the engine at a bucket's end; then requests by bin.
FAILED, UNTIMED, PROMPT, CACHED, QUEUED, TTFT = range(6)
BINS, CELLS, _STEP = 60, 126, 1.25
E2E = TTFT + BINS
_PER_E = 1.0 / math.log(_STEP)


class History:
    """The last hour of one picker.

    Args:
        fleet: its queues are looked at at each bucket's end.
        clock: the time.

    Attributes:
        failures: the last: Unix time, decision, model, endpoint, and why; the newest at the end.
    """

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet, self._clock = fleet, clock
        self.failures = deque[tuple[float, str, str, str, str]](maxlen=MOST_FAILURES)
        self._begin()

    def _begin(self) -> None:
        self._rows = {group: {OTHER: at * CELLS} for at, group in enumerate(MOST)}
        self._cells: _Cells = defaultdict(int)
        self._closed = deque[bytes]()
        rows = sum(MOST.values()) + len(MOST)
        self._sums = [np.zeros(rows * CELLS, np.int64) for _ in WINDOWS]

    def ended(self, model: str, prompt_tokens: int, cached_tokens: float, outcome: Outcome) -> None:
        """Count a request that ended, with the tokens of its prompt and those expected to be cached.

        A client's own mistake is no failure.
        """
        usage, failure, status = outcome.usage, outcome.failure, outcome.verdict
        counts = [(UNTIMED, 1)]
        if outcome.cause in BROKEN or _is_failure(status):
            counts = [(FAILED, 1)]
            why = (
                f"status {status} {failure.code if failure else ''}"
                if status >= FIRST_ERROR
                else outcome.cause
            )
            self.failures.append((self._clock.wall_s(), outcome.id, model, outcome.where, why))
        elif status < FIRST_ERROR and outcome.sources.get("e2e_ms") is not Source.PREDICTED:
            if usage.cached_tokens is not None and usage.prompt_tokens:
                prompt_tokens, cached_tokens = usage.prompt_tokens, usage.cached_tokens
            counts = [
                (PROMPT, prompt_tokens),
                (CACHED, round(cached_tokens)),
                (E2E + _bin(outcome.e2e_ms), 1),
            ]
            if outcome.ttft_ms > 0.0:  # else it is not known
                counts.append((TTFT + _bin(outcome.ttft_ms), 1))
        self._count("replica", outcome.where, counts)
        self._count("model", model, counts)

    def refused(self, model: str, status: int, rule: str) -> None:
        """Count a request that was given no endpoint."""
        counts = [(UNTIMED, 1)]
        if _is_failure(status):
            counts = [(FAILED, 1)]
            self.failures.append((self._clock.wall_s(), "", model, "", f"refused with {status}: {rule}"))
        self._count("replica", "", counts)
        self._count("model", model, counts)

    def _count(self, group: str, name: str, counts: list[tuple[int, int]]) -> None:
        rows, cells = self._rows[group], self._cells
        if name not in rows and len(rows) <= MOST[group]:
            rows[name] = sum(map(len, self._rows.values())) * CELLS
        row = rows.get(name, rows[OTHER])
        for cell, count in counts:
            cells[row + cell] += count

    async def run(self) -> None:
        """Close a bucket every `BUCKET_S`, until cancelled."""
        while True:
            await asyncio.sleep(BUCKET_S)
            await self.turn()

    async def turn(self) -> None:
        """Close the bucket, and forget what is older than an hour."""
        waiting = self._fleet.engine.block(self._clock.mono_s())[WAITING]
        for slot, endpoint in self._fleet.members:
            if waiting[slot] > 0.0:
                self._count("replica", endpoint.address, [(QUEUED, round(waiting[slot]))])
        cells, self._cells = self._cells, defaultdict(int)
        await in_daemon_thread(self._close, cells)
        if len(self._rows["replica"]) > MOST["replica"]:
            self._begin()

    def _close(self, cells: _Cells) -> None:
        closed, (short, long) = self._closed, self._sums
        pairs = np.array(sorted(cells.items()), np.uint32)
        closed.append(zlib.compress(pairs.tobytes(), 1))
        for sums in self._sums:
            _add(sums, closed[-1], 1)
        if len(closed) > WINDOWS[0]:
            _add(short, closed[-WINDOWS[0] - 1], -1)
        while len(closed) > WINDOWS[1] or sum(map(len, closed)) > MOST_BYTES:
            _add(long, closed.popleft(), -1)

    def told(self) -> dict[str, Any]:
        """Tell how long each window is by now, and its counts by group and name."""
        rows = []
        for group, names in self._rows.items():
            for name, row in names.items():
                counts = [sums[row : row + CELLS] for sums in self._sums]
                if counts[-1].any():
                    rows.append((group, name, *(each.tolist() for each in counts)))
        return {"seconds": [min(len(self._closed), most) * BUCKET_S for most in WINDOWS], "rows": rows}


def _is_failure(status: int) -> bool:
    return status == 429 or status >= 500


def _bin(value_ms: float) -> int:
    return min(int(math.log(max(value_ms, 1.0)) * _PER_E), BINS - 1)


def quantile_ms(bins: NDArray[np.int64], share: float) -> float:
    """Return the latency below which a share of requests is, NaN without any."""
    below = np.concatenate(([0], bins.cumsum()))
    place = np.interp(share * below[-1], below, np.arange(BINS + 1))
    return math.pow(_STEP, place) if below[-1] else math.nan


def _add(sums: NDArray[np.int64], packed: bytes, sign: int) -> None:
    cells, counts = np.frombuffer(zlib.decompress(packed), np.uint32).reshape(-1, 2).T.astype(np.int64)
    np.add.at(sums, cells, sign * counts)
