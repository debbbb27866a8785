"""Every check of `epp doctor` in one table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from epp.ops.doctor import engines, envoy, network, picker, traffic
from epp.ops.doctor.context import NotFetchedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.ops.doctor.context import Context, Finding, Findings


class Check(NamedTuple):
    """One question to a deployment: of what area, under which title, answered by which function."""

    area: str
    title: str
    run: Callable[[Context], Findings]


CHECKS = (
    Check("traffic", "whether prefix and distance can pay", traffic.worth),
    Check("picker", "the picker answers", picker.reachable),
    Check("clock", "clocks agree", engines.clocks),
    Check("picker", "files in force", picker.files),
    Check("picker", "tokens are counted", picker.token_counts),
    Check("picker", "endpoints known and healthy", picker.endpoints),
    Check("picker", "metrics of engines are fresh", picker.freshness),
    Check("picker", "other pickers are heard and fit", picker.peers),
    Check("network", "round trips are known and plausible", picker.round_trips),
    Check("network", "endpoints of a region are alike", picker.regions),
    Check("picker", "nothing fails inside the picker", picker.faults),
    Check("picker", "requests end", picker.ends),
    Check("picker", "caches hold what is expected", picker.cache_belief),
    Check("picker", "Envoy's reports arrive", picker.reports),
    Check("traffic", "answers tell cached tokens", picker.cached_counts),
    Check("engine", "engines cache what was expected of each", picker.hit_ratios),
    Check("engine", "engine speeds are plausible", picker.speeds),
    Check("envoy", "answers can be read", picker.compression),
    Check("picker", "answers are read as configured", picker.response_sampling),
    Check("engine", "metrics of engines can be read", engines.metrics),
    Check("engine", "engines serve the models named", engines.models),
    Check("engine", "engines cache and say so", engines.caching),
    Check("envoy", "Envoy's configuration can be read", envoy.reachable),
    Check("envoy", "Envoy asks the picker", envoy.asks),
    Check("envoy", "what passes the picker", envoy.modes),
    Check("envoy", "requests survive the picker", envoy.failures),
    Check("envoy", "message timeout", envoy.message_timeout),
    Check("envoy", "decisions can be joined to reports", envoy.metadata),
    Check("envoy", "the picker learns how requests went", envoy.reporting),
    Check("envoy", "route timeouts", envoy.route_timeouts),
    Check("envoy", "retries", envoy.retries),
    Check("envoy", "limits of bodies", envoy.body_limits),
    Check("envoy", "Envoy follows the pick", envoy.balancing),
    Check("envoy", "circuit breakers", envoy.breakers),
    Check("envoy", "Envoy holds all endpoints", envoy.hosts),
    Check("envoy", "admin interface", envoy.admin),
    Check("network", "connections to far regions", network.paths),
    Check("network", "HTTP/2 windows", network.windows),
    Check("network", "kernel settings", network.kernel),
)


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
