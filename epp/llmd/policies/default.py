"""llm-d's default profile, its weights open to tuning; `epp.llmd.policies.profile` has any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.llmd.policies.plugins import in_blocks
from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import Counts  # noqa: TC001  # parameters are checked by it

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class LlmD(Policy):
    """Highest weighted sum of three scores, each 0..1, turned into a cost.

    ``cost = queue_weight * (1 - queue) + kv_weight * (1 - kv) + prefix_weight * (1 - prefix)``, which is the
    sum of the weights less the original's score, with

    - ``queue = (max - waiting) / (max - min)`` over the candidates' ``engine_waiting``, 1 when all are equal;
    - ``kv = 1 - engine_kv_usage``;
    - ``prefix``, the share of the prompt's blocks that is cached; a partial last block counts as one.

    The llm-d router's scorers with the weights of its default profile, 2, 2 and 3; its picker draws among the
    best. Load is as old as the scrape (the original scrapes every 50 ms). Normalising over the candidates
    makes one waiting request weigh as much as a hundred when nobody else has more.

    Attributes:
        counts: whose waiting requests: the ``engine``'s as of the last scrape, as the original, or ``live``
            reservations that await their first token.
        blocks: prompts count in whole blocks, as in the index of what was sent; in that of engines' events
            every token counts.
    """

    name = "llm-d"
    unit = "score"
    needs = frozenset({Need.PROMPT, Need.ENGINE_METRICS})
    weight_specs = {
        "queue_weight": WeightSpec(2.0, 0.0, 10.0),  # cost of the longest queue against the shortest
        "kv_weight": WeightSpec(2.0, 0.0, 10.0),  # cost of a full KV cache against an empty one
        "prefix_weight": WeightSpec(3.0, 0.0, 10.0),  # cost of no match against a whole one
    }
    counts: Counts = "engine"
    blocks: bool = True

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        live = snapshot.running_requests - snapshot.decoding_requests
        waiting = live if self.counts == "live" else snapshot.engine_waiting
        fewest = float(waiting.min())
        spread = float(waiting.max()) - fewest
        lack_queue = (waiting - fewest) / spread if spread > 0.0 else np.zeros(len(snapshot))
        cached, prompt = in_blocks(
            request.prompt_tokens, request.block_tokens if self.blocks else 0.0, snapshot.cached_tokens
        )
        return {
            "queue": weights["queue_weight"] * lack_queue,
            "kv": weights["kv_weight"] * np.minimum(snapshot.engine_kv_usage, 1.0),
            "prefix": weights["prefix_weight"] * (1.0 - cached / prompt),
        }
