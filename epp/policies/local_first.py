"""The own region while it has room, else the cheapest of its engines and the peer regions that have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import PEER, PRICE, ROOM
from epp.policies.gorgo_ms import GorgoMs
from epp.types import Ranking

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.types import Flags, Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class LocalFirst(GorgoMs):
    """Cheapest by `GorgoMs` of the local endpoints with room, if there are any; else of all but full peers.

    ``cost = gorgo-ms + price_ms + elsewhere``. While a local endpoint has room, ``elsewhere`` is more than
    any cost for all that are not such; it is as much more for a peer region without room, which would refuse.
    Room is learned (`epp.signals.room`); a price is money as milliseconds.

    Attributes:
        local_region: where the picker is. Left out: all that is no peer region is local.
    """

    name = "local-first"
    local_region: str = ""

    @property
    def asks(self) -> frozenset[str]:
        """Name the columns of `Snapshot.extra` that it reads."""
        return frozenset({ROOM, PEER, PRICE})

    def rank(self, request: RequestInfo, fleet: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Price as `GorgoMs`, then put those behind that are elsewhere or full."""
        ranking = GorgoMs.rank(self, request, fleet, weights, seed)
        none = np.zeros(len(fleet))
        price, room, peer = (fleet.extra.get(name, none) for name in (PRICE, ROOM, PEER))
        costs, full = ranking.costs + price, room <= 0.0
        admits = self._local(fleet, peer) & ~full
        behind = ((peer > 0.0) & full).astype(np.float64)
        if admits.any():
            behind += ~admits
        # Beyond the band of ties of the dearest before, however wide it is configured.
        elsewhere = behind * (2.0 * float(np.abs(costs).max()) + 1.0)
        terms = {**ranking.terms, "price": price, "elsewhere": elsewhere}
        return Ranking(costs + elsewhere, terms, ranking.least_first_token_ms)

    def _local(self, fleet: Snapshot, peer: Floats) -> Flags:
        own: Flags = peer == 0.0
        if self.local_region:
            own &= np.array([region == self.local_region for region in fleet.regions])
        return own
