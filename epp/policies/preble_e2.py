"""Preble's E2: exploit a match that covers most of the prompt, explore otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from epp.policies.base import Need, Ties, WeightSpec
from epp.policies.parts import places
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class PrebleE2:
    """The cheapest holder of the longest match if that match is longer than what remains, else the cheapest.

    ``load = prefill_ms_per_token * (pending_uncached_tokens + uncached_tokens) + decode_ms_per_request *
    running_requests``, in milliseconds; ``cost`` is the place by load, holders first when exploiting.

    The exploit/explore rule and the constants are Preble's (A6000, Mistral-7B: 0.108 ms per token; an active
    request counts 45 output tokens of 150 ms). The load is not: Preble sums the prefills that each node was
    given in the last three minutes, adds what an eviction would cost, and rebalances hot prefixes when the
    largest load is 1.5 times the smallest. Here the work outstanding now stands in for that history, and
    nothing rebalances: figures under this name speak of the rule, not of Preble the system.
    """

    name: ClassVar[str] = "preble-e2"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPT})
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {
            "prefill_ms_per_token": WeightSpec(0.108, 0.0, 10.0, "prefill of one uncached token"),
            "decode_ms_per_request": WeightSpec(6750.0, 0.0, 60_000.0, "decoding of one unfinished request"),
        }
    )

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the fleet holds what its prompt needs
        fleet: FleetView,
        weights: Mapping[str, float],
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """Places, with the load's two parts and who holds the match as terms."""
        cached, uncached = fleet.cached_tokens, fleet.uncached_tokens
        prefill = weights["prefill_ms_per_token"] * (fleet.pending_uncached_tokens + uncached)
        decode = weights["decode_ms_per_request"] * fleet.running_requests
        load = prefill + decode
        holds = cached == float(cached.max())
        # Every holder of the longest match has the same left to prefill.
        exploit = bool((uncached[holds] < cached[holds]).any())
        costs = places(~holds, load) if exploit else places(load)
        terms = {"prefill_ms": prefill, "decode_ms": decode, "holds_match": holds.astype(np.float64)}
        return Ranking(costs, terms)
