"""Fewest requests by the engines' own last word: what a balancer without counters of its own sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy
from epp.policies.parts import check_flag, request_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms
    from epp.types import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class LeastRequestStale(Policy):
    """Fewest requests by scraped metrics alone.

    ``cost = engine_running + engine_waiting``, in requests, as old as the scrape.

    Between two scrapes the answer does not move, so every request of the interval goes to the same endpoint
    (or to the same few, when they tie): the herding that the live counter of `LeastRequest` prevents. The
    GORGO reference balances like this wherever its prefix-cache policy falls back.

    Attributes:
        count_waiting: whether the engine's queue counts; the reference counts running requests only.
    """

    name = "least-request-stale"
    needs = frozenset({Need.ENGINE_METRICS})
    count_waiting: bool = True

    def __post_init__(self) -> None:
        check_flag("count_waiting", self.count_waiting)

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        return {"engine_requests": request_counts(fleet, "engine", waiting=self.count_waiting)}
