"""Queue length over a static speed: how model-based estimates look when reduced to one constant."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Policy
from epp.policies.parts import Counts, check_counts, check_number, request_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Column, Terms
    from epp.types import RequestView, Snapshot

#: Relative speeds in Lodestar's repository; classes it does not name run at 1, A30 and V100 among them.
PUBLISHED_SPEEDS: Mapping[str, float] = MappingProxyType(
    {"l3c": 1.0, "l20": 2.0, "a100": 3.0, "a100-sxm": 3.5, "h100": 5.0, "h100-sxm": 6.0}
)


def _published_speeds() -> Mapping[str, float]:
    return PUBLISHED_SPEEDS


@dataclass(frozen=True, slots=True)
class MooncakeStatic(Policy):
    """Requests ahead over the speed of the hardware.

    ``cost = (requests + 1) / speed(engine_class)``. Lodestar's baseline after Mooncake and LMDeploy: queue
    length over throughput, the throughput being one number per GPU model. It counts requests, so a long
    prompt weighs like a short one, and caches do not count at all. Unknown classes tie at speed 1.

    Attributes:
        speeds: relative speed by engine class, compared without regard to case. Other hardware needs
            measured numbers here.
        counts: ``live`` reservations, or the ``engine``'s requests as of the last scrape.
    """

    name = "mooncake-static"
    speeds: Mapping[str, float] = field(default_factory=_published_speeds)
    counts: Counts = "live"

    def __post_init__(self) -> None:
        check_counts(self.counts)
        if not hasattr(self.speeds, "items"):
            raise ValueError(f"speeds must map engine classes to numbers, not {self.speeds!r}")
        for name, speed in self.speeds.items():
            check_number(f"speeds.{name}", speed, 1e-6)
        lowered = {name.lower(): float(speed) for name, speed in self.speeds.items()}
        object.__setattr__(self, "speeds", MappingProxyType(lowered))

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        known = (self.speeds.get(name.lower(), 1.0) for name in fleet.engine_classes)
        speeds = np.fromiter(known, np.float64, len(fleet))
        return {"requests": request_counts(fleet, self.counts) + 1.0, "speed": speeds}

    def combine(self, terms: Terms, fleet: Snapshot, weights: Mapping[str, float]) -> Column:
        return terms["requests"] / terms["speed"]
