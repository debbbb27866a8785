"""Relays: which ones a request goes through.

A request goes to the relays of its endpoints' regions, as addresses that Envoy knows, each connection of a
relay in turn; relays read the chosen endpoints from its header and pass over endpoints of other regions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.relays import RELAYS_KEY
from epp.feeds.resolve import Resolver

if TYPE_CHECKING:
    from epp.config.relays import Relays
    from epp.extproc.types import Destination
    from epp.schedule.decision import Decision


class RelayPaths:
    """The way to each region.

    Args:
        relays: as configured, with regions.
    """

    def __init__(self, relays: Relays) -> None:
        self._addresses = {region: relays.addresses(region) for region in relays.regions}
        self._turn = dict.fromkeys(self._addresses, 0)
        self.resolver = Resolver()
        self.resolver.set_pool(address for addresses in self._addresses.values() for address in addresses)

    def set_path(self, pick: Destination, decision: Decision) -> None:
        """Name a decision's relays: of its endpoints first, then of the other regions that it may go to.

        Each region comes once, with the connection whose turn it is: a relay that cannot be reached on one
        is not likely to be on the next, so a retry goes elsewhere.
        """
        regions, allowed = decision.snapshot.regions, decision.request.regions
        wanted = dict.fromkeys(regions[index] for index in (decision.chosen, *decision.fallbacks))
        wanted |= dict.fromkeys(region for region in self._addresses if allowed is None or region in allowed)
        path = [region for region in wanted if region in self._addresses]
        if not path:
            return
        pick.metadata[RELAYS_KEY] = ",".join(self._now(region) for region in path)
        # Only the first is used as a rule: turns of the others would fall into step with it.
        self._turn[path[0]] = (self._turn[path[0]] + 1) % len(self._addresses[path[0]])

    def _now(self, region: str) -> str:
        return self.resolver.known_as(self._addresses[region][self._turn[region]])
