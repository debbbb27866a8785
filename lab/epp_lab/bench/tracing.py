"""What spans cost the event loop: requests that are not sampled, and sampled ones whose collector is away.

Decisions with and without take turns on one picker, request by request.
"""

from __future__ import annotations

import os
import time
from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.schedule.waiting import at_once
from epp_lab.bench.core import batch
from epp_lab.bench.rig import HEADERS, rig

if TYPE_CHECKING:
    import argparse

    from epp_lab.bench.figures import Figures

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
#: Headers of a request by what becomes of its span; the first is not traced at all.
WAYS = {
    "off": HEADERS,
    "not sampled": {**HEADERS, "traceparent": _PARENT + "0"},
    "sampled, collector away": {**HEADERS, "traceparent": _PARENT + "1"},
}
ENDPOINTS, BATCHES = 16, 3


async def measure(found: Figures, _: argparse.Namespace, rounds: int) -> None:
    """Measure what decisions with a span cost above those without."""
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"  # nobody listens there
    for number in range(1, rounds + 1):
        with rig(ENDPOINTS, tracing=True) as app:
            spent: dict[str, list[float]] = {way: [] for way in WAYS}
            director, tracing = app.director, app.director.tracing
            for part in range(BATCHES):
                requests = batch("200", number * BATCHES + part)[1]
                for at, one in enumerate(requests):
                    way = tuple(WAYS)[at % len(WAYS)]
                    director.tracing = None if way == "off" else tracing
                    asked = replace(one, headers=WAYS[way])
                    since_s, begun_s = time.monotonic(), time.thread_time()
                    at_once(director.direct(asked, since_s=since_s))
                    spent[way].append((time.thread_time() - begun_s) * 1e3)
        off_ms = median(spent.pop("off"))
        for way, values in spent.items():
            found.add(f"tracing/{way}", "ms", median(values) - off_ms, "above a request without spans")
