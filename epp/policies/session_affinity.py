"""Stickiness without state: rendezvous hashing of the session over the endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from epp.policies.base import Need, Policy
from epp.policies.least_request import LeastRequest
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from epp.types import RequestView, Snapshot

_WITHOUT_KEY = LeastRequest()


@dataclass(frozen=True, slots=True)
class SessionAffinity(Policy):
    """The same session to the same endpoint, by highest random weight (Thaler and Ravishankar, 1998).

    Each endpoint weighs ``xxh3(endpoint, seed = xxh3(affinity_key))``; ``cost`` is its place in descending
    order of weight, 0 for the session's own endpoint, so that fallbacks follow the session's own order too.
    When an endpoint leaves, only its sessions move, each to its next place; when one joins, it takes its
    share and nothing else moves. Weights depend on key and address alone, so all pickers agree without
    talking.

    A request without a key goes by `LeastRequest`: nothing ties it to a place, so it may as well balance.
    """

    name = "session-affinity"
    needs = frozenset({Need.SESSION})

    def rank(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int) -> Ranking:
        """Places in the session's order of endpoints, or the counts of `LeastRequest` without a session."""
        if not request.affinity_key:
            return _WITHOUT_KEY.rank(request, fleet, weights, seed)
        places = session_places(request.affinity_key, fleet.endpoints)
        return Ranking(places, {"place": places})


def session_places(key: str, endpoints: Sequence[str]) -> NDArray[np.float64]:
    """Place of each endpoint in the order of this key, by highest random weight; the key's own is 0."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    weigh, count = xxhash.xxh3_64_intdigest, len(endpoints)
    weights = np.fromiter((weigh(endpoint.encode(), seed) for endpoint in endpoints), np.uint64, count)
    places = np.empty(count, np.float64)
    places[np.argsort(weights)[::-1]] = np.arange(count)
    return places
