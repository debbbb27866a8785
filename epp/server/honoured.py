"""Picks that Envoy did not honour: counted, and logged once for each endpoint until it honours one again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epp.decide.records import Outcome
    from epp.server.metrics import Metrics
    from epp.signals.fleet import Fleet

log = logging.getLogger(__name__)


class Honoured:
    """Takes every outcome.

    Args:
        fleet: the pool; of an endpoint that has left it a late pick is nothing to warn of.
        metrics: counted into.
    """

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet, self._metrics = fleet, metrics
        self._logged: set[str] = set()

    def outcome(self, outcome: Outcome) -> None:
        """A request ended."""
        endpoint = outcome.endpoint
        if outcome.honoured is not False:
            if outcome.honoured:
                self._logged.discard(endpoint)
            return
        self._metrics.picks_not_honoured.inc()
        if endpoint in self._logged or self._fleet.slot_of(endpoint) is None:
            return
        self._logged.add(endpoint)
        log.warning(
            "Envoy did not honour a pick of %s and used %s: it does not know that endpoint. Let it follow"
            " pool.eds_file, or render its configuration again (`epp envoy render`)",
            endpoint,
            outcome.served,
        )
