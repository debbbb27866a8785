"""The base of policies: a formula over columns, without I/O, clock, state or globals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from epp.types import RequestView, Snapshot

    Column = NDArray[np.float64]
    Terms = dict[str, Column]


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


class Policy:
    """Rank endpoints by the terms of a request's cost at each.

    A policy is a frozen dataclass of this class; its parameters are fields with defaults. It supplies its
    `terms`, and `combine` where the cost is not their sum. One that draws, or says more than costs, overrides
    `rank`.

    Attributes:
        name: in configuration and records.
        needs: signals without which the formula says nothing.
        ties: how close two costs must be to count as equal.
        weight_specs: weights of the formula by name.
    """

    __slots__ = ()

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    ties: ClassVar[Ties] = Ties.EXACT
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType({})

    @classmethod
    def default_weights(cls) -> dict[str, float]:
        """Return the weights that the policy starts with."""
        return {name: spec.default for name, spec in cls.weight_specs.items()}

    def terms(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float]) -> Terms:
        """Compute what the cost is made of: one column of an endpoint's values per name.

        Args:
            request: what is known of the request.
            fleet: the candidates, one at least.
            weights: exactly the keys of `weight_specs`.
        """
        raise NotImplementedError

    def combine(self, terms: Terms, fleet: Snapshot, weights: Mapping[str, float]) -> Column:
        """Combine the terms to one finite cost per endpoint, lower is better; by default their sum."""
        return reduce(add, terms.values())

    def rank(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int) -> Ranking:
        """Price every endpoint; ``seed`` keys the draws of random policies (`epp.keyed_uniform`)."""
        terms = self.terms(request, fleet, weights)
        return Ranking(self.combine(terms, fleet, weights), terms)
