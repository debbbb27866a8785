"""What users feel, in milliseconds: network, own prefill, waiting, others' stall, own decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Need, NotNegative, Policy, Ties, WeightSpec
from epp.policies.pairs import Prefills, encoders, pairs_of, room_ms, with_partners
from epp.types import PREFILLS, UPLOAD_ROUNDS, Ranking, Role, network_ms

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.types import Floats, RequestInfo, Rows, Signals, Snapshot

_MIN_URGENCY_RATIO, _MAX_URGENCY_RATIO = 0.05, 20.0
#: What the stall's price is multiplied by where somebody else could prefill: 1 with the weight's default.
#: Decode workers have large batches; at a quarter their answers were a third slower (docs/measured).
_STALL_BESIDE_WORKERS = 4.0


@dataclass(frozen=True, slots=True)
class GorgoMs(Policy):
    """Cheapest by the time that a request takes, and takes from others, there.

    ``cost_ms = urgency * (network_weight * network + prefill_weight * (p * (uncached - copied) + b)``
    ``+ copy_weight * p * copied + waiting_weight * (p * pending_uncached + b * pending / 2))``
    ``+ stall_weight * (p * uncached + b) * running + decode_weight * answer * (d + s * running)``

    - ``p`` ms per uncached token, ``b`` ms per prefill, ``d`` ms per token of an answer alone in the batch,
      ``s`` ms more for each one beside it: learned by engine class (`epp.signals.rates`).
    - ``uncached``: tokens of the prompt less expected hits, as far as the engine keeps them; ``copied``:
      those that another endpoint has. ``pending`` requests await their first token, ``running`` ones are all.
    - ``network``: `epp.types.network_ms`, with ``rounds = min(upload_rounds, rounds seen)``.
    - ``urgency = (least / usual) ** urgency_power``: the least time to first token of any endpoint over its
      mean for the model (`epp.signals.model_means`); 1 before that is known.
    - ``copy_weight = 1 + (prefill_weight - 1) / (1 + sharing / popular)``: what many will use costs less
      (`epp.signals.model_means`).

    Weights have no unit; 1 prices a time as it is. docs/gorgo-ms.md derives the formula and its defaults.

    Attributes:
        upload_rounds: most round trips per doubling of a body; 0 for paths that stay open.
        price_cold: price connections that have to be opened apart from those that are there.
        popular: recent requests at which the extra price of a copy is halved; 0 for never.
        discount_hits: scale expected hits by the endpoint's ratio of reported to expected cached tokens.
        urgency_power: 0 prices the time to first token of all requests alike.
    """

    name = "gorgo-ms"
    pairs = True
    unit = "ms, weighted"
    needs = frozenset({Need.PROMPT, Need.RTT})
    ties = Ties.BAND
    weight_specs = {
        "network_weight": WeightSpec(1.0, 0.0, 4.0),  # price of a millisecond on the network
        "prefill_weight": WeightSpec(3.0, 1.0, 12.0),  # price of a millisecond of own prefill
        "waiting_weight": WeightSpec(2.0, 0.5, 12.0),  # price of a millisecond of prefill sent before
        "stall_weight": WeightSpec(0.25, 0.05, 2.0),  # price of a millisecond that others are stalled
        "decode_weight": WeightSpec(1.0, 0.2, 4.0),  # price of a millisecond of own decode
    }
    upload_rounds: NotNegative = UPLOAD_ROUNDS
    price_cold: bool = True
    popular: NotNegative = 5.0
    discount_hits: bool = True
    urgency_power: NotNegative = 0.5

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Price the five terms; the first three by urgency."""
        now, prompt_tokens = snapshot.columns(), request.prompt_tokens
        workers = snapshot.workers.get(Role.PREFILL)
        if workers is not None:
            weights = {**weights, "stall_weight": _STALL_BESIDE_WORKERS * weights["stall_weight"]}
        cached = self._cached(prompt_tokens, now)
        there = None if workers is None else workers.columns()
        held = None if there is None else self._cached(prompt_tokens, there)
        most = cached.max() if held is None else max(cached.max(), held.max())
        whole = self._prefills(request, now, cached, most, weights)
        upload_ms = self._upload_ms(request.body_bytes, now)
        least_ms = float((upload_ms + whole.own + whole.wait).min())
        pairs = None
        if workers is not None and there is not None and held is not None:
            remote = self._prefills(request, there, held, most, weights)
            draw = keyed_uniform(seed, request.decision_id, "workers")
            pairs = pairs_of(workers, snapshot, remote, prompt_tokens - now.cached_tokens, draw)
            least_ms = min(least_ms, float((upload_ms + pairs.first_token).min()))
        urgency = self._urgency(least_ms, request.usual_first_token_ms)
        answer = weights["decode_weight"] * request.expected_output_tokens
        terms = {
            "network": urgency * (weights["network_weight"] * upload_ms),
            "prefill": urgency * whole.price,
            "waiting": urgency * (weights["waiting_weight"] * whole.wait),
            "stall": whole.stall,
            "decode": answer * (now.decode_base_ms + now.decode_ms_per_request * now.running_requests),
        }
        if not snapshot.workers:
            return Ranking(self.combine(terms, snapshot, weights), terms, least_ms)
        partners: dict[Role, Rows] = {}
        terms["room"] = answer * room_ms(request, now)
        if pairs is not None:
            # Where it is decoded it is a prefill of one token, too.
            remote, base, stall = (
                pairs.prefills,
                now.prefill_base_ms,
                weights["stall_weight"] * now.running_requests,
            )
            priced = {
                "prefill": urgency * (remote.price[:, None] + weights["prefill_weight"] * base),
                "waiting": urgency * weights["waiting_weight"] * (remote.wait[:, None] + pairs.link_wait),
                "stall": remote.stall[:, None] + stall * base,
                "transfer": urgency * weights["waiting_weight"] * pairs.transfer,  # the next one waits for it
            }
            terms, partners[Role.PREFILL] = with_partners(
                terms, priced, pairs, request, seed, prefills=snapshot.extra[PREFILLS] > 0.0
            )
        if request.media and Role.ENCODE in snapshot.workers:
            partners[Role.ENCODE] = encoders(snapshot, request, seed)
        return Ranking(self.combine(terms, snapshot, weights), terms, least_ms, partners)

    def _cached(self, prompt_tokens: int, now: Signals[Floats]) -> Floats:
        """Return the tokens of the prompt that each endpoint holds."""
        if not self.discount_hits:
            return now.cached_tokens
        return np.minimum(now.hit_ratio * now.cached_tokens, float(prompt_tokens))

    def _prefills(
        self, request: RequestInfo, now: Signals[Floats], cached: Floats, most: float, weights: Weights
    ) -> Prefills:
        """Time and price the prefill at some endpoints; ``most`` is what any endpoint at all has cached."""
        per_token, base, running = now.prefill_ms_per_token, now.prefill_base_ms, now.running_requests
        full = weights["prefill_weight"]
        own_ms = per_token * (request.prompt_tokens - cached) + base
        copied_ms = per_token * (most - cached)
        wait_ms = per_token * now.pending_uncached_tokens + 0.5 * base * (running - now.decoding_requests)
        price = full * (own_ms - copied_ms) + self._copy_weight(request, full) * copied_ms
        return Prefills(own_ms, wait_ms, price, weights["stall_weight"] * own_ms * running)

    def _upload_ms(self, body_bytes: int, now: Signals[Floats]) -> Floats:
        if not self.price_cold:
            return network_ms(now.rtt_ms, body_bytes, self.upload_rounds)
        rounds = np.minimum(self.upload_rounds, now.upload_rounds)
        return network_ms(now.rtt_ms, body_bytes, rounds, connect_ms=now.connect_ms, cold=now.cold_chance)

    def _urgency(self, least_ms: float, usual_ms: float) -> float:
        if not self.urgency_power or usual_ms <= 0.0:
            return 1.0
        ratio = min(max(least_ms / usual_ms, _MIN_URGENCY_RATIO), _MAX_URGENCY_RATIO)
        return float(ratio**self.urgency_power)

    def _copy_weight(self, request: RequestInfo, weight: float) -> float:
        if not self.popular or weight <= 1.0:
            return weight
        return 1.0 + (weight - 1.0) / (1.0 + request.prefix_sharing / self.popular)
