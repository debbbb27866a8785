"""A scheduling profile of llm-d: filters one after the other, a weighted sum of scores, a picker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from epp.errors import NoEndpointError
from epp.keyed_uniform import keyed_uniform
from epp.llmd.policies.columns import PluginColumns
from epp.llmd.policies.filters import Filters  # noqa: TC001  # parameters are checked by it
from epp.llmd.policies.plugins import (
    TPOT_HEADROOM,
    TPOT_SLO,
    TTFT,
    TTFT_HEADROOM,
    TTFT_SLO,
    by_labels,
    comes_first,
)
from epp.llmd.policies.scorers import KvCacheScorer, PrefixScorer, QueueScorer, Scorers
from epp.policies.base import Count, Need, Policy, Positive, Softmax
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epp.llmd.policies.plugins import Column, Plugin
    from epp.policies.base import Drawn, ExtraColumns, Weights
    from epp.types import Endpoint, Flags, Floats, RequestInfo, Role, Slots, Snapshot

#: Where the chosen engine may fetch the KV cache of the prompt from: llm-d's ``p2p-source-producer``.
KV_SOURCE_HEADER = "x-kv-cache-source-host-port"
Picker = Literal["max-score-picker", "random-picker", "weighted-random-picker"]
#: Term of the weighted sum.
SCORE = "score"
#: Costs of those without a chance, behind all that has one.
_NO_CHANCE, FILTERED = 1e8, 1e9


def _scorers() -> dict[str, Scorers]:
    return {"queue-scorer": QueueScorer(), "kv-cache-utilization-scorer": KvCacheScorer(),
            "prefix-cache-scorer": PrefixScorer()}  # fmt: skip


def _weights() -> dict[str, float]:
    return {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}


@dataclass(frozen=True, slots=True)
class LlmDProfile(Policy):
    """Rank by a scheduling profile of llm-d, as `epp.llmd` reads it from a configuration.

    Filters narrow the endpoints in turn. Of those left, each scorer says 0..1, and ``score`` is the sum by
    weights. ``cost`` is what the score lacks to the most that it could be, or by the picker: an exponential
    race by score (chances in proportion to it), or the same for all. Who was filtered out comes last.

    ``pkg/epp/scheduling/scheduler_profile.go`` and ``pkg/epp/framework/plugins/scheduling/picker`` of
    llm-d/llm-d-router at ebab687. Terms are the plugins' scores, and 1 for who passed a filter, by their
    names in the configuration. Predicted latencies, where a plugin asks, are those of learned rates
    (`epp.signals.rates`): ``ttft = b + p * (pending + own uncached tokens)``, ``tpot = d + s * running``.

    Attributes:
        filters: by name, in order.
        scorers: by name.
        scorer_weights: by the same names.
        picker: how to choose by score.
        streaming_mode: a request has a TPOT; else its headroom is 0.
        slo_buffer_factor: part of the TPOT's SLO that counts.
        kv_source_min_tokens: how many more cached tokens make another endpoint the source of the chosen
            endpoint's KV cache; 0 for none.
    """

    name = "llm-d-profile"
    unit = "score"
    needs = frozenset({Need.PROMPT, Need.ENGINE_METRICS})
    filters: dict[str, Filters] = field(default_factory=dict)
    scorers: dict[str, Scorers] = field(default_factory=_scorers)
    scorer_weights: dict[str, float] = field(default_factory=_weights)
    picker: Picker = "max-score-picker"
    streaming_mode: bool = False
    slo_buffer_factor: Positive = 1.0
    kv_source_min_tokens: Count = 0

    def __post_init__(self) -> None:
        """Check that every scorer has a weight.

        Raises:
            ValueError: one has none, or a weight is nobody's.
        """
        if self.scorers.keys() != self.scorer_weights.keys():
            raise ValueError("scorers and scorer_weights have different names")

    @property
    def plugins(self) -> Iterator[Plugin]:
        """List filters and scorers."""
        yield from self.filters.values()
        yield from self.scorers.values()

    @property
    def required_columns(self) -> frozenset[Column]:
        """List the columns that plugins read beyond the snapshot's own."""
        own = (column for plugin in self.plugins for column in plugin.required_columns)
        later = dropwhile(comes_first, self.filters.values())
        return frozenset((*own, *(plugin.admitted for plugin in later if by_labels(plugin))))

    def extra_columns(self) -> ExtraColumns | None:
        """Return what makes these columns."""
        columns = self.required_columns
        return PluginColumns(columns) if columns else None

    def roles(self, endpoint: Endpoint) -> frozenset[Role]:
        """Leave to filters who serves what."""
        return frozenset()

    def admits(self, endpoint: Endpoint) -> bool:
        """Ask the filters of labels; those that stand after others are asked in their order."""
        first = takewhile(comes_first, self.filters.values())
        return all(plugin.admits(endpoint.labels) for plugin in first)

    def told_endpoints(
        self, request: RequestInfo, snapshot: Snapshot, chosen: int, seed: int
    ) -> Mapping[str, str]:
        """Name who the KV cache is fetched from, drawn for short queues among the most cached tokens.

        A block less counts as most: ``requestcontrol/dataproducer/p2psource/producer.go``.
        """
        cached = snapshot.cached_tokens
        most = cached.max()
        if not self.kv_source_min_tokens or most <= 0.0:
            return {}
        near = (cached > 0.0) & (cached + request.block_tokens >= most)
        chances = np.cumsum(near / (1.0 + snapshot.engine_waiting))
        draw = keyed_uniform(seed, request.decision_id, "kv source") * chances[-1]
        best = int(np.searchsorted(chances, draw, "right"))
        enough = cached[best] - cached[chosen] >= self.kv_source_min_tokens
        return {KV_SOURCE_HEADER: snapshot.endpoints[best]} if best != chosen and enough else {}

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Filter, score and cost.

        Raises:
            NoEndpointError: a filter left nobody.
        """
        count = len(snapshot)
        if any(plugin.predicts for plugin in self.plugins):
            snapshot = replace(snapshot, extra={**snapshot.extra, **self._predicted(snapshot)})
        terms: dict[str, Floats] = {}
        rows, seen = np.arange(count), snapshot
        for name, plugin in self.filters.items():
            if by_labels(plugin):  # where it is among the first, all that are left pass
                passed = seen.extra.get(plugin.admitted.name, np.ones(len(rows))) > 0.0
            else:
                passed = plugin.keep(request, seen, keyed_uniform(seed, request.decision_id, name))
            if not passed.any():
                raise NoEndpointError("saturated", f"no endpoint passes {name}")
            if not passed.all():
                rows, seen = rows[passed], among(seen, passed)
            terms[name] = _spread_out(np.ones(len(rows)), rows, count)
        score = np.zeros(len(rows))
        for name, scorer in self.scorers.items():
            column = np.minimum(np.maximum(scorer.score(request, seen), 0.0), 1.0)
            score = score + self.scorer_weights[name] * column
            terms[name] = _spread_out(column, rows, count)
        terms[SCORE] = _spread_out(score, rows, count)
        costs = np.full(count, FILTERED)
        costs[rows] = self._costs(score, seen, seed, request.decision_id)
        return Ranking(costs, terms)

    def _costs(self, score: Floats, seen: Snapshot, seed: int, key: str) -> Floats:
        if self.picker == "max-score-picker":
            return sum(abs(weight) for weight in self.scorer_weights.values()) - score
        if self.picker == "random-picker" or not (score > 0.0).any():
            return np.zeros(len(score))
        times = (-math.log(keyed_uniform(seed, key, f"pick {name}") or 1e-10) for name in seen.endpoints)
        drawn = np.fromiter(times, np.float64, len(score))
        return np.minimum(drawn / np.maximum(score, 1e-90), _NO_CHANCE)

    def _predicted(self, snapshot: Snapshot) -> dict[str, Floats]:
        """Predict times to first and per output token, and what the SLOs leave, in ms; no SLO counts as 0."""
        now, none = snapshot.columns(), np.zeros(len(snapshot))
        tokens = now.pending_uncached_tokens + now.uncached_tokens
        ttft_ms = now.prefill_base_ms + now.prefill_ms_per_token * tokens
        tpot_ms = now.decode_base_ms + now.decode_ms_per_request * now.running_requests
        tpot_slo_ms = snapshot.extra.get(TPOT_SLO.name, none) * self.slo_buffer_factor
        return {
            TTFT: ttft_ms,
            TTFT_HEADROOM: snapshot.extra.get(TTFT_SLO.name, none) - ttft_ms,
            TPOT_HEADROOM: tpot_slo_ms - tpot_ms if self.streaming_mode else none,
        }

    @staticmethod
    def drawn(ranking: Ranking, weights: Weights, params: Mapping[str, object]) -> Drawn | None:
        """Give chances in proportion to scores, of the weighted-random picker where any score is above 0."""
        score = ranking.terms[SCORE]
        if params.get("picker") != "weighted-random-picker" or not (score > 0.0).any():
            return None
        before = np.where(score > 0.0, -np.log(np.maximum(score, 1e-90)), 1e4)
        return Softmax(np.where(ranking.costs < FILTERED, before, 1e4), 1.0)


@dataclass(frozen=True, slots=True)
class LlmDProfiles(Policy):
    """Rank by the profile that a request's header names.

    ``scheduling/profilehandler/headerprofile/header_profile_handler.go``. Records are those of the profile.

    Attributes:
        profile_header: the header.
        default_profile: where it is absent or blank.
        profiles: by name.
    """

    name = "llm-d-profiles"
    unit = "score"
    needs = LlmDProfile.needs
    profile_header: str = "epp-profile"
    default_profile: str = "decode"
    profiles: dict[str, LlmDProfile] = field(default_factory=lambda: {"decode": LlmDProfile()})

    @property
    def headers(self) -> frozenset[str]:
        """Name the header of the profile."""
        return frozenset({self.profile_header.strip().lower()})

    def extra_columns(self) -> ExtraColumns | None:
        """Return what makes the columns that any profile reads."""
        columns = [each for one in self.profiles.values() for each in one.required_columns]
        return PluginColumns(frozenset(columns)) if columns else None

    def roles(self, endpoint: Endpoint) -> frozenset[Role]:
        """Leave to filters who serves what."""
        return frozenset()

    def chosen(self, request: RequestInfo) -> Policy:
        """Return the profile that the header names, else the default."""
        told = request.headers.get(self.profile_header.strip().lower(), "")
        name = told.strip() or self.default_profile
        if name not in self.profiles:
            raise NoEndpointError("saturated", f"no scheduling profile is called {name!r}")
        return self.profiles[name]

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Rank by the profile of the request."""
        return self.chosen(request).rank(request, snapshot, weights, seed)


def among(snapshot: Snapshot, kept: Flags) -> Snapshot:
    """Take some endpoints of a snapshot."""
    rows = np.flatnonzero(kept).tolist()
    return replace(
        snapshot,
        endpoints=tuple(snapshot.endpoints[row] for row in rows),
        block=snapshot.block[:, kept],
        unknown={name: mask[kept] for name, mask in snapshot.unknown.items()},
        extra={name: column[kept] for name, column in snapshot.extra.items()},
    )


def _spread_out(values: Floats, rows: Slots, count: int) -> Floats:
    """Lay values out over all endpoints, 0 for the others."""
    column = np.zeros(count)
    column[rows] = values
    return column
