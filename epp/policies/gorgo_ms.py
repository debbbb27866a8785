"""What users feel, in milliseconds: network, own prefill, waiting, others' stall, own decode."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from epp.policies.base import Need, Ties, WeightSpec
from epp.policies.parts import check_flag, check_number
from epp.view import FIRST_FLIGHT_BYTES, Ranking, Signals, upload_doublings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.view import FleetView, RequestView

_TERMS = ("network", "prefill", "waiting", "stall", "decode")
#: Of what is usual, a request's own time counts as this much at least, and at most.
_LEAST_SHARE, _MOST_SHARE = 0.05, 20.0
#: Up to so many endpoints the formula is cheaper in numbers, one endpoint after the other, than in columns.
_FEW = 8
# The formula reads `Signals`: one endpoint's numbers, or the columns of all in their place. What it says of
# either is the same to the last bit. It is typed for neither: a compiler would take one of them at its word.
_Extreme = tuple["Callable[..., Any]", "Callable[..., Any]"]
_OF_NUMBERS: _Extreme = (min, max)
_OF_COLUMNS: _Extreme = (np.minimum, np.maximum)


class _Prices(NamedTuple):
    """What a request and the weights alone say."""

    network: float
    prefill: float
    copy: float
    waiting: float
    stall: float
    answer: float  # weight times tokens
    prompt_tokens: float
    doublings: float
    beyond_first_flight: bool


@dataclass(frozen=True, slots=True)
class GorgoMs:
    """Cheapest by the time that a request takes, and takes from others, there.

    ``cost_ms = urgency * (network_weight * (rtt * (1 + rounds * doublings) + cold)``
    ``+ prefill_weight * (p * (uncached - missing) + b) + copy_weight * p * missing``
    ``+ waiting_weight * (p * pending_uncached + b * pending / 2))``
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

    ``urgency = (least / usual) ** urgency_power``: ``least`` is the time to first token (the terms within its
    parentheses, each at weight 1) where it is least, ``usual`` the mean of that over requests of the model of
    late (`epp.signals.first_tokens`); 1 before that is known. A second more hurts who waits long anyway more
    than who does not, and those are the tail that users remember: they get what is near and free, and who is
    answered soon goes farther, and where nobody is disturbed.

    Weights have no unit; 1 prices a time as it is. Prefill is priced above its own time, because one ms of
    it also delays whoever comes later, and because a conversation kept together saves prefills that no single
    request sees. Where a prefix is shared by many, a further copy of it will be used by others, so that the
    price of copying it falls towards its own time:
    ``copy_weight = 1 + (prefill_weight - 1) / (1 + sharing / popular)``, ``sharing`` being the recent
    requests that parted from the same prefix, a burst of them counting once (`epp.signals.popularity`).
    Defaults: near those of source [P], chosen anew over 28 cells with urgency; the surface is flat around
    them. docs/gorgo-ms.md derives the formula.

    Attributes:
        upload_rounds: round trips per doubling of a body, at most, on connections of which it is not known
            whether they are warm; 0 for paths that stay warm.
        price_cold: price connections that have to be opened apart from those that are there, and bodies on
            the latter as they were seen to travel.
        popular: recent requests at which the extra price of a copy of a shared prefix is halved; 0 for never.
        discount_hits: scale expected hits by the endpoint's ratio of reported to expected cached tokens.
        urgency_power: 0 prices the time to the first token of all requests alike.
    """

    name: ClassVar[str] = "gorgo-ms"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROMPT, Need.RTT})
    ties: ClassVar[Ties] = Ties.BAND
    additive_terms: ClassVar[tuple[str, ...]] = _TERMS
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType(
        {
            "network_weight": WeightSpec(1.0, 0.0, 4.0, "price of a millisecond on the network"),
            "prefill_weight": WeightSpec(3.0, 1.0, 12.0, "price of a millisecond of own prefill"),
            "waiting_weight": WeightSpec(2.0, 0.5, 12.0, "price of a millisecond of prefill sent before"),
            "stall_weight": WeightSpec(0.25, 0.05, 2.0, "price of a millisecond that others are stalled"),
            "decode_weight": WeightSpec(1.0, 0.2, 4.0, "price of a millisecond of own decode"),
        }
    )
    upload_rounds: float = 0.7
    price_cold: bool = True
    popular: float = 5.0
    discount_hits: bool = True
    urgency_power: float = 0.5

    def __post_init__(self) -> None:
        """Refuse parameters that make no cost."""
        check_number("upload_rounds", self.upload_rounds, 0.0, 10.0)
        check_flag("price_cold", self.price_cold)
        check_number("popular", self.popular, 0.0)
        check_flag("discount_hits", self.discount_hits)
        check_number("urgency_power", self.urgency_power, 0.0, 4.0)

    def rank(
        self,
        request: RequestView,
        fleet: FleetView,
        weights: Mapping[str, float],
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """The sum of the five terms."""
        prices = self._prices(request, weights)
        usual_ms = request.usual_first_token_ms
        if len(fleet) > _FEW:
            seen = Signals._make(fleet.block)
            cached = self._cached(prices, seen, _OF_COLUMNS)
            priced = self._terms(prices, seen, cached, np.maximum.reduce(cached), _OF_COLUMNS)
            least_ms = float(np.minimum.reduce(priced[-1]))
            columns = _summed(self._urgency(least_ms, usual_ms), priced)
        else:
            each = fleet.each()
            few = [self._cached(prices, one, _OF_NUMBERS) for one in each]
            most = max(few)
            rows = [
                self._terms(prices, one, cached, most, _OF_NUMBERS)
                for one, cached in zip(each, few, strict=True)
            ]
            least_ms = min([row[-1] for row in rows])
            urgency = self._urgency(least_ms, usual_ms)
            columns = tuple(np.array([_summed(urgency, row) for row in rows], np.float64).T)
        *terms, costs = columns
        return Ranking(costs, dict(zip(_TERMS, terms, strict=True)), least_ms)

    def _urgency(self, least_ms: float, usual_ms: float) -> float:
        if not self.urgency_power or usual_ms <= 0.0:
            return 1.0
        urgency: float = min(max(least_ms / usual_ms, _LEAST_SHARE), _MOST_SHARE) ** self.urgency_power
        return urgency

    def _prices(self, request: RequestView, weights: Mapping[str, float]) -> _Prices:
        prefill = weights["prefill_weight"]
        return _Prices(
            network=weights["network_weight"],
            prefill=prefill,
            copy=self._copy_weight(request, prefill),
            waiting=weights["waiting_weight"],
            stall=weights["stall_weight"],
            answer=weights["decode_weight"] * request.expected_output_tokens,
            prompt_tokens=float(request.prompt_tokens),
            doublings=upload_doublings(request.body_bytes),
            beyond_first_flight=request.body_bytes > FIRST_FLIGHT_BYTES,
        )

    def _cached(self, prices: _Prices, seen: Any, extreme: _Extreme) -> Any:
        """Tokens that are believed to be found in the cache."""
        if not self.discount_hits:
            return seen.cached_tokens
        least, _ = extreme
        return least(seen.hit_ratio * seen.cached_tokens, prices.prompt_tokens)

    def _terms(
        self,
        prices: _Prices,
        seen: Any,
        cached: Any,
        most_cached: Any,
        extreme: _Extreme,
    ) -> tuple[Any, ...]:
        """The terms in the order of `_TERMS`, of the usual urgency, and the time to the first token, ms."""
        per_token, base, running = seen.prefill_ms_per_token, seen.prefill_base_ms, seen.running_requests
        uncached = prices.prompt_tokens - cached if self.discount_hits else seen.uncached_tokens
        own_ms = per_token * uncached + base
        copied_ms = per_token * (most_cached - cached)
        pending = running - seen.decoding_requests
        network_ms = self._network_ms(prices, seen, extreme)
        wait_ms = per_token * seen.pending_uncached_tokens + 0.5 * base * pending
        network = prices.network * network_ms
        prefill = prices.prefill * (own_ms - copied_ms) + prices.copy * copied_ms
        waiting = prices.waiting * wait_ms
        stall = prices.stall * own_ms * running
        decode = prices.answer * (seen.decode_base_ms + seen.decode_ms_per_request * running)
        return network, prefill, waiting, stall, decode, network_ms + own_ms + wait_ms

    def _network_ms(self, prices: _Prices, seen: Any, extreme: _Extreme) -> Any:
        rtt_ms, doublings, (least, largest) = seen.rtt_ms, prices.doublings, extreme
        if not self.price_cold:
            return (1.0 + self.upload_rounds * doublings) * rtt_ms
        rounds = least(self.upload_rounds, seen.upload_rounds)
        cold_ms = seen.connect_ms
        if prices.beyond_first_flight:
            cold_ms = cold_ms + largest(1.0 - rounds, 0.0) * doublings * rtt_ms
        return (1.0 + rounds * doublings) * rtt_ms + seen.cold_chance * cold_ms

    def _copy_weight(self, request: RequestView, weight: float) -> float:
        if not self.popular or weight <= 1.0:
            return weight
        return 1.0 + (weight - 1.0) / (1.0 + request.prefix_sharing / self.popular)


def _summed(urgency: float, priced: tuple[Any, ...]) -> tuple[Any, ...]:
    """The terms of a request as urgent as this, and their sum."""
    network, prefill, waiting, stall, decode, _ = priced
    network, prefill, waiting = urgency * network, urgency * prefill, urgency * waiting
    return network, prefill, waiting, stall, decode, network + prefill + waiting + stall + decode
