"""Yardsticks that only a simulator can have: policies that see what really is.

They decide greedily, one request at a time, and know nothing of the requests to come, so they are no bound: a
policy that keeps sessions together can beat them (source [P]). An oracle makes a policy of a fleet's true
state; there is no way to serve with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epp.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms
    from epp.types import RequestInfo, Snapshot
    from epp_lab.sim.fleet import Truth


class GreedyOracleTotal(Policy):
    """``cost = E2E that the request would have there + how much later the others there would end``, in ms.

    The sum over everybody's E2E that this one decision adds, if nothing else came.
    """

    name = "greedy-oracle-total"

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def terms(
        self,
        request: RequestInfo,  # noqa: ARG002 - the truth knows it better
        snapshot: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
    ) -> Terms:
        """Forecast everybody on each endpoint."""
        forecasts = [self._truth.forecast(address) for address in snapshot.endpoints]
        own = np.array([forecast.e2e_ms for forecast in forecasts])
        inflicted = np.array([forecast.inflicted_ms for forecast in forecasts])
        return {"e2e": own, "inflicted": inflicted}


#: Oracles by name, for those who list policies.
ORACLES: Mapping[str, type[GreedyOracleTotal]] = {GreedyOracleTotal.name: GreedyOracleTotal}
