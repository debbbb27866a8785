"""Observation as a whole: the draw, the leases of what is not seen, and the one task that both need.

Owns the wiring of `observe` and `unobserved`, and their timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from epp.server.observe import Sampler, section_of
from epp.server.unobserved import TICK_S

if TYPE_CHECKING:
    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.server.core import Core
    from epp.server.metrics import Metrics


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
        self.leases = core.leases
        metrics.show("sampler", self.sampler)
        metrics.show("leases", self.leases)

    async def run(self) -> None:
        """Keep the leases and the share in order, for ever."""
        while True:
            self.leases.tick()
            self.sampler.tick()
            await asyncio.sleep(TICK_S)
