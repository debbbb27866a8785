"""How far the tuner may go with a weight: the configured bounds, and tighter ones where hacks are known.

Owns the hard limits of single policies. They bind the tuner alone, and are enforced again by whoever reads
its file; an operator's overrides may go beyond them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_GORGO = {"queue_weight": (0.05, 5.0), "rtt_weight": (0.01, 2.0)}
#: Policy -> weight -> hard ``(low, high)``. Without a floor under the queue's weight a tuner that looks at
#: TTFT alone sends all traffic to the nearest replica, and with RTT free it does the same from the other side
#: (source [G]: E2E p95 12.6 s against 2.5 s). Where nothing was measured the floor is a tenth of the default.
HARD: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "gorgo": _GORGO,
    "gorgo-hillclimb": _GORGO,
    "gorgo-ms": {"waiting_weight": (0.5, 12.0), "network_weight": (0.05, 4.0)},
    "gorgo-v1": {"queue_ms_per_token": (0.0046, math.inf)},
    "laar-paper": {"alpha": (0.07, math.inf)},
    "least-load": {"queued_weight": (0.1, math.inf)},
    "llm-d": {"queue_weight": (0.2, math.inf)},
    "mooncake": {"queue_ms_per_token": (0.0093, math.inf)},
    "preble-e2": {"decode_ms_per_request": (675.0, math.inf)},
}


def tuner_bounds(policy: str, bounds: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The bounds within which a tuner's weights must lie.

    Args:
        policy: name of the policy.
        bounds: ``(low, high)`` of each of its weights, as configured.

    Returns:
        The same names. Where the configuration leaves nothing of a hard range, the end of the configured
        range that is nearest to it: the weight is fixed there.
    """
    hard = HARD.get(policy, {})
    out = {}
    for name, (low, high) in bounds.items():
        floor, cap = hard.get(name, (low, high))
        out[name] = (min(max(low, floor), high), max(min(high, cap), low))
    return out
