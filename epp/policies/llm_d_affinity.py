"""llm-d's prefix-affinity filter: the holders of the prompt alone, until they are much slower than others."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.llm_d import LlmD
from epp.policies.parts import Counts, check_counts, check_number, match_ratios, places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Column, Terms
    from epp.types import RequestView, Snapshot


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
    weight_specs = MappingProxyType(
        {
            "affinity": WeightSpec(0.8, 0.0, 1.0, "share of the prompt that makes its holder sticky"),
            "gate_ms": WeightSpec(18_000.0, 0.0, 60_000.0, "how much later the first token may come there"),
            **LlmD.weight_specs,
        }
    )
    prefill_tokens_per_ms: float = 15.928
    counts: Counts = "engine"

    def __post_init__(self) -> None:
        check_counts(self.counts)
        check_number("prefill_tokens_per_ms", self.prefill_tokens_per_ms, 1e-3)

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        scorers = LlmD(counts=self.counts)
        return {
            "lack": scorers.combine(scorers.terms(request, fleet, weights), fleet, weights),
            "match_ratio": match_ratios(request, fleet),
            "ttft_ms": (fleet.pending_uncached_tokens + fleet.uncached_tokens) / self.prefill_tokens_per_ms,
        }

    def combine(self, terms: Terms, fleet: Snapshot, weights: Mapping[str, float]) -> Column:
        ratios, ttft_ms = terms["match_ratio"], terms["ttft_ms"]
        sticky = (ratios >= weights["affinity"]) & (ratios > 0.0)
        if sticky.any() and not sticky.all():
            late_ms = float(ttft_ms[sticky].min()) - float(ttft_ms[~sticky].min())
            if late_ms > weights["gate_ms"]:
                sticky = np.zeros_like(sticky)
        return places(~sticky, terms["lack"])
