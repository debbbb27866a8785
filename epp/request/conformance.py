"""What the Gateway API conformance suite asks of a picker beside proposal 004: to obey it, to say who served.

For tests of gateways alone: clients choose their endpoint by a header. llm-d's plugins for it are
``header-based-testing-filter`` and ``destination-endpoint-served-verifier``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.extproc.messages import LB_NAMESPACE, served_endpoint
from epp.request.director import Director
from epp.schedule.subset import parse_entries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.extproc.types import Destination, HttpRequest
    from epp.schedule.decision import Decision

#: The suite names endpoints by this header, in the order in which they are to be tried.
STEERING_HEADER = "test-epp-endpoint-selection"
#: Its echo server answers with the headers that this one lists.
ECHO_HEADER = "x-echo-set-header"
#: Response header that tells it who served.
SERVED_HEADER = "x-conformance-test-served-endpoint"


class SteeredDirector(Director):
    """A core that lets the suite steer and tells it who served."""

    def _subset(self, request: HttpRequest) -> tuple[str, ...] | None:
        """List the first endpoint of the steering header alone, where there is one."""
        steered = self._steered(request)
        return super()._subset(request) if steered is None else steered[:1]

    def _destinations(self, request: HttpRequest, decision: Decision, *, last_resort: bool) -> Sequence[str]:
        return self._steered(request) or super()._destinations(request, decision, last_resort=last_resort)

    def _destination(self, request: HttpRequest, decision: Decision) -> Destination:
        pick = super()._destination(request, decision)
        pick.set_headers[ECHO_HEADER] = f"{SERVED_HEADER}:{pick.destination.partition(',')[0]}"
        pick.served_headers = served_headers
        return pick

    def _steered(self, request: HttpRequest) -> tuple[str, ...] | None:
        """List the endpoints that the header names and the hint allows; None without the header."""
        named, allowed = request.headers.get(STEERING_HEADER), super()._subset(request)
        if not named:
            return None
        steered = self.scheduler.filters.addresses(self._understood(parse_entries((named,))))
        return steered if allowed is None else tuple(address for address in steered if address in allowed)


def served_headers(metadata: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Say who served by the response's metadata, in the suite's words."""
    if LB_NAMESPACE not in metadata:
        return {SERVED_HEADER: "fail: missing envoy lb metadata"}
    return {SERVED_HEADER: served_endpoint(metadata) or "fail: missing destination endpoint served metadata"}
