"""The paper's cost model, to the letter: network, prefill and queue in one weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy, Ties, WeightSpec

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class Gorgo(Policy):
    """Cheapest by the published formula.

    ``cost = rtt_weight * rtt_ms + prefill_weight * uncached_tokens + queue_weight * queued_tokens``

    The unit is that of ``prefill_weight * uncached_tokens``: with the published prefill weight of 1 a cost is
    a number of tokens to prefill, `rtt_weight` is tokens per millisecond of round trip and `queue_weight` is
    tokens of prefill per token queued. Only ratios of the weights matter. ``queued_tokens`` counts every
    prompt token of an endpoint's unfinished requests, cached or not, until they end.

    Defaults are the published optimum (GORGO paper, two searched weights, prefill fixed at 1). The paper
    searched ``rtt_weight`` in [0.05, 2.0] and ``queue_weight`` in [0.05, 0.5]; the hard bounds here are the
    widest that its authors ever searched, and reach down to 0 so that a term can be switched off.
    """

    name = "gorgo"
    unit = "tokens, weighted"
    needs = frozenset({Need.PROMPT, Need.RTT})
    ties = Ties.BAND
    weight_specs = {
        "rtt_weight": WeightSpec(0.276, 0.0, 50.0),  # cost of one millisecond of round trip
        "prefill_weight": WeightSpec(1.0, 0.0, 5.0),  # cost of one uncached prompt token
        "queue_weight": WeightSpec(0.5, 0.0, 5.0),  # cost of one prompt token of unfinished requests
    }

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        return {
            "rtt": weights["rtt_weight"] * snapshot.rtt_ms,
            "prefill": weights["prefill_weight"] * snapshot.uncached_tokens,
            "queue": weights["queue_weight"] * snapshot.queued_tokens,
        }


class GorgoHillclimb(Gorgo):
    """`Gorgo` whose weights file the paper's search writes: gorgo-epp-lab's `epp tune --search hillclimb`."""

    name = "gorgo-hillclimb"
