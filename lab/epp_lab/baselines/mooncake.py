"""Mooncake's least estimated time to first token, and its reduction to a queue over a constant speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.policies.base import Need, Policy, Positive, WeightSpec
from epp.policies.parts import Counts, request_counts

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot

_FITTED_MS_PER_TOKEN = 0.0938  # GORGO v1's fit on A100


@dataclass(frozen=True, slots=True)
class Mooncake(Policy):
    """Queue and prefill time, estimated from token counts.

    ``cost = queue_ms_per_token * pending_uncached_tokens + prefill_ms_per_token * uncached_tokens +
    attention_ms_per_token2 * uncached_tokens * (cached_tokens + uncached_tokens / 2)``, in milliseconds.

    Mooncake's Conductor (FAST 2025) adds a node's queue, the sum of its queued prefill estimates, to this
    request's prefill, a polynomial of prompt and match fitted offline. Its coefficients are not published:
    the slope here is GORGO v1's fit on A100 (0.0938 ms per token), the quadratic term is off until fitted.
    The queue is priced at the slope alone, since nothing tells the lengths in it. Only ratios matter, so at
    the defaults this is "least uncached tokens, theirs and ours".

    One set of coefficients takes all nodes for equal, as in a cluster of one kind. With ``rates: learned``
    all three are scaled by each endpoint's learned time of an uncached token over the default slope.

    Left out: fetching missing blocks from another node, which needs Mooncake's transfer engine; and the
    refusal of requests over the latency objective, which is admission, not routing.

    Attributes:
        rates: ``fitted`` coefficients for all, or scaled by what is ``learned`` of each engine class.
    """

    name = "mooncake"
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        # Wait behind one pending uncached token; its prefill; its attention to one token before it.
        "queue_ms_per_token": WeightSpec(_FITTED_MS_PER_TOKEN, 0.0, 1.0),
        "prefill_ms_per_token": WeightSpec(_FITTED_MS_PER_TOKEN, 0.0, 1.0),
        "attention_ms_per_token2": WeightSpec(0.0, 0.0, 1e-4),
    }
    rates: Literal["fitted", "learned"] = "fitted"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        uncached = snapshot.uncached_tokens
        queue = weights["queue_ms_per_token"] * snapshot.pending_uncached_tokens
        pairs = uncached * (snapshot.cached_tokens + 0.5 * uncached)
        prefill = weights["prefill_ms_per_token"] * uncached + weights["attention_ms_per_token2"] * pairs
        if self.rates == "learned":
            speed = snapshot.prefill_ms_per_token / _FITTED_MS_PER_TOKEN
            queue, prefill = queue * speed, prefill * speed
        return {"queue": queue, "prefill": prefill}


#: Relative speeds in Lodestar's repository; classes it does not name run at 1, A30 and V100 among them.
PUBLISHED_SPEEDS = {"l3c": 1.0, "l20": 2.0, "a100": 3.0, "a100-sxm": 3.5, "h100": 5.0, "h100-sxm": 6.0}


@dataclass(frozen=True, slots=True)
class MooncakeStatic(Policy):
    """Requests ahead over the speed of the hardware.

    ``cost = (requests + 1) / speed(engine_class)``. Lodestar's baseline after Mooncake and LMDeploy: queue
    length over throughput, the throughput being one number per GPU model. It counts requests, so a long
    prompt weighs like a short one, and caches do not count at all. Unknown classes tie at speed 1.

    Attributes:
        speeds: relative speed by engine class, compared without regard to case. Other hardware needs
            measured numbers here.
        counts: ``live`` reservations, or the ``engine``'s requests as of the last scrape.
    """

    name = "mooncake-static"
    speeds: dict[str, Positive] = field(default_factory=PUBLISHED_SPEEDS.copy)
    counts: Counts = "live"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        published = {name.lower(): speed for name, speed in self.speeds.items()}
        known = (published.get(name.lower(), 1.0) for name in snapshot.engine_classes)
        speeds = np.fromiter(known, np.float64, len(snapshot))
        return {"requests": request_counts(snapshot, self.counts) + 1.0, "speed": speeds}

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        return terms["requests"] / terms["speed"]
