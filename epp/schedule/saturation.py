"""Who has to wait for better times: requests of negative priority, while the pool is saturated.

Owns the measure of saturation and the rule; it is llm-d's utilization detector with its flow control off,
source [E]: the mean over the endpoints of the larger of queue and KV cache, each over its threshold. An
endpoint that tells nothing counts as saturated, and so does a pool without endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from epp.config.schema import Saturation
    from epp.signals.fleet import Fleet

#: Headers that name a request's InferenceObjective, the newer name first. Source [E].
OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")


class Admit(Protocol):
    """Decides whether a request is taken at all."""

    def refusal(self, headers: Mapping[str, str], now_s: float) -> str:
        """Why a request is not taken, ``""`` when it is."""
        ...

    def priority(self, headers: Mapping[str, str]) -> int:
        """Priority of a request, 0 where it asks for none."""
        ...


def saturation(waiting: NDArray[np.float64], kv_usage: NDArray[np.float64], settings: Saturation) -> float:
    """How saturated a pool is; 1 and above means that nothing more should be put into it by choice.

    Args:
        waiting: waiting requests of each endpoint, NaN where unknown.
        kv_usage: share of each KV cache in use, NaN where unknown.
        settings: the thresholds.
    """
    if not waiting.size:
        return 1.0
    fuller = np.fmax(waiting / settings.queue_requests, kv_usage / settings.kv_usage)
    return float(np.where(np.isnan(fuller), 1.0, fuller).mean())


class Shedding:
    """Refuses sheddable requests while the pool is saturated.

    Args:
        fleet: the signals.
        settings: the thresholds.
        priority: priority of an InferenceObjective by name; below zero means sheddable.
    """

    def __init__(self, fleet: Fleet, settings: Saturation, priority: Callable[[str], int]) -> None:
        self._fleet, self._settings, self._priority = fleet, settings, priority

    def saturation(self, now_s: float) -> float:
        """Saturation of the endpoints that take requests."""
        slots = [slot for slot, endpoint in self._fleet.members if not endpoint.draining]
        engine = self._fleet.engine
        return saturation(engine.waiting(now_s)[slots], engine.kv_usage(now_s)[slots], self._settings)

    def priority(self, headers: Mapping[str, str]) -> int:
        """Priority of the InferenceObjective that a request names, 0 where it names none that exists."""
        name = next((headers[key] for key in OBJECTIVE_HEADERS if headers.get(key)), "")
        return self._priority(name) if name else 0

    def refusal(self, headers: Mapping[str, str], now_s: float) -> str:
        """Why a request is not taken, ``""`` when it is."""
        if self.priority(headers) >= 0:
            return ""
        found = self.saturation(now_s)
        if found < 1.0:
            return ""
        return f"requests of negative priority are dropped while the pool is saturated ({found:.2f})"
