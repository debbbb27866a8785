"""Yardsticks that only a simulator can have: policies that see what really is.

Owns their formulas. They decide greedily, one request at a time, and know nothing of the requests to come, so
they are no bound: a policy that keeps sessions together can beat them (source [P]). An oracle is
turned into a policy by showing it a fleet; there is no way to serve with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from epp.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.lab.sim.truth import Truth
    from epp.policies.base import Terms
    from epp.types import RequestView, Snapshot


@runtime_checkable
class Oracle(Protocol):
    """Becomes a policy once it is shown the fleet's true state."""

    def shown(self, truth: Truth) -> Policy:
        """The policy over that fleet."""
        ...


@dataclass(frozen=True, slots=True)
class GreedyOracleTtft:
    """``cost = the TTFT that the request would have if sent there now``, in ms, exact."""

    name: ClassVar[str] = "greedy-oracle-ttft"

    def shown(self, truth: Truth) -> Policy:
        """See `Oracle`."""
        return _OwnTtft(truth)


@dataclass(frozen=True, slots=True)
class GreedyOracleTotal:
    """``cost = E2E that the request would have there + how much later the others there would end``, in ms.

    The sum over everybody's E2E that this one decision adds, if nothing else came.
    """

    name: ClassVar[str] = "greedy-oracle-total"

    def shown(self, truth: Truth) -> Policy:
        """See `Oracle`."""
        return _Total(truth)


#: Oracles by name, for those who list policies.
ORACLES: Mapping[str, Callable[[], Oracle]] = MappingProxyType(
    {GreedyOracleTtft.name: GreedyOracleTtft, GreedyOracleTotal.name: GreedyOracleTotal}
)


class _Shown(Policy):
    """A policy over a fleet whose true state it sees."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth


class _OwnTtft(_Shown):
    name = GreedyOracleTtft.name

    def terms(
        self,
        request: RequestView,  # noqa: ARG002 - the truth knows it better
        fleet: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
    ) -> Terms:
        """See `GreedyOracleTtft`."""
        return {"ttft": np.array([self._truth.ttft_ms(address) for address in fleet.endpoints])}


class _Total(_Shown):
    name = GreedyOracleTotal.name

    def terms(
        self,
        request: RequestView,  # noqa: ARG002 - the truth knows it better
        fleet: Snapshot,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
    ) -> Terms:
        """See `GreedyOracleTotal`."""
        forecasts = [self._truth.forecast(address) for address in fleet.endpoints]
        own = np.array([forecast.e2e_ms for forecast in forecasts])
        inflicted = np.array([forecast.inflicted_ms for forecast in forecasts])
        return {"e2e": own, "inflicted": inflicted}
