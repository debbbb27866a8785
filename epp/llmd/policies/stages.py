"""llm-d's handler of stages: one profile finds who decodes, others who prefills and encodes for it.

Sources: ``scheduling/profilehandler/disagg`` (`epp.llmd.policies.plugins` says of what).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from epp.errors import NoEndpointError
from epp.keyed_uniform import keyed_uniform
from epp.llmd.policies.columns import PluginColumns
from epp.llmd.policies.filters import DecodeFilter, EncodeFilter, PrefillFilter
from epp.llmd.policies.profile import FILTERED, LlmDProfile, among
from epp.policies.base import Policy, PositiveCount
from epp.policies.pairs import groups_of
from epp.types import HELPERS, PREFILLS, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.llmd.policies.filters import Filters
    from epp.policies.base import Drawn, ExtraColumns, Weights
    from epp.types import Endpoint, Flags, Ranking, RequestInfo, Rows, Snapshot

_Count = Annotated[int, Meta(ge=0)]


class Decider(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Decide whether a request has a stage of its own."""

    def wants(self, request: RequestInfo, decoding: Snapshot) -> Flags:
        """Decide it for each endpoint that might decode."""
        raise NotImplementedError


class Always(Decider, frozen=True, tag="always-disagg-pd-decider"):
    """Every request: ``always_disagg_pd_decider.go``."""

    def wants(self, request: RequestInfo, decoding: Snapshot) -> Flags:
        return np.ones(len(decoding), np.bool_)


class WithMedia(Decider, frozen=True, tag="always-disagg-multimodal-decider"):
    """Requests with images, recordings or videos: ``always_disagg_mm_decider.go``."""

    def wants(self, request: RequestInfo, decoding: Snapshot) -> Flags:
        return np.full(len(decoding), bool(request.media))


class Uncached(Decider, frozen=True, tag="prefix-based-pd-decider"):
    """Prompts of `prompt_tokens` of which an endpoint lacks `non_cached_tokens`, nobody where that is 0.

    ``prefix_based_pd_decider.go``.
    """

    non_cached_tokens: _Count = 0
    prompt_tokens: _Count = 0

    def wants(self, request: RequestInfo, decoding: Snapshot) -> Flags:
        long = self.non_cached_tokens > 0 and request.prompt_tokens >= self.prompt_tokens
        wanted: Flags = long & (decoding.uncached_tokens >= self.non_cached_tokens)
        return wanted


Deciders = Always | WithMedia | Uncached


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of requests.

    Attributes:
        profile: finds who does it.
        decider: says of which requests; nobody asks that of ``decode``.
        most: how many endpoints share it at most.
    """

    profile: LlmDProfile = field(default_factory=LlmDProfile)
    decider: Deciders = field(default_factory=Always)
    most: PositiveCount = 1


def _by_role() -> dict[Role, Stage]:
    """Return every stage, by the label of roles and the scorers of the default profile."""
    kinds: dict[Role, Filters] = {
        Role.DECODE: DecodeFilter(),
        Role.PREFILL: PrefillFilter(),
        Role.ENCODE: EncodeFilter(),
    }
    return {
        role: Stage(LlmDProfile(filters={role: kind}), WithMedia() if role is Role.ENCODE else Always())
        for role, kind in kinds.items()
    }


@dataclass(frozen=True, slots=True)
class LlmDStages(Policy):
    """Rank who decodes by one profile, and find by others who prefills and encodes for it.

    ``disagg_profile_handler.go`` of llm-d/llm-d-router at ebab687. Whether there is a stage of its own is
    decided by what each endpoint, were it to decode, holds of the prompt. Who does it is the same for all
    endpoints of a revision and does not depend on who decodes. Where its profile leaves nobody, or the
    endpoint itself, that endpoint does it; there llm-d sends an endpoint to itself. One whose engine cannot
    prefill wants a worker whatever is decided.

    Attributes:
        stages: by role, ``decode`` among them; by default all, by label, with a prefill for every request.
    """

    name = "llm-d-stages"
    unit = "score"
    needs = LlmDProfile.needs
    pairs = True
    stages: dict[Role, Stage] = field(default_factory=_by_role)

    def __post_init__(self) -> None:
        """Check that somebody answers.

        Raises:
            ValueError: there is no stage ``decode``.
        """
        if Role.DECODE not in self.stages:
            raise ValueError("stages: 'decode' is wanted")

    def admits(self, endpoint: Endpoint) -> bool:
        """Tell whether the filters of labels of any stage let it through."""
        return bool(self.roles(endpoint))

    def roles(self, endpoint: Endpoint) -> frozenset[Role]:
        """Return the stages whose filters of labels let it through."""
        return frozenset(role for role, stage in self.stages.items() if stage.profile.admits(endpoint))

    def extra_columns(self) -> ExtraColumns | None:
        """Return what makes the columns that any stage reads."""
        columns = [each for stage in self.stages.values() for each in stage.profile.required_columns]
        return PluginColumns(frozenset(columns)) if columns else None

    def told_endpoints(
        self, request: RequestInfo, snapshot: Snapshot, chosen: int, seed: int
    ) -> Mapping[str, str]:
        """Name who the KV cache is fetched from, by the profile of who decodes."""
        return self.stages[Role.DECODE].profile.told_endpoints(request, snapshot, chosen, seed)

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Rank who decodes, and find the workers for each.

        Raises:
            NoEndpointError: a filter left nobody to decode.
        """
        ranking = self.stages[Role.DECODE].profile.rank(request, snapshot, weights, seed)
        partners = {
            role: self._workers(role, request, snapshot, seed + 1 + place)
            for place, role in enumerate(HELPERS)
            if role in self.stages and role in snapshot.workers
        }
        return replace(ranking, partners=partners)

    def _workers(self, role: Role, request: RequestInfo, snapshot: Snapshot, seed: int) -> Rows:
        """Find who does a stage for each endpoint, as `Ranking.partners` has them."""
        stage, workers = self.stages[role], snapshot.workers[role]
        rows: Rows = np.full((len(snapshot), stage.most), -1, np.intp)
        wanted = stage.decider.wants(request, snapshot)
        if role is Role.PREFILL:
            wanted = wanted | (snapshot.extra[PREFILLS] == 0.0)
        groups, of_workers = list(groups_of(role, snapshot)), list(groups_of(role, workers))
        for group in set(compress(groups, wanted)):
            kept = np.array([each == group for each in of_workers])
            found = _picked(stage, request, workers, kept, seed) if kept.any() else []
            rows[wanted & np.array([each == group for each in groups]), : len(found)] = found
        names = np.array(workers.endpoints)
        rows[names[rows] == np.array(snapshot.endpoints)[:, None]] = -1
        return rows

    @staticmethod
    def drawn(ranking: Ranking, weights: Weights, params: Mapping[str, object]) -> Drawn | None:
        """Give the chances of the profile that ranks who decodes."""
        stages = params.get("stages")
        decode = stages[Role.DECODE]["profile"] if isinstance(stages, dict) else {}
        return LlmDProfile.drawn(ranking, weights, decode)


def _picked(stage: Stage, request: RequestInfo, workers: Snapshot, kept: Flags, seed: int) -> list[int]:
    """Choose by a stage's profile among some workers, of equals by a keyed draw; nobody where none passes."""
    rows, seen = np.flatnonzero(kept), among(workers, kept)
    try:
        costs = stage.profile.rank(request, seen, {}, seed).costs
    except NoEndpointError:
        return []
    draws = [keyed_uniform(seed, request.decision_id, f"worker {name}") for name in seen.endpoints]
    order = np.lexsort((np.array(draws), costs))[: stage.most]
    return [int(rows[place]) for place in order if costs[place] < FILTERED]
