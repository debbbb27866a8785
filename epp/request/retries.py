"""What Envoy may try after the endpoint picked: whether refusals are retried, and who is the last resort.

An engine's refusal is retried as often as the list has further endpoints, so that none is asked twice and the
last refusal reaches the client. The innermost Envoy does it: behind relays each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.config.retries import (
    MAX_LISTED,
    MAX_RETRIES,
    MAX_RETRIES_HEADER,
    RELAYED,
    RETRY_ON_HEADER,
)
from epp.extproc.messages import DECISION_HEADER
from epp.types import PEER_CLASS

if TYPE_CHECKING:
    from collections.abc import Collection

    from epp.schedule.decision import Decision
    from epp.signals.retry_budget import RetryBudget

#: Rules that keep endpoints out for a while, which serve the same as the others.
_FOR_A_WHILE = ("health", "retry-after")


class Retries:
    """Says of each decision what may follow the first attempt.

    Args:
        budget: of retries in vain.
        relayed: endpoints are reached through relays.
        peers: endpoints that stand for peer regions.
    """

    def __init__(self, budget: RetryBudget, *, relayed: bool, peers: Collection[str]) -> None:
        self._budget, self._relayed, self._peers = budget, relayed, peers

    def headers(self, decision: Decision) -> dict[str, str]:
        """Name the request headers that allow Envoy to retry an engine's refusal; none where it may not.

        The decision's id among them joins what Envoy reports of each attempt.
        """
        snapshot, rows = decision.snapshot, (decision.chosen, *decision.fallbacks)
        if self._relayed:
            region = snapshot.regions[decision.chosen]
            rows = tuple(row for row in rows if snapshot.regions[row] == region)
        elif self._peers and all(snapshot.engine_classes[row] == PEER_CLASS for row in rows):
            return {}  # what a region refuses, its own Envoy has retried
        count = min(len(rows) - 1, MAX_RETRIES)
        if not count or not self._budget.allows:
            return {}
        found = {RETRY_ON_HEADER: "retriable-status-codes"}
        if count < MAX_RETRIES:
            found[MAX_RETRIES_HEADER] = str(count)
        if self._relayed:
            return {RELAYED[name]: value for name, value in found.items()}
        return found | {DECISION_HEADER: decision.id}

    def last_resort(self, decision: Decision) -> list[str]:
        """List endpoints that serve the same but are ejected or paused: better than none if others are dead.

        None where the body is written for an engine's own name of the model, nor where one engine has the
        response that the request goes on from.
        """
        if decision.snapshot.models or decision.request.previous_response:
            return []
        known = [address for rule in _FOR_A_WHILE for address in decision.excluded.get(rule, ())]
        room = MAX_LISTED - 1 - len(decision.fallbacks)
        return [address for address in known if address not in self._peers][:room]
