"""llm-d's default profile: queue, KV-cache and prefix scorers in one weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import Counts, check_counts, check_number, match_ratios

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from epp.policies.base import Terms
    from epp.types import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class LlmD(Policy):
    """Highest weighted sum of three scores, each 0..1, turned into a cost.

    ``cost = queue_weight * (1 - queue) + kv_weight * (1 - kv) + prefix_weight * (1 - prefix)``, which is the
    sum of the weights less the original's score, with

    - ``queue = (max - waiting) / (max - min)`` over the candidates' ``engine_waiting``, 1 when all are equal;
    - ``kv = 1 - engine_kv_usage``;
    - ``prefix = w * min(1, cached_tokens / scale)^2 + (1 - w) * match ratio``, w = 0 by default.

    The llm-d router's scorers with the weights of its default profile, 2, 2 and 3; its picker draws among the
    best. Load is as old as the scrape (the original scrapes every 50 ms). Normalising over the candidates
    makes one waiting request weigh as much as a hundred when nobody else has more.

    Attributes:
        match_length_weight: w, the part of the prefix score that goes by length instead of share.
        match_length_scale_tokens: matched tokens at which that part is full.
        counts: whose waiting requests: the ``engine``'s as of the last scrape, as the original, or ``live``
            reservations that await their first token.
    """

    name = "llm-d"
    needs = frozenset({Need.PROMPT, Need.ENGINE_METRICS})
    weight_specs = MappingProxyType(
        {
            "queue_weight": WeightSpec(2.0, 0.0, 10.0, "cost of the longest queue against the shortest"),
            "kv_weight": WeightSpec(2.0, 0.0, 10.0, "cost of a full KV cache against an empty one"),
            "prefix_weight": WeightSpec(3.0, 0.0, 10.0, "cost of no match against a whole one"),
        }
    )
    match_length_weight: float = 0.0
    match_length_scale_tokens: float = 8192.0
    counts: Counts = "engine"

    def __post_init__(self) -> None:
        check_counts(self.counts)
        check_number("match_length_weight", self.match_length_weight, 0.0, 1.0)
        check_number("match_length_scale_tokens", self.match_length_scale_tokens, 1.0)

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        waiting = fleet.engine_waiting
        if self.counts == "live":
            waiting = fleet.running_requests - fleet.decoding_requests
        fewest = float(waiting.min())
        spread = float(waiting.max()) - fewest
        lack_queue = (waiting - fewest) / spread if spread > 0.0 else np.zeros(len(fleet))
        queue = weights["queue_weight"] * lack_queue
        kv = weights["kv_weight"] * np.minimum(fleet.engine_kv_usage, 1.0)
        prefix = weights["prefix_weight"] * (1.0 - self._prefix_score(request, fleet))
        return {"queue": queue, "kv": kv, "prefix": prefix}

    def _prefix_score(self, request: RequestView, fleet: Snapshot) -> NDArray[np.float64]:
        share = self.match_length_weight
        length = np.minimum(fleet.cached_tokens / self.match_length_scale_tokens, 1.0) ** 2
        score: NDArray[np.float64] = share * length + (1.0 - share) * match_ratios(request, fleet)
        return score
