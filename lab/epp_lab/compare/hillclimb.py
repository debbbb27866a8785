"""Simulate `gorgo-hillclimb`: the published online search moves the weights of `gorgo` while it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from epp_lab.tuner_life import Stretch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.scenario import FleetSpec, WindowOptions
    from epp_lab.tuner.hillclimb import EsPaper
    from epp_lab.tuner.samples import Sample


def hillclimb(
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    search: EsPaper,
    *,
    seed: int,
    options: WindowOptions,
) -> Stretch:
    """Return a window whose weights the search moves with each answer; it begins when it is run.

    Args:
        requests: the load.
        fleet: the replicas.
        search: the tuner.
        seed: of network and draws.
        options: how the load is sent.
    """

    def put_in_force() -> None:
        text = msgspec.json.encode({"weights": search.weights})
        stretch.book.update("override", text, "overrides.yaml")

    def answered(sample: Sample) -> None:
        if sample.answered and search.tell(sample.ttft_ms):  # failed requests vanish, as published
            put_in_force()

    stretch = Stretch(
        requests, fleet, "gorgo", {}, seed=seed, answered=answered, look=lambda _: None, options=options
    )
    put_in_force()
    return stretch
