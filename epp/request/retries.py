"""What Envoy may try after the chosen endpoint: whether refusals are retried, and who is the last resort.

An engine's refusal is retried as often as the list has further endpoints, so that none is asked twice and the
last refusal reaches the client. The innermost Envoy does it: behind relays each of them.

Where requests wait in the picker, Envoy instead sends a refused one through its filters again, once
(`epp/envoy/put_back.lua`), with a header that tells of the refusal. So it does wherever another endpoint did
a part of the request, and whatever failed: the second time one endpoint serves it whole.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.config.retries import (
    MAX_LISTED,
    MAX_RETRIES,
    MAX_RETRIES_HEADER,
    PARTED_KEY,
    PUT_BACK_KEY,
    REFUSED_HEADER,
    RELAYED,
    RETRY_ON_HEADER,
)
from epp.extproc.messages import DECISION_HEADER
from epp.types import PEER_CLASS, split_rank

if TYPE_CHECKING:
    from collections.abc import Collection

    from epp.extproc.types import Destination, HttpRequest
    from epp.request.outcomes import Outcomes
    from epp.schedule.decision import Decision
    from epp.types import RequestInfo

#: Rules that keep endpoints out for a while, which serve the same as the others.
_FOR_A_WHILE = ("health", "retry-after")


class Retries:
    """Says of each decision what may follow the first attempt.

    Args:
        outcomes: with the budget of retries in vain; told of requests that come back.
        relayed: endpoints are reached through relays.
        peers: endpoints that stand for peer regions.
        queued: requests wait in the picker.
        alone: what Envoy sends back comes to this process: it has no other workers.
    """

    def __init__(
        self, outcomes: Outcomes, *, relayed: bool, peers: Collection[str], queued: bool, alone: bool
    ) -> None:
        self._outcomes, self._relayed, self._peers = outcomes, relayed, peers
        self._budget, self._secret = outcomes.retry_budget, token_hex(16)
        self._queued, self._may_return = queued, alone and not relayed and not peers

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
        # A request is longer with those who do it by parts before anything comes of it.
        if snapshot.workers or "role" in decision.excluded:
            found[RETRY_ON_HEADER] += ",reset"
        if count < MAX_RETRIES:
            found[MAX_RETRIES_HEADER] = str(count)
        if self._relayed:
            return {RELAYED[name]: value for name, value in found.items()}
        return found | {DECISION_HEADER: decision.id}

    def put_back_once(
        self, pick: Destination, request: HttpRequest, decision: Decision, came_s: float
    ) -> None:
        """Let Envoy send a request back if it is refused, where it holds all of it, for the first time.

        Args:
            pick: what Envoy is told; changed.
            request: as it came.
            decision: of it.
            came_s: when it came.
        """
        parted = len(decision.legs) > 1
        if not (self._may_return and (self._queued or parted)):
            return
        # One that came back still has the id of its first decision.
        pick.proxy_headers = {**pick.proxy_headers, DECISION_HEADER: decision.id}
        if request.whole and self._budget.allows and not decision.request.came_s:
            scheme, host = request.headers.get(":scheme"), request.headers.get(":authority")
            pick.metadata[PUT_BACK_KEY] = f"{self._secret} {came_s:.3f} {scheme}://{host}{request.path}"
            if parted:
                pick.metadata[PARTED_KEY] = "true"

    def returned(self, request: HttpRequest) -> RequestInfo | None:
        """Return what a request was taken for that comes back; None for any other."""
        secret, *told = request.headers.get(REFUSED_HEADER, "").split(" ", 3)
        if secret != self._secret:
            return None
        came_s, status, retry_after = told
        known = self._outcomes.put_back(request.headers.get(DECISION_HEADER, ""), int(status), retry_after)
        return known and replace(known, decision_id="", came_s=float(came_s))

    def last_resort(self, decision: Decision) -> list[str]:
        """List endpoints that serve the same but are ejected or paused: better than none if others are dead.

        None where the body is written for an engine's own name of the model, nor where one engine has the
        response that the request goes on from, nor where others do a part: it may not fit them.
        """
        if decision.snapshot.models or decision.request.previous_response or len(decision.legs) > 1:
            return []
        known = [address for rule in _FOR_A_WHILE for address in decision.excluded.get(rule, ())]
        room, rank = MAX_LISTED - 1 - len(decision.fallbacks), split_rank(decision.endpoint)[1]
        return [name for name in known if name not in self._peers and split_rank(name)[1] == rank][:room]
