"""The rotation: each endpoint in turn, whatever is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from epp.policies.base import Need, Ties, WeightSpec
from epp.view import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.view import FleetView, RequestView


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Turns over the endpoints in the order given.

    ``cost[i] = (i - sequence) mod n``, in turns to wait: the endpoint whose turn it is costs 0, the one after
    it 1, so that fallbacks follow in rotation order. The only policy whose answer depends on the order of the
    endpoints; it rotates over the candidates, so a filter that changes them from request to request changes
    the rotation too.
    """

    name: ClassVar[str] = "round-robin"
    needs: ClassVar[frozenset[Need]] = frozenset()
    ties: ClassVar[Ties] = Ties.EXACT
    additive_terms: ClassVar[tuple[str, ...]] = ()
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = MappingProxyType({})

    def rank(
        self,
        request: RequestView,
        fleet: FleetView,
        weights: Mapping[str, float],  # noqa: ARG002 - no weights
        seed: int,  # noqa: ARG002 - nothing is drawn
    ) -> Ranking:
        """Turns until each endpoint's turn."""
        count = len(fleet)
        # Reduced first: the sequence is an unbounded integer and must not lose precision as a float.
        turns = ((np.arange(count) - request.sequence % count) % count).astype(np.float64)
        return Ranking(turns, {"turns": turns})
