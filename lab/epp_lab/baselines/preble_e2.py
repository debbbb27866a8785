"""Preble's E2: exploit a match that covers most of the prompt, explore otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import places

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class PrebleE2(Policy):
    """The cheapest holder of the longest match if that match is longer than what remains, else the cheapest.

    ``load = prefill_ms_per_token * (pending_uncached_tokens + uncached_tokens) + decode_ms_per_request *
    running_requests``, in milliseconds; ``cost`` is the place by load, holders first when exploiting.

    The exploit/explore rule and the constants are Preble's (A6000, Mistral-7B: 0.108 ms per token; an active
    request counts 45 output tokens of 150 ms). The load is not: Preble sums the prefills that each node was
    given in the last three minutes, adds what an eviction would cost, and rebalances hot prefixes when the
    largest load is 1.5 times the smallest. Here the work outstanding now stands in for that history, and
    nothing rebalances: figures under this name speak of the rule, not of Preble the system.
    """

    name = "preble-e2"
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        "prefill_ms_per_token": WeightSpec(0.108, 0.0, 10.0),  # prefill of one uncached token
        "decode_ms_per_request": WeightSpec(6750.0, 0.0, 60_000.0),  # decoding of one unfinished request
    }

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        cached = snapshot.cached_tokens
        tokens = snapshot.pending_uncached_tokens + snapshot.uncached_tokens
        return {
            "prefill_ms": weights["prefill_ms_per_token"] * tokens,
            "decode_ms": weights["decode_ms_per_request"] * snapshot.running_requests,
            "holds_match": (cached == float(cached.max())).astype(np.float64),
        }

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        load, holds = terms["prefill_ms"] + terms["decode_ms"], terms["holds_match"] > 0.0
        # Every holder of the longest match has the same left to prefill.
        exploit = bool((snapshot.uncached_tokens[holds] < snapshot.cached_tokens[holds]).any())
        return places(~holds, load) if exploit else places(load)
