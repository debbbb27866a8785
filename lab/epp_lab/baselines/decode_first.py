"""llm-d's way to disaggregate: the decode worker first, a prefill worker where much is left to compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, NotNegative, Policy, WeightSpec
from epp.types import Ranking, Role

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class DecodeFirst(Policy):
    """The best by ``prefix_weight * matched / prompt + load_weight * (most - running) / most``, of each role.

    llm-d's ``disagg-profile-handler``: a profile with ``prefix-cache-scorer`` and ``active-request-scorer``
    finds the decode worker. Where that lacks ``threshold`` tokens of the prompt
    (``prefix-based-pd-decider``'s ``nonCachedTokens``), the same scorers find the prefill worker, by itself.

    Attributes:
        threshold: least uncached tokens that are prefilled elsewhere.
    """

    name = "decode-first"
    pairs = True
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        "prefix_weight": WeightSpec(2.0, 0.0, 8.0),  # price of the prompt's share that is not cached
        "load_weight": WeightSpec(1.0, 0.0, 8.0),  # price of the requests there, as a share of the most
    }
    threshold: NotNegative = 512.0

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Score decode workers, and find the best prefill worker for those that lack much."""
        terms = _terms(request, snapshot, weights)
        partners = {}
        workers = snapshot.workers.get(Role.PREFILL)
        if workers is not None and len(workers):
            best = int(self.combine(_terms(request, workers, weights), workers, weights).argmin())
            partners[Role.PREFILL] = np.where(snapshot.uncached_tokens >= self.threshold, best, -1)[:, None]
        return Ranking(self.combine(terms, snapshot, weights), terms, partners=partners)


def _terms(request: RequestInfo, seen: Snapshot, weights: Weights) -> dict[str, Floats]:
    """Price what scores lack of 1, so that the least cost is the highest score."""
    most = max(float(seen.running_requests.max()), 1.0)
    return {
        "prefix": weights["prefix_weight"] * seen.uncached_tokens / max(request.prompt_tokens, 1),
        "load": weights["load_weight"] * seen.running_requests / most,
    }
