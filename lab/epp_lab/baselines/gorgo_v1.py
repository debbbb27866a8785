"""GORGO's first version, and the geographic routing that its paper compares with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import places

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Flags, Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class GorgoV1(Policy):
    """Local first, then least estimated time to first token (GORGO v1, sections 3.3 to 3.5).

    1. A local endpoint has capacity while ``engine_running < max_running`` and ``engine_kv_usage <
       max_kv_usage``. If one has, the request stays: the cheapest of those.
    2. Else the cheapest of all, local ones included.

    ``estimate = rtt_ms + prefill_ms_per_token * uncached_tokens + queue_ms_per_token * load_tokens``, in
    milliseconds, with ``load_tokens = engine_used_tokens + engine_waiting * prompt_tokens``: the tokens that
    running requests hold, which the paper says it added, and for each request in the queue as many as this
    prompt has, because summaries do not tell lengths. ``cost`` is the place in that order.

    All load comes from the engines' metrics and is as old as the scrape: the summaries that regional
    balancers exchange. The paper's proxy variant is `Gorgo` with the picker's live counters.

    Constants: the prefill slope is the paper's fit, 0.0938 ms per token; the queue's is that of its worked
    example (195.75 ms for 4,200 queued tokens); the thresholds of local capacity are not published, and 32
    running requests and 90 % of the cache are ours.

    Attributes:
        local_region: the region of the picker. Left out: the region of the nearest endpoint, or the nearest
            endpoint alone where regions are not configured.
    """

    name = "gorgo-v1"
    needs = frozenset({Need.PROMPT, Need.RTT, Need.ENGINE_METRICS})
    weight_specs = {
        "prefill_ms_per_token": WeightSpec(0.0938, 0.0, 5.0),  # prefill of one uncached token
        "queue_ms_per_token": WeightSpec(195.75 / 4200, 0.0, 5.0),  # wait behind one token of load
        "max_running": WeightSpec(32.0, 0.0, 10_000.0),  # running requests at which the region is full
        "max_kv_usage": WeightSpec(0.9, 0.0, 1.01),  # share of the KV cache at which the region is full
    }
    local_region: str = ""

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        load_tokens = snapshot.engine_used_tokens + snapshot.engine_waiting * float(request.prompt_tokens)
        running, usage = snapshot.engine_running, snapshot.engine_kv_usage
        room = (running < weights["max_running"]) & (usage < weights["max_kv_usage"])
        return {
            "rtt_ms": snapshot.rtt_ms,
            "prefill_ms": weights["prefill_ms_per_token"] * snapshot.uncached_tokens,
            "queue_ms": weights["queue_ms_per_token"] * load_tokens,
            "admits_locally": (self._local(snapshot) & room).astype(np.float64),
        }

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        estimate = terms["rtt_ms"] + terms["prefill_ms"] + terms["queue_ms"]
        return places(terms["admits_locally"] == 0.0, estimate)

    def _local(self, snapshot: Snapshot) -> Flags:
        if self.local_region:
            return np.array([region == self.local_region for region in snapshot.regions])
        nearest = snapshot.rtt_ms == float(snapshot.rtt_ms.min())
        names = {snapshot.regions[i] for i in np.flatnonzero(nearest).tolist()} - {""}
        return np.array(
            [near or region in names for near, region in zip(nearest, snapshot.regions, strict=True)]
        )


@dataclass(frozen=True, slots=True)
class Nearest(Policy):
    """Any endpoint of the nearest region, whatever its load (GORGO v1, section 4.3: geoproximal routing).

    ``cost = least rtt_ms of any endpoint of the region``. An endpoint without a region is one by itself.

    The paper looks each user's place up and takes the nearest node. A picker knows no places: round trips
    from where it runs stand in for distance, so put it where its users are. Those of a region differ by
    noise alone, which would send all to one endpoint; here they are drawn among.
    """

    name = "nearest"
    needs = frozenset({Need.RTT})

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        regions = np.array(
            [region or name for region, name in zip(snapshot.regions, snapshot.endpoints, strict=True)]
        )
        return {"rtt_ms": np.array([snapshot.rtt_ms[regions == region].min() for region in regions])}
