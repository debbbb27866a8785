"""Mooncake's choice of a prefill node: the least estimated time to first token."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms
    from epp.types import RequestView, Snapshot

#: GORGO v1's fit on A100.
_FITTED_MS_PER_TOKEN = 0.0938


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
    weight_specs = MappingProxyType(
        {
            "queue_ms_per_token": WeightSpec(
                _FITTED_MS_PER_TOKEN, 0.0, 1.0, "wait behind one pending uncached token"
            ),
            "prefill_ms_per_token": WeightSpec(
                _FITTED_MS_PER_TOKEN, 0.0, 1.0, "prefill of one uncached token"
            ),
            "attention_ms_per_token2": WeightSpec(
                0.0, 0.0, 1e-4, "attention of one uncached token to one before it"
            ),
        }
    )
    rates: Literal["fitted", "learned"] = "fitted"

    def __post_init__(self) -> None:
        check_choice("rates", self.rates, ("fitted", "learned"))

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        uncached = fleet.uncached_tokens
        queue = weights["queue_ms_per_token"] * fleet.pending_uncached_tokens
        pairs = uncached * (fleet.cached_tokens + 0.5 * uncached)
        prefill = weights["prefill_ms_per_token"] * uncached + weights["attention_ms_per_token2"] * pairs
        if self.rates == "learned":
            speed = fleet.prefill_ms_per_token / _FITTED_MS_PER_TOKEN
            queue, prefill = queue * speed, prefill * speed
        return {"queue": queue, "prefill": prefill}
