"""The own region while it has room, else the cheapest of its engines and the peer regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import PEER, PRICE, ROOM
from epp.policies.gorgo_ms import GorgoMs
from epp.types import Ranking

if TYPE_CHECKING:
    from epp.policies.base import Weights
    from epp.types import Flags, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class LocalFirst(GorgoMs):
    """Cheapest by `GorgoMs` of the local endpoints with room, if there are any; else the cheapest of all.

    ``cost = gorgo-ms + price_ms + elsewhere``, where ``elsewhere`` is 0 for a local endpoint with room and,
    while there is one, more than any cost for all others. Room is learned (`epp.signals.room`); a price is
    money as milliseconds.

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
        price, room = fleet.extra.get(PRICE, none), fleet.extra.get(ROOM, none)
        admits = self._local(fleet) & (room > 0.0)
        costs = ranking.costs + price
        # Beyond the band of ties of the dearest with room, however wide it is configured.
        behind = 2.0 * float(np.abs(costs).max()) + 1.0 if admits.any() else 0.0
        terms = {
            **ranking.terms,
            "price": price,
            "elsewhere": np.where(admits, 0.0, behind),
        }
        return Ranking(costs + terms["elsewhere"], terms, ranking.least_first_token_ms)

    def _local(self, fleet: Snapshot) -> Flags:
        own: Flags = fleet.extra.get(PEER, np.zeros(len(fleet))) == 0.0
        if self.local_region:
            own &= np.array([region == self.local_region for region in fleet.regions])
        return own
