"""llm-d's scorers in one weighted sum, with its load-aware one, and behind its prefix-affinity filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, Policy, Positive, PositiveCount, Share, WeightSpec
from epp.policies.parts import Counts, match_ratios, places

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


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
    weight_specs = {
        "queue_weight": WeightSpec(2.0, 0.0, 10.0),  # cost of the longest queue against the shortest
        "kv_weight": WeightSpec(2.0, 0.0, 10.0),  # cost of a full KV cache against an empty one
        "prefix_weight": WeightSpec(3.0, 0.0, 10.0),  # cost of no match against a whole one
    }
    match_length_weight: Share = 0.0
    match_length_scale_tokens: Positive = 8192.0
    counts: Counts = "engine"

    def terms(self, request: RequestInfo, fleet: Snapshot, weights: Weights) -> Terms:
        waiting = self._waiting(fleet)
        fewest = float(waiting.min())
        spread = float(waiting.max()) - fewest
        lack_queue = (waiting - fewest) / spread if spread > 0.0 else np.zeros(len(fleet))
        queue = weights["queue_weight"] * lack_queue
        kv = weights["kv_weight"] * np.minimum(fleet.engine_kv_usage, 1.0)
        prefix = weights["prefix_weight"] * (1.0 - self._prefix_score(request, fleet))
        return {"queue": queue, "kv": kv, "prefix": prefix}

    def _waiting(self, fleet: Snapshot) -> Floats:
        if self.counts == "live":
            return fleet.running_requests - fleet.decoding_requests
        return fleet.engine_waiting

    def _prefix_score(self, request: RequestInfo, fleet: Snapshot) -> Floats:
        share = self.match_length_weight
        length = np.minimum(fleet.cached_tokens / self.match_length_scale_tokens, 1.0) ** 2
        score: Floats = share * length + (1.0 - share) * match_ratios(request, fleet)
        return score


@dataclass(frozen=True, slots=True)
class LlmDLoadAware(LlmD):
    """Most of llm-d's load-aware score, beside the scores of `LlmD` that have a weight.

    ``cost = load_weight * (0.5 - load)`` and the terms of `LlmD`, whose weights are 0 by default, with
    ``load = 0.5 * (1 - min(waiting, threshold) / threshold)`` of ``engine_waiting``. As
    ``pkg/epp/framework/plugins/scheduling/scorer/loadaware/load_aware.go`` of llm-d/llm-d-router at ebab687
    has it: 0.5 for an empty queue, at most. Alone it is the baseline "load-aware" of source [R]. Engines that
    batch whatever comes have no queue: then all are equal, and the draw among equals decides.

    Attributes:
        threshold: waiting requests at which the score is 0.
    """

    name = "llm-d-load-aware"
    weight_specs = {
        **{name: spec._replace(default=0.0) for name, spec in LlmD.weight_specs.items()},
        "load_weight": WeightSpec(1.0, 0.0, 10.0),  # twice the cost of an endless queue against none
    }
    threshold: PositiveCount = 128

    def terms(self, request: RequestInfo, fleet: Snapshot, weights: Weights) -> Terms:
        waiting = np.minimum(self._waiting(fleet) / self.threshold, 1.0)
        return {**LlmD.terms(self, request, fleet, weights), "load": weights["load_weight"] * 0.5 * waiting}


@dataclass(frozen=True, slots=True)
class LlmDAffinity(Policy):
    """llm-d's scorers among those that hold most of the prompt, unless waiting there takes too long.

    Endpoints whose match covers at least ``affinity`` of the prompt are sticky. They alone are scored, by
    `LlmD`, unless the best ``ttft_ms`` among them exceeds the best among the others by more than ``gate_ms``;
    then, and when nobody is sticky, all are. ``ttft_ms = (pending_uncached_tokens + uncached_tokens) /
    prefill_tokens_per_ms``, of live counters, as the original's in-flight producer. ``cost`` is a place.

    Defaults are the filter's: 0.8, 18 s, and 15,928 tokens per second. Eighteen seconds is a gate that hardly
    ever opens: with it this is affinity for sessions, and `LlmD` for what nobody holds.

    Attributes:
        prefill_tokens_per_ms: how fast engines prefill, for the estimate.
        counts: see `LlmD`.
    """

    name = "llm-d-affinity"
    needs = frozenset({Need.PROMPT, Need.ENGINE_METRICS})
    weight_specs = {
        "affinity": WeightSpec(0.8, 0.0, 1.0),  # share of the prompt that makes its holder sticky
        "gate_ms": WeightSpec(18_000.0, 0.0, 60_000.0),  # how much later the first token may come there
        **LlmD.weight_specs,
    }
    prefill_tokens_per_ms: Positive = 15.928
    counts: Counts = "engine"

    def terms(self, request: RequestInfo, fleet: Snapshot, weights: Weights) -> Terms:
        scorers = LlmD(counts=self.counts)
        return {
            "lack": scorers.combine(scorers.terms(request, fleet, weights), fleet, weights),
            "match_ratio": match_ratios(request, fleet),
            "ttft_ms": (fleet.pending_uncached_tokens + fleet.uncached_tokens) / self.prefill_tokens_per_ms,
        }

    def combine(self, terms: Terms, fleet: Snapshot, weights: Weights) -> Floats:
        ratios, ttft_ms = terms["match_ratio"], terms["ttft_ms"]
        sticky = (ratios >= weights["affinity"]) & (ratios > 0.0)
        if sticky.any() and not sticky.all():
            late_ms = float(ttft_ms[sticky].min()) - float(ttft_ms[~sticky].min())
            if late_ms > weights["gate_ms"]:
                sticky = np.zeros_like(sticky)
        return places(~sticky, terms["lack"])
