"""What an endpoint is told of those who do a part of a request for it: llm-d's sidecar reads these headers.

The sidecar stands before the engine that decodes, and asks the workers that are named for their parts. All
its connectors take the same headers (source [E]: ``docs/disaggregation.md``, ``pkg/sidecar/proxy`` of llm-d's
router); what is between engines is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.types import RANK_ADDRESS_HEADER, RANK_HEADER, WORKER_HEADERS, split_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.schedule.decision import Decision

#: Request headers that clients may not send to engines that are told of workers.
STRIPPED = frozenset({*WORKER_HEADERS.values(), RANK_ADDRESS_HEADER, RANK_HEADER})


def worker_headers(decision: Decision, known_as: Callable[[str], str]) -> dict[str, str]:
    """Name the workers of a decision by header, and the rank that answers where several share its address.

    Args:
        decision: the decision.
        known_as: what others call an endpoint.
    """
    rank = split_rank(decision.endpoint)[1]
    workers = {
        header: ",".join(known_as(decision.address(leg)) for leg in decision.legs if leg.role is role)
        for role, header in WORKER_HEADERS.items()
        if any(leg.role is role for leg in decision.legs)
    }
    return workers | ({RANK_HEADER: rank} if rank else {})
