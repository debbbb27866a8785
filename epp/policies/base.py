"""The base of policies: a formula over columns, without I/O, clock, state or globals."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # annotations of policies are read to check parameters
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from epp.types import Ranking

if TYPE_CHECKING:
    from epp.signals.datastore import Datastore
    from epp.types import Endpoint, Floats, RequestInfo, Role, Slots, Snapshot

    Terms = dict[str, Floats]
    Weights = Mapping[str, float]

# Types of parameters; `epp.policies.registry` checks what a configuration says by them.
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, Meta(gt=0.0, le=1.0)]
NotNegative = Annotated[float, Meta(ge=0.0, le=1e9)]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]


class ExtraColumns:
    """Make columns of `Snapshot.extra` for one policy.

    Attributes:
        headers: request headers that they are made of.
        tokens: response headers that tell clients their endpoint, in base64.
    """

    headers = tokens = frozenset[str]()

    def columns(
        self, request: RequestInfo, datastore: Datastore, seen: Snapshot, slots: Slots, now_s: float
    ) -> Mapping[str, Floats]:
        """Make each column by name.

        Args:
            request: the request.
            datastore: all signals.
            seen: those of the candidates.
            slots: the candidates, in the snapshot's order.
            now_s: the time.
        """
        raise NotImplementedError

    def note(self, address: str, request: RequestInfo, seen: Snapshot, now_s: float) -> None:
        """Note where a request went, by the snapshot of its decision."""


#: Name of a term that is no part of a cost: 1 where an attempt is worth its time, 0 where it is not.
WORTH_TERM = "worth"


class Need(Enum):
    """What a policy must be given beyond the list of endpoints; what no policy needs is not computed."""

    PROMPT = "prompt"  # the request body: token count and prefix match
    SESSION = "session"  # RequestInfo.affinity_key
    RTT = "rtt"
    ENGINE_METRICS = "engine-metrics"


class Ties(Enum):
    """Which costs count as equal, to be broken by a keyed draw."""

    EXACT = "exact"  # only equal costs: for counts and for rank-like costs
    BAND = "band"  # within the configured relative band of the best: for measured costs


class WeightSpec(NamedTuple):
    """A weight that operators and the tuner may set: its default and the hard bounds of the policy."""

    default: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Softmax:
    """Draw any, with chances in proportion to ``exp(-costs / width)`` among those that may be chosen.

    Attributes:
        costs: before the draw.
        width: above 0.
    """

    costs: Floats
    width: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Draw two evenly from all and take the less loaded; of neither, any that may be chosen."""

    load: Floats


@dataclass(frozen=True, slots=True)
class Explored:
    """Take one drawn evenly from all with chance ``explore``, else the cheapest.

    Attributes:
        costs: before the draw.
        explore: chance of a draw.
    """

    costs: Floats
    explore: float


Drawn = Softmax | Pair | Explored


class Policy:
    """Rank endpoints by the terms of a request's cost at each.

    A policy is a frozen dataclass of this class; its parameters are fields with defaults. It supplies its
    `terms`, and `combine` where the cost is not their sum. One that says more than costs overrides `rank`.
    One that draws overrides `drawn`, too: chances are computed from what was there before the draw.

    Attributes:
        name: in configuration and records.
        needs: signals without which the formula says nothing.
        ties: how close two costs must be to count as equal.
        weight_specs: weights of the formula by name.
        unit: of its costs, for people; empty for places in an order.
        pairs: it chooses who prefills and encodes for whom (`Ranking.partners`); with others an endpoint that
            decodes does all of a request.
        chances_after_failures: ``success`` counts who has failed the question; else it is of a first attempt.
    """

    __slots__ = ()

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    ties: ClassVar[Ties] = Ties.EXACT
    unit: ClassVar[str] = ""
    weight_specs: ClassVar[Mapping[str, WeightSpec]] = {}
    chances_after_failures: ClassVar[bool] = True
    pairs: ClassVar[bool] = False

    @classmethod
    def default_weights(cls) -> dict[str, float]:
        """Return the weights that the policy starts with."""
        return {name: spec.default for name, spec in cls.weight_specs.items()}

    def chosen(self, request: RequestInfo) -> Policy:
        """Return the policy that decides on a request: by default itself, else one that this one keeps.

        Raises:
            NoEndpointError: there is none.
        """
        return self

    def admits(self, endpoint: Endpoint) -> bool:
        """Tell whether an endpoint may serve any request at all, by what its pool says of it."""
        return True

    def roles(self, endpoint: Endpoint) -> frozenset[Role]:
        """Return the parts of requests that an endpoint is there for; empty for whole requests."""
        return endpoint.roles

    @property
    def headers(self) -> frozenset[str]:
        """Name the request headers that it reads itself."""
        return frozenset()

    def extra_columns(self) -> ExtraColumns | None:
        """Return what makes the columns of `Snapshot.extra` that it reads; None where it reads none."""
        return None

    def told_endpoints(
        self, request: RequestInfo, snapshot: Snapshot, chosen: int, seed: int
    ) -> Mapping[str, str]:
        """Return endpoints that the chosen one is told of, by request header."""
        return {}

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        """Compute what the cost is made of: one column of an endpoint's values per name.

        Args:
            request: what is known of the request.
            snapshot: the candidates, one at least.
            weights: exactly the keys of `weight_specs`.
        """
        raise NotImplementedError

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        """Combine the terms to one finite cost per endpoint, lower is better; by default their sum."""
        return reduce(add, terms.values())

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Price every endpoint; ``seed`` keys the draws of random policies (`epp.keyed_uniform`)."""
        terms = self.terms(request, snapshot, weights)
        return Ranking(self.combine(terms, snapshot, weights), terms)

    @staticmethod
    def drawn(ranking: Ranking, weights: Weights, params: Mapping[str, object]) -> Drawn | None:
        """Return what a recorded ranking's own draw was among; None where nothing was drawn."""
        return None
