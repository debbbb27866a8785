"""The contract of a policy: a formula over columns, without I/O, clock, state or globals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, Ranking, RequestView


class Need(Enum):
    """What a policy must be given beyond the list of endpoints; what nobody needs is not computed."""

    PROMPT = "prompt"  # the request body: token count and prefix match
    SESSION = "session"  # RequestView.affinity_key
    RTT = "rtt"
    ENGINE_METRICS = "engine-metrics"


class Ties(Enum):
    """Which costs count as equal, to be broken by a keyed draw."""

    EXACT = "exact"  # only equal costs: for counts and for rank-like costs
    BAND = "band"  # within the configured relative band of the best: for measured costs


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight that operators and the tuner may set: its default and the hard bounds of the policy."""

    default: float
    low: float
    high: float
    help: str


class Policy(Protocol):
    """Ranks endpoints. Implementations are frozen dataclasses; parameters are fields with defaults."""

    @property
    def name(self) -> str:
        """The name in configuration and records."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """Signals without which the formula says nothing."""
        ...

    @property
    def ties(self) -> Ties:
        """How close two costs must be to be called equal."""
        ...

    @property
    def weight_specs(self) -> Mapping[str, WeightSpec]:
        """Weights of the formula, ``{}`` when it has none."""
        ...

    @property
    def additive_terms(self) -> tuple[str, ...]:
        """Names of the terms that sum to the cost, ``()`` when the cost is not a sum."""
        ...

    def rank(
        self, request: RequestView, fleet: FleetView, weights: Mapping[str, float], seed: int
    ) -> Ranking:
        """Cost of every endpoint of a non-empty fleet.

        ``weights`` has exactly the keys of `weight_specs`; ``seed`` keys the draws of random policies
        (`epp.keyed_uniform.keyed_uniform(seed, request.decision_id, salt)`).
        """
        ...
