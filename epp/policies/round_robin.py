"""The rotation: each endpoint in turn, whatever is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms
    from epp.types import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class RoundRobin(Policy):
    """Turns over the endpoints in the order given.

    ``cost[i] = (i - sequence) mod n``, in turns to wait: the endpoint whose turn it is costs 0, the one after
    it 1, so that fallbacks follow in rotation order. The only policy whose answer depends on the order of the
    endpoints; it rotates over the candidates, so a filter that changes them from request to request changes
    the rotation too.
    """

    name = "round-robin"

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        count = len(fleet)
        # Reduced first: the sequence is an unbounded integer and must not lose precision as a float.
        turns = ((np.arange(count) - request.sequence % count) % count).astype(np.float64)
        return {"turns": turns}
