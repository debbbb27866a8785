"""Observation as a whole: the draw, the leases of what is not seen, and the one task that both need.

Owns the wiring of `observe` and `unobserved`, and their timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from epp.clock import ManualClock
from epp.config.schema import ObserveSection
from epp.server.metrics_hot import FamilyCollector, Gauges
from epp.server.observe import Sampler, section_of
from epp.server.unobserved import TICK_S, UnobservedLeases

if TYPE_CHECKING:
    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.server.core import Core
    from epp.server.metrics import Metrics
    from epp.server.metrics_hot import Family, Value


class Observation:
    """What is seen of responses that pass through the picker, and what stands in for the rest.

    Args:
        config: section ``observe``, and the seed of draws.
        core: decides and takes reports.
        metrics: counted into.
        clock: the time.
    """

    def __init__(self, config: Config, core: Core, metrics: Metrics, clock: Clock) -> None:
        self.sampler = Sampler(section_of(config.observe), seed=config.policy.seed, clock=clock)
        self.leases = UnobservedLeases(core.picker, core.outcomes, clock)
        waiting = _waiting()
        self._waiting = waiting.child()
        metrics.registry.register(FamilyCollector((*self.sampler.families(), waiting)))

    async def run(self) -> None:
        """Keep the leases and the share in order, for ever."""
        while True:
            self.leases.tick()
            self.sampler.tick()
            self._waiting.value = float(len(self.leases))
            await asyncio.sleep(TICK_S)


def _waiting() -> Gauges:
    return Gauges(
        "epp_observe_predicted_leases", "Leases of requests left with their pick, which end as predicted."
    )


def families() -> list[Family[Value]]:
    """The metrics of observation, as they stand before anything is observed; for the page that lists them."""
    waiting = _waiting()
    waiting.child()
    return [*Sampler(ObserveSection(), seed=0, clock=ManualClock()).families(), waiting]
