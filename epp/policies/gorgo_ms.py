"""What users feel, in milliseconds: network, own prefill, waiting, others' stall, own decode."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from epp.policies.base import Need, Ties, WeightSpec
from epp.policies.parts import check_flag, check_number
from epp.view import FIRST_FLIGHT_BYTES, Ranking, upload_doublings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class GorgoMs:
    """Cheapest by the time that a request takes, and takes from others, there.

    ``cost_ms = network_weight * (rtt * (1 + rounds * doublings) + cold)``
    ``+ prefill_weight * (p * (uncached - missing) + b) + copy_weight * p * missing``
    ``+ waiting_weight * (p * pending_uncached + b * pending / 2)``
    ``+ stall_weight * (p * uncached + b) * running``
    ``+ decode_weight * answer * (d + s * running)``

    with, of each endpoint, ``p`` ms per uncached token, ``b`` ms per prefill, ``d`` ms per token of an answer
    that is alone, ``s`` ms more for each one beside it (all learned, see `epp.signals.rates`), ``uncached``
    prompt tokens, expected hits scaled by what its engine was seen to keep, ``missing`` those of them that
    another endpoint has, ``pending`` requests that await their first token and ``running`` ones in all, both
    live; ``answer`` the expected answer's tokens.

    ``doublings`` of the congestion window that the body needs are ``log2(1 + body / 14,600)``, of which each
    takes ``rounds = min(upload_rounds, upload rounds seen on warm connections)`` round trips; and where
    connections were told of, ``cold = cold_chance * (connect + rtt * (1 - rounds) * doublings)`` is what a
    connection opened for the request adds, its second part for bodies beyond the first flight
    (`epp.signals.paths`).

    Weights have no unit; 1 prices a time as it is. Prefill is priced above its own time, because one ms of
    it also delays whoever comes later, and because a conversation kept together saves prefills that no single
    request sees. Where a prefix is shared by many, a further copy of it will be used by others, so that the
    price of copying it falls towards its own time:
    ``copy_weight = 1 + (prefill_weight - 1) / (1 + sharing / popular)``, ``sharing`` being the recent
    requests that parted from the same prefix. Defaults: source [P], found best over 28 cells; the surface is
    flat around them. docs/gorgo-ms.md derives the formula.

    Attributes:
        upload_rounds: round trips per doubling of a body, at most, on connections of which it is not known
            whether they are warm; 0 for paths that stay warm.
        price_cold: price connections that have to be opened apart from those that are there, and bodies on
            the latter as they were seen to travel.
        popular: recent requests at which the extra price of a copy of a shared prefix is halved; 0 for never.
        discount_hits: scale expected hits by the endpoint's ratio of reported to expected cached tokens.
    """

    name: ClassVar[str] = "gorgo-ms"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPT, Need.RTT})
    ties: ClassVar[Ties] = Ties.BAND
    additive_terms: ClassVar[tuple[str, ...]] = ("network", "prefill", "waiting", "stall", "decode")
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {
            "network_weight": WeightSpec(1.0, 0.0, 4.0, "price of a millisecond on the network"),
            "prefill_weight": WeightSpec(4.0, 1.0, 12.0, "price of a millisecond of own prefill"),
            "waiting_weight": WeightSpec(3.0, 0.5, 12.0, "price of a millisecond of prefill sent before"),
            "stall_weight": WeightSpec(0.25, 0.05, 2.0, "price of a millisecond that others are stalled"),
            "decode_weight": WeightSpec(1.0, 0.2, 4.0, "price of a millisecond of own decode"),
        }
    )
    upload_rounds: float = 0.7
    price_cold: bool = True
    popular: float = 5.0
    discount_hits: bool = True

    def __post_init__(self) -> None:
        """Refuse parameters that make no cost."""
        check_number("upload_rounds", self.upload_rounds, 0.0, 10.0)
        check_flag("price_cold", self.price_cold)
        check_number("popular", self.popular, 0.0)
        check_flag("discount_hits", self.discount_hits)

    def rank(
        self,
        request: RequestView,
        fleet: FleetView,
        weights: Mapping[str, float],
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The sum of the five terms."""
        cached, uncached = fleet.cached_tokens, fleet.uncached_tokens
        if self.discount_hits:
            cached = np.minimum(fleet.hit_ratio * cached, request.prompt_tokens)
            uncached = request.prompt_tokens - cached
        own_ms = fleet.prefill_ms_per_token * uncached + fleet.prefill_base_ms
        copied_ms = fleet.prefill_ms_per_token * (cached.max() - cached)
        weight = weights["prefill_weight"]
        copies = self._copy_weight(request, weight)
        pending = fleet.running_requests - fleet.decoding_requests
        terms = {
            "network": self._network(request, fleet, weights["network_weight"]),
            "prefill": weight * (own_ms - copied_ms) + copies * copied_ms,
            "waiting": weights["waiting_weight"]
            * (
                fleet.prefill_ms_per_token * fleet.pending_uncached_tokens
                + 0.5 * fleet.prefill_base_ms * pending
            ),
            "stall": weights["stall_weight"] * own_ms * fleet.running_requests,
            "decode": weights["decode_weight"]
            * request.expected_output_tokens
            * (fleet.decode_base_ms + fleet.decode_ms_per_request * fleet.running_requests),
        }
        costs = terms["network"] + terms["prefill"] + terms["waiting"] + terms["stall"] + terms["decode"]
        return Ranking(costs, terms)

    def _network(self, request: RequestView, fleet: FleetView, weight: float) -> NDArray[np.float64]:
        doublings = upload_doublings(request.body_bytes)
        if not self.price_cold:
            return weight * (1.0 + self.upload_rounds * doublings) * fleet.rtt_ms
        rounds = np.minimum(self.upload_rounds, fleet.upload_rounds)
        warm = weight * (1.0 + rounds * doublings) * fleet.rtt_ms
        cold_ms = fleet.connect_ms
        if request.body_bytes > FIRST_FLIGHT_BYTES:
            cold_ms = cold_ms + np.maximum(1.0 - rounds, 0.0) * doublings * fleet.rtt_ms
        return warm + weight * fleet.cold_chance * cold_ms

    def _copy_weight(self, request: RequestView, weight: float) -> float:
        if not self.popular or weight <= 1.0:
            return weight
        return 1.0 + (weight - 1.0) / (1.0 + request.prefix_sharing / self.popular)
