"""Who has to wait for better times: requests of negative priority, while the pool is saturated.

Owns the measure of saturation and the rule; it is one of llm-d's detectors with its flow control off, source
[E]. Utilization: the mean over the endpoints of the larger of queue and KV cache, each over its threshold. An
endpoint that reports nothing counts as saturated, and so does a pool without endpoints. Concurrency: the same
of what was sent and has not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.errors import NotAdmittedError
from epp.signals.engine_metrics import KV_USAGE, WAITING
from epp.signals.ledger import PENDING, RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from epp.config.schema import Limits, Saturation
    from epp.signals.datastore import Datastore
    from epp.types import Flags, Floats, RequestInfo

#: Headers that name a request's InferenceObjective, the newer name first. Source [E].
OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")


def saturation(waiting: Floats, kv_usage: Floats, settings: Saturation) -> float:
    """Measure how saturated a pool is; from 1 on nothing more should be put into it by choice.

    Args:
        waiting: waiting requests of each endpoint, NaN where unknown.
        kv_usage: share of each KV cache in use, NaN where unknown.
        settings: the thresholds.
    """
    if not waiting.size:
        return 1.0
    fuller = np.fmax(waiting / settings.queue_requests, kv_usage / settings.kv_usage)
    return float(np.where(np.isnan(fuller), 1.0, fuller).mean())


def concurrency(requests: Floats, tokens: Floats, settings: Saturation) -> float:
    """Measure it by unfinished requests of each endpoint, and uncached tokens that await a first one."""
    if not requests.size:
        return 1.0
    loads = ((requests, settings.running_requests), (tokens, settings.pending_tokens))
    return float(np.maximum.reduce([load / limit for load, limit in loads if limit]).mean())


def is_below_limit(
    found: float, limits: Limits, priority: int, priorities: Collection[int], look: int
) -> bool:
    """Tell whether a priority is served at a saturation: llm-d's policies of usage limits.

    Args:
        found: the saturation.
        limits: their settings.
        priority: one of them.
        priorities: all that may be asked for.
        look: number of the look; a lower priority takes turns by it where `limits` say so.
    """
    if limits.policy == "static-usage-limit":
        return found < limits.threshold
    ranks = sorted(priorities, reverse=True)
    below = ranks.index(priority) / max(len(ranks) - 1, 1)
    if limits.policy == "soft-reflective-ceiling":
        if found >= 1.0:
            return False
        period = max(int(found / max(1.0 - found, 1e-9) + 0.5), 1)
        return found < 1.0 - below * found or look % period == 0
    if limits.domain == "value":
        below = (ranks[0] - priority) / max(ranks[0] - ranks[-1], 1)
    return found < limits.max_ceiling - below * (limits.max_ceiling - limits.min_ceiling)


class AdmissionController:
    """Refuses sheddable requests while the pool is saturated.

    Args:
        datastore: the signals.
        settings: the thresholds.
        priority: priority of an InferenceObjective by name; below zero means sheddable.

    Attributes:
        settings: the thresholds, which may change.
    """

    def __init__(self, datastore: Datastore, settings: Saturation, priority: Callable[[str], int]) -> None:
        self._datastore, self.settings, self._priority = datastore, settings, priority

    def saturation(self, now_s: float) -> float:
        """Measure the endpoints that take requests."""
        datastore, settings = self._datastore, self.settings
        slots = [
            slot for slot, endpoint in datastore.members if not (endpoint.draining or datastore.is_peer(slot))
        ]
        found = 0.0
        if settings.running_requests or settings.pending_tokens:
            promised = datastore.in_flight_tokens(np.array(slots, np.intp))
            found = concurrency(promised[RUNNING], promised[PENDING], settings)
            if not settings.largest:
                return found
        block = datastore.engine.block(now_s)[:, slots]
        if settings.stale_after_s:
            block = np.where(self._stale(slots, now_s), np.nan, block)
        return max(found, saturation(block[WAITING], block[KV_USAGE], settings))

    def _stale(self, slots: list[int], now_s: float) -> Flags:
        stale: Flags = ~(now_s - self._datastore.engine.updated_s[slots] <= self.settings.stale_after_s)
        return stale

    def stale_endpoints(self, now_s: float) -> int | None:
        """Count the endpoints whose samples are missing or older than `stale_after_s`, if that is set."""
        if not self.settings.stale_after_s:
            return None
        return int(self._stale([slot for slot, _ in self._datastore.members], now_s).sum())

    def priority(self, headers: Mapping[str, str]) -> int:
        """Return the priority of the InferenceObjective that a request names, 0 for none."""
        name = next((headers[key] for key in OBJECTIVE_HEADERS if headers.get(key)), "")
        return self._priority(name) if name else 0

    async def admit(self, request: RequestInfo, now_s: float) -> None:
        """Let a request with a body in, at once.

        Raises:
            NotAdmittedError: it is sheddable, and the pool is saturated.
        """
        if request.priority >= 0 or not (request.api or request.opaque):
            return
        found = self.saturation(now_s)
        if found >= 1.0:
            words = f"requests of negative priority are dropped while the pool is saturated ({found:.2f})"
            raise NotAdmittedError(words)
