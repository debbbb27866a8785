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
from typing import TYPE_CHECKING

import numpy as np

from epp.llmd.words import BROKEN
from epp.schedule.decision import FIRST_ERROR, Source
from epp.signals.engine_metrics import WAITING
from epp.threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from epp.clock import Clock
    from epp.schedule.decision import Outcome
    from epp.signals.datastore import Datastore

    _Cells = dict[int, int]

BUCKET_S = 10.0
#: Buckets of each window.
WINDOWS = 30, 360
MOST_BYTES = 12_000_000
#: Names told apart, of models also none; what comes after them is `OTHER`. When there are more replicas,
#: because they come and go, the history begins anew.
MOST = {"replica": 2000, "model": 21}
OTHER = "other"
#: Kinds of failures that are remembered.
MOST_FAILURES = 20

#: Counts of a name: failed requests, others that nobody timed, tokens of prompts and of them those that were
#: cached, requests that wait in the engine at a bucket's end; then requests by bin.
FAILED, UNTIMED, PROMPT, CACHED, QUEUED, TTFT = range(6)
BINS, CELLS, _STEP = 60, 126, 1.25
E2E = TTFT + BINS
_PER_E = 1.0 / math.log(_STEP)

#: What is shown of the last 5 minutes and the last hour. Latencies are in ms, queues in requests, and hits
#: are a share of the prompts' tokens.
FIGURES = ("req/s", "err/s", "TTFT p50", "TTFT p95", "E2E p50", "E2E p95", "queue", "hits")


class History:
    """The last hour of one picker.

    Args:
        datastore: its queues are looked at at each bucket's end.
        clock: the time.

    Attributes:
        past: what its closed buckets say, as a frame has it.
        failures: by model, endpoint and why, the newest at the end: decision, Unix time, and how many.
    """

    def __init__(self, datastore: Datastore, clock: Clock) -> None:
        self._datastore, self._clock = datastore, clock
        self.failures: dict[tuple[str, str, str], tuple[str, float, int]] = {}
        self._begin()

    def _begin(self) -> None:
        self._rows = {group: {OTHER: at * CELLS} for at, group in enumerate(MOST)}
        self._cells: _Cells = defaultdict(int)
        self._closed = deque[bytes]()
        rows = sum(MOST.values()) + len(MOST)
        self._sums = [np.zeros(rows * CELLS, np.int64) for _ in WINDOWS]
        self._show()

    def ended(self, model: str, prompt_tokens: int, cached_tokens: float, outcome: Outcome) -> None:
        """Count a request that ended, with the tokens of its prompt and those expected to be cached.

        A client's own mistake is no failure.
        """
        usage, status = outcome.usage, outcome.verdict
        if outcome.cause in BROKEN or status == 429 or status >= 500:
            code = "" if outcome.failure is None else outcome.failure.code
            why = f"status {status} {code}".rstrip() if status >= FIRST_ERROR else outcome.cause
            self._failed(model, outcome.where, why, outcome.id)
            return
        counts = [(UNTIMED, 1)]
        if status < FIRST_ERROR and outcome.sources.get("e2e_ms") is not Source.PREDICTED:
            if usage.cached_tokens is not None and usage.prompt_tokens:
                prompt_tokens, cached_tokens = usage.prompt_tokens, usage.cached_tokens
            counts = [
                (PROMPT, prompt_tokens),
                (CACHED, round(cached_tokens)),
                (E2E + _bin(outcome.e2e_ms), 1),
            ]
            if outcome.ttft_ms > 0.0:  # else it is not known
                counts.append((TTFT + _bin(outcome.ttft_ms), 1))
        self._count(counts, outcome.where, model)

    def refused(self, model: str, status: int, rule: str) -> None:
        """Count a request that was given no endpoint, but for a client's own mistake."""
        if status == 429 or status >= 500:
            self._failed(model, "", f"refused with {status}: {rule}")

    def _failed(self, model: str, where: str, why: str, decision_id: str = "") -> None:
        _, _, before = self.failures.pop((model, where, why), ("", 0.0, 0))
        self.failures[model, where, why] = decision_id, self._clock.wall_s(), before + 1
        if len(self.failures) > MOST_FAILURES:
            del self.failures[next(iter(self.failures))]
        self._count([(FAILED, 1)], where, model)

    def _count(self, counts: list[tuple[int, int]], *names: str) -> None:
        cells = self._cells
        for (group, most), name in zip(MOST.items(), names, strict=False):  # a queue is of no model
            rows = self._rows[group]
            if name not in rows and len(rows) <= most:
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
        waiting = self._datastore.engine.block(self._clock.mono_s())[WAITING]
        for slot, endpoint in self._datastore.members:
            if waiting[slot] > 0.0:
                self._count([(QUEUED, round(waiting[slot]))], endpoint.address)
        cells, self._cells = self._cells, defaultdict(int)
        await in_daemon_thread(self._close, cells)
        # Names of those that are gone make room; of a fleet that is larger the rest is `OTHER`.
        if len(self._rows["replica"]) > MOST["replica"] > len(self._datastore):
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
        self._show()

    def _show(self) -> None:
        rows = [
            (group, name, *(sums[row : row + CELLS].tolist() for sums in self._sums))
            for group, names in self._rows.copy().items()
            for name, row in names.copy().items()
            if self._sums[-1][row : row + CELLS].any()
        ]
        seconds = [min(len(self._closed), most) * BUCKET_S for most in WINDOWS]
        self.past = {"closed": self._clock.wall_s(), "seconds": seconds, "rows": rows}


def _bin(value_ms: float) -> int:
    return min(int(math.log(max(value_ms, 1.0)) * _PER_E), BINS - 1)


def figures(parts: Sequence[tuple[list[int], float]], pickers: int) -> list[float | None]:
    """Compute `FIGURES` of what is summed; a rate is over each picker's own time, as some are younger."""
    each = np.array([counts for counts, _ in parts])
    counts, rates = each.sum(axis=0), (each.T / [seconds or 1.0 for _, seconds in parts]).sum(axis=1)
    latencies = [_quantile_ms(counts[at : at + BINS], part) for at in (TTFT, E2E) for part in (0.5, 0.95)]
    requests = rates[FAILED] + rates[UNTIMED] + rates[E2E:].sum()
    hits = counts[CACHED] / counts[PROMPT] if counts[PROMPT] else math.nan
    found = [requests, rates[FAILED], *latencies, rates[QUEUED] * BUCKET_S / pickers, hits]
    return [None if math.isnan(value) else float(f"{value:.3g}") for value in found]


def _quantile_ms(bins: NDArray[np.int64], share: float) -> float:
    """Return the latency below which a share of requests is, NaN without any."""
    below = np.concatenate(([0], bins.cumsum()))
    place = np.interp(share * below[-1], below, np.arange(BINS + 1))
    return math.pow(_STEP, place) if below[-1] else math.nan


def _add(sums: NDArray[np.int64], packed: bytes, sign: int) -> None:
    cells, counts = np.frombuffer(zlib.decompress(packed), np.uint32).reshape(-1, 2).T.astype(np.int64)
    np.add.at(sums, cells, sign * counts)
