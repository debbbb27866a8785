"""Queue length over a static speed: how model-based estimates look when reduced to one constant."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from epp.policies.base import Need, Ties, WeightSpec
from epp.policies.parts import Counts, check_counts, check_number, request_counts
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView

#: Relative speeds in Lodestar's repository; classes it does not name run at 1, A30 and V100 among them.
PUBLISHED_SPEEDS: Mapping[str, float] = MappingProxyType(
    {"l3c": 1.0, "l20": 2.0, "a100": 3.0, "a100-sxm": 3.5, "h100": 5.0, "h100-sxm": 6.0}
)


def _published_speeds() -> Mapping[str, float]:
    return PUBLISHED_SPEEDS


@dataclass(frozen=True, slots=True)
class MooncakeStatic:
    """Requests ahead over the speed of the hardware.

    ``cost = (requests + 1) / speed(engine_class)``. Lodestar's baseline after Mooncake and LMDeploy: queue
    length over throughput, the throughput being one number per GPU model. It counts requests, so a long
    prompt weighs like a short one, and caches do not count at all. Unknown classes tie at speed 1.

    Attributes:
        speeds: relative speed by engine class, compared without regard to case. Other hardware needs
            measured numbers here.
        counts: ``live`` reservations, or the ``engine``'s requests as of the last scrape.
    """

    name: ClassVar[str] = "mooncake-static"
    needs: ClassVar[frozenset[Need]] = frozenset()
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType({})
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

    def rank(
        self,
        request: RequestView,  # noqa: ARG002 - the queue is the same for every request
        fleet: FleetView,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """Requests over speed, with both as terms."""
        requests = request_counts(fleet, self.counts) + 1.0
        known = (self.speeds.get(name.lower(), 1.0) for name in fleet.engine_classes)
        speeds = np.fromiter(known, np.float64, len(fleet))
        return Ranking(requests / speeds, {"requests": requests, "speed": speeds})
