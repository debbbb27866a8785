"""Every check of `epp doctor` in one table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from epp.ops.doctor import engines, envoy, network, picker, traffic
from epp.ops.doctor.context import NotFetchedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.ops.doctor.context import Context, Finding, Findings


class Check(NamedTuple):
    """One question to a deployment: of what area, answered by which function."""

    area: str
    run: Callable[[Context], Findings]


_BY_AREA: dict[str, tuple[Callable[[Context], Findings], ...]] = {
    "traffic": (traffic.worth, picker.cached_counts),
    "clock": (engines.clocks,),
    "picker": (
        picker.reachable,
        picker.files,
        picker.token_counts,
        picker.kv_events,
        picker.endpoints,
        picker.freshness,
        picker.peers,
        picker.faults,
        picker.held_turns,
        picker.ends,
        picker.cache_belief,
        picker.reports,
        picker.response_sampling,
    ),
    "engine": (picker.hit_ratios, picker.speeds, engines.metrics, engines.models, engines.caching),
    "envoy": (
        picker.compression,
        envoy.reachable,
        envoy.ext_proc_uses,
        envoy.modes,
        envoy.failures,
        envoy.message_timeout,
        envoy.waits,
        envoy.metadata,
        envoy.reporting,
        envoy.route_timeouts,
        envoy.retries,
        envoy.body_limits,
        envoy.balancing,
        envoy.breakers,
        envoy.hosts,
        envoy.admin,
    ),
    "network": (picker.round_trips, picker.regions, network.paths, network.windows, network.kernel),
}
CHECKS = [Check(area, run) for area, runs in _BY_AREA.items() for run in runs]


class Examined(NamedTuple):
    """What checks found, and those that lacked what they look at."""

    found: list[tuple[Check, Finding]]
    left_out: list[Check]


def examine(context: Context) -> Examined:
    """Run every check; none says a thing twice."""
    found: dict[tuple[Check, Finding], None] = {}
    left_out = []
    for check in CHECKS:
        try:
            for finding in check.run(context):
                found[check, finding] = None
        except NotFetchedError:
            left_out.append(check)
    return Examined(list(found), left_out)
