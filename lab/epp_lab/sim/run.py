"""Running one load through one simulated fleet under one policy: the entry for comparisons.

    result = run_window(requests, parse_fleet("l40s-x2@20,l40s-x2@102,l40s-x2@211"), "gorgo", seed=1)

* ``requests``: any sequence of `epp_lab.compare.trace.TraceRequest`, or what looks like one, in time order.
* ``fleet``: `FleetSpec`: replicas and a schedule of what happens to them. `regional_fleet` is the published
  one, `parse_fleet` reads one from text.
* ``policy``: a registered policy's or an oracle's name, or the object.
* ``weights``: weights that differ from the policy's defaults.
* ``seed``: of the network, the decisions' draws and lost hits. Under one seed every policy meets the same
  network for the same request and endpoint, and draws the same numbers for the same request: differences
  between policies are the policies' (common random numbers). The load has its own seed, where it is made.
* ``options``: `WindowOptions`: pace and limits of the clients, what is reported, the picker's configuration.

Equal arguments give equal results, byte for byte (`WindowResult.digest`), in any process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.policies.registry import create
from epp_lab.sim.fleet import FleetSim
from epp_lab.sim.oracle import ORACLES
from epp_lab.sim.regions import RegionSim
from epp_lab.sim.scenario import WindowOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.policies.base import Policy
    from epp_lab.compare.trace import TraceRequest
    from epp_lab.sim.fleet import Oracle
    from epp_lab.sim.results import WindowResult
    from epp_lab.sim.scenario import FleetSpec


def policy_named(name: str, params: Mapping[str, object] | None = None) -> Policy | Oracle:
    """Return a policy with the given parameters, the others being defaults, or an oracle, which has none.

    Raises:
        ConfigError: nothing has that name, or the policy no such parameter.
    """
    return ORACLES.get(name) or create(name, params)


def run_window(
    requests: Sequence[TraceRequest],
    fleet: FleetSpec,
    policy: Policy | Oracle | str,
    weights: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    options: WindowOptions | None = None,
) -> WindowResult:
    """Simulate a window to its last answer; see the module for the arguments.

    Raises:
        ConfigError: unknown policy, or a weight that it does not have or that is out of bounds.
        ValueError: the load cannot be simulated: a follower before the one it waits for, mixed block sizes.
    """
    chosen = policy_named(policy) if isinstance(policy, str) else policy
    sim = FleetSim if fleet.regions is None else RegionSim
    return sim(
        requests, fleet, chosen, weights=weights or {}, seed=seed, options=options or WindowOptions()
    ).run()
