"""Dynamo's KV router: blocks to prefill plus blocks being decoded, drawn by softmax if wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Need, Policy, PositiveCount, Softmax, WeightSpec
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Weights
    from epp.types import Floats, RequestInfo, Snapshot

#: Half of the smallest step of a draw: keeps the logarithm of a draw of 0 finite.
_LEAST_DRAW = 2.0**-54


@dataclass(frozen=True, slots=True)
class Dynamo(Policy):
    """Least potential prefill and decode, in blocks.

    ``cost = prefill_load_scale * max(0, pending_uncached_tokens + prompt_tokens - overlap_credit *
    cached_tokens) / block_tokens + (queued_tokens + prompt_tokens) / block_tokens + active_request_weight *
    running_requests + noise``

    NVIDIA Dynamo's KV router with its defaults: scale and credit 1 (the older name of the former is
    ``overlap_score_weight``), no weight on requests, temperature 0. Counters are live, as its own are.

    With a temperature T the choice is a softmax of ``-cost / (T * (max - min))``. It is drawn by adding
    Gumbel noise to the costs: ``noise = -T * (max - min) * g``, where ``g = -ln(-ln(draw))`` per endpoint;
    the least of these sums has exactly the softmax's distribution, and the draw is keyed by decision and
    endpoint, so it can be replayed.

    Differs from the original: its decode blocks count a block shared by several active requests once, and a
    partial last block not at all; it credits host and disk tiers; and it expires predictions after 120 s
    when the engine sends no cache events.

    Attributes:
        block_tokens: tokens per block; matters only beside ``active_request_weight``.
    """

    name = "dynamo"
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        "prefill_load_scale": WeightSpec(1.0, 0.0, 10.0),  # cost of a block to prefill
        "overlap_credit": WeightSpec(1.0, 0.0, 1.0),  # share of a cached block that need not be prefilled
        "active_request_weight": WeightSpec(0.0, 0.0, 1000.0),  # cost of an unfinished request, in blocks
        "temperature": WeightSpec(0.0, 0.0, 10.0),  # softness of the choice; 0 takes the cheapest
    }
    block_tokens: PositiveCount = 16

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """The sum in blocks, with its four terms."""
        prompt, block = float(request.prompt_tokens), float(self.block_tokens)
        potential = (
            snapshot.pending_uncached_tokens + prompt - weights["overlap_credit"] * snapshot.cached_tokens
        )
        prefill = weights["prefill_load_scale"] * np.maximum(potential, 0.0) / block
        decode = (snapshot.queued_tokens + prompt) / block
        requests = weights["active_request_weight"] * snapshot.running_requests
        costs = prefill + decode + requests
        width = _width(costs, weights)
        noise = _noise(request, snapshot, width, seed)
        terms = {"prefill": prefill, "decode": decode, "requests": requests, "noise": noise}
        return Ranking(costs + noise, terms)

    @staticmethod
    def drawn(
        ranking: Ranking,
        weights: Weights,
        params: Mapping[str, object],
    ) -> Softmax | None:
        """The costs without the noise; None where it is 0."""
        costs = ranking.terms["prefill"] + ranking.terms["decode"] + ranking.terms["requests"]
        width = _width(costs, weights)
        return Softmax(costs, width) if width > 0.0 else None


def _width(costs: Floats, weights: Weights) -> float:
    return weights["temperature"] * float(costs.max() - costs.min())


def _noise(request: RequestInfo, snapshot: Snapshot, width: float, seed: int) -> Floats:
    if width <= 0.0:
        return np.zeros(len(snapshot))
    key = request.decision_id
    draws = (
        max(keyed_uniform(seed, key, f"dynamo:{endpoint}"), _LEAST_DRAW) for endpoint in snapshot.endpoints
    )
    return np.fromiter((width * math.log(-math.log(value)) for value in draws), np.float64, len(snapshot))
