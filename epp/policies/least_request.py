"""The baseline that every load balancer has: fewest unfinished requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Column, Terms
    from epp.types import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class LeastRequest(Policy):
    """Fewest unfinished requests, by the picker's own count or by the engine's, whichever is larger.

    ``cost = max(running_requests, engine_running + engine_waiting)``, in requests.

    The own count is live but knows only this picker's traffic; the engine's knows all traffic but is as old
    as the last scrape. GORGO's baseline of this name takes the larger of its own count and the scraped
    running requests; requests that wait inside the engine are unfinished too and are counted here. An
    endpoint whose engine metrics are unknown stands with the busiest known one: not knowing never makes it
    look idle. Where no engine reports, the own count decides alone. Ties are drawn.
    """

    name = "least-request"
    # Engine metrics sharpen the count and are not needed for it.

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        engine = fleet.engine_running + fleet.engine_waiting
        return {"running_requests": fleet.running_requests, "engine_requests": engine}

    def combine(self, terms: Terms, fleet: Snapshot, weights: Mapping[str, float]) -> Column:
        return np.maximum(terms["running_requests"], terms["engine_requests"])
