"""The own region while it has room, else the cheapest of its engines and the peer regions that have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import ExtraColumns, Share
from epp.policies.gorgo_ms import GorgoMs
from epp.types import PEER_CLASS, Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Weights
    from epp.signals.datastore import Datastore
    from epp.types import Flags, Floats, RequestInfo, Slots, Snapshot

#: Columns: requests that an endpoint or a peer region takes before they wait, 1 for a peer region, and what a
#: request there costs in money, as milliseconds.
ROOM, PEER, PRICE = "room", "peer", "price_ms"
#: A third of the largest batch, where an engine takes twice as many as that.
_LIGHT = 1 / 6


@dataclass(frozen=True, slots=True)
class LocalFirst(GorgoMs):
    """Cheapest by `GorgoMs` of the local endpoints while one has room; else of all but full peers.

    ``cost = gorgo-ms + price_ms + elsewhere``. ``elsewhere`` is more than any cost for all that is not local
    while a local endpoint has room or no peer is cheaper than the cheapest by ``margin``. It is as much more
    for a peer region that takes no request.

    An endpoint has room while none of its requests waits or is prefilled, and they are less than `_LIGHT` of
    those that it takes at most (`epp.signals.room`). A price is money as milliseconds.

    Attributes:
        local_region: where the picker is. Left out: all that is no peer region is local.
        margin: share of the cheapest local cost that a forward has to save.
    """

    name = "local-first"
    unit = "ms, weighted"
    local_region: str = ""
    margin: Share = 0.2

    def extra_columns(self) -> ExtraColumns:
        """Return what makes the columns of `RegionColumns`."""
        return RegionColumns()

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Price as `GorgoMs`, then put those behind that are elsewhere or full."""
        ranking = GorgoMs.rank(self, request, snapshot, weights, seed)
        none = np.zeros(len(snapshot))
        price, room, peer = (snapshot.extra.get(name, none) for name in (PRICE, ROOM, PEER))
        costs, local, running = ranking.costs + price, self._local(snapshot, peer), snapshot.running_requests
        has_room = (running == snapshot.decoding_requests) & (snapshot.engine_waiting == 0.0)
        has_room &= running < _LIGHT * (running + room)
        behind = ((peer > 0.0) & (room <= 0.0)).astype(np.float64)
        if local.any():
            enough = (1.0 - self.margin) * costs[local].min()
            stays = has_room[local].any() or not (costs[~local] < enough).any()
            behind += stays * ~local
        # Beyond the band of ties of the dearest before, however wide it is configured.
        elsewhere = behind * (2.0 * float(np.abs(costs).max()) + 1.0)
        terms = {**ranking.terms, "price": price, "elsewhere": elsewhere}
        return Ranking(costs + elsewhere, terms, ranking.least_first_token_ms, ranking.partners)

    def _local(self, snapshot: Snapshot, peer: Floats) -> Flags:
        own: Flags = peer == 0.0
        if self.local_region:
            own &= np.array([region == self.local_region for region in snapshot.regions])
        return own


class RegionColumns(ExtraColumns):
    """Make the columns of what peer regions differ in; without them there are no peers and no prices."""

    def columns(
        self, request: RequestInfo, datastore: Datastore, seen: Snapshot, slots: Slots, now_s: float
    ) -> Mapping[str, Floats]:
        """Make `PEER`, `PRICE` and `ROOM`."""
        peer = price = np.zeros(len(slots))
        if datastore.remote is not None:
            peer = np.array([each == PEER_CLASS for each in seen.engine_classes], np.float64)
            limit, sequences = request.max_output_tokens, request.sequences
            answer_tokens = datastore.answers.expected(request.model, limit, sequences)
            price = datastore.remote.prices_ms(request, slots, seen.uncached_tokens, answer_tokens)
        return {PEER: peer, PRICE: price, ROOM: datastore.places(slots)}
