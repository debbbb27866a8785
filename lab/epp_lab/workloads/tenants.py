"""Give a load's requests tenants, priorities and deadlines, drawn by user and session.

Pure: equal arguments give equal values, whatever the load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from epp.keyed_uniform import keyed_uniform

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epp_lab.compare.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who shares a load.

    Attributes:
        tenants: how many tenants; the first has as many sessions as all others together, the second half
            of the rest, and so on; the last two are alike.
        high_share: share of the sessions whose priority is 1 instead of 0.
        deadline_ms: least and most time to first token that a request asks for, drawn for each; 0 for none.
    """

    tenants: int = 1
    high_share: float = 0.0
    deadline_ms: tuple[float, float] = (0.0, 0.0)

    def apply(self, requests: Iterable[TraceRequest]) -> tuple[TraceRequest, ...]:
        """Return the requests with what is drawn for each."""
        bounds = np.append(1.0 - 0.5 ** np.arange(1, self.tenants), 1.0)
        low, high = self.deadline_ms
        return tuple(
            replace(
                request,
                tenant=f"t{int(np.searchsorted(bounds, keyed_uniform(0, request.session, 'tenant')))}",
                priority=int(keyed_uniform(0, request.session, "priority") < self.high_share),
                deadline_ms=low + (high - low) * keyed_uniform(0, f"{at} {request.session}", "deadline"),
            )
            for at, request in enumerate(requests)
        )
