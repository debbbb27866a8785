"""Policies that know no prompt: turns, draws, and counts of requests or tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.keyed_uniform import keyed_uniform
from epp.policies.base import Pair, Policy, Softmax, WeightSpec
from epp.policies.parts import places
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


def _draws(policy: str, request: RequestInfo, snapshot: Snapshot, seed: int) -> Floats:
    """Draw a number in [0, 1) for each endpoint."""
    return np.array(
        [keyed_uniform(seed, request.decision_id, f"{policy}:{name}") for name in snapshot.endpoints]
    )


@dataclass(frozen=True, slots=True)
class RoundRobin(Policy):
    """Turns over the endpoints in the order given.

    ``cost[i] = (i - sequence) mod n``, in turns to wait: the endpoint whose turn it is costs 0, the one after
    it 1, so that fallbacks follow in rotation order. The only policy whose answer depends on the order of the
    endpoints; it rotates over the candidates, so a filter that changes them from request to request changes
    the rotation too.
    """

    name = "round-robin"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        count = len(snapshot)
        # Reduced first: the sequence is an unbounded integer and must not lose precision as a float.
        turns = ((np.arange(count) - request.sequence % count) % count).astype(np.float64)
        return {"turns": turns}


@dataclass(frozen=True, slots=True)
class Random(Policy):
    """Uniform over the endpoints, fallbacks included.

    ``cost = keyed_uniform(seed, decision_id, endpoint)``, a number in [0, 1): independent of the order of the
    endpoints, and the same decision draws the same order again when replayed.
    """

    name = "random"

    def rank(
        self,
        request: RequestInfo,
        snapshot: Snapshot,
        weights: Weights,
        seed: int,
    ) -> Ranking:
        """One keyed draw per endpoint."""
        draws = _draws(self.name, request, snapshot, seed)
        return Ranking(draws, {"draw": draws})

    @staticmethod
    def drawn(ranking: Ranking, weights: Weights, params: Mapping[str, object]) -> Softmax:
        """One among equals."""
        return Softmax(np.zeros(len(ranking.costs)), 1.0)


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Policy):
    """The less loaded of two endpoints drawn at random (Mitzenmacher, 2001).

    ``cost`` is a place: of the pair drawn first the one with less load is 0 and the other 1 (both 0 when
    equal); the rest follow in the order of their draws, as fallbacks.

    Attributes:
        load: what is compared. ``requests``: unfinished requests, as AIBrix does; ``tokens``: prompt tokens
            of unfinished requests, as SGLang's router does where it knows them. Both are live. The GORGO
            reference compares scraped used tokens plus live queued ones.
    """

    name = "power-of-two"
    load: Literal["requests", "tokens"] = "requests"

    def rank(
        self,
        request: RequestInfo,
        snapshot: Snapshot,
        weights: Weights,
        seed: int,
    ) -> Ranking:
        """Places, with the load and the draws as terms."""
        load = snapshot.running_requests if self.load == "requests" else snapshot.queued_tokens
        draws = _draws(self.name, request, snapshot, seed)
        outside = places(draws) >= 2.0
        costs = places(outside, np.where(outside, draws, load))
        return Ranking(costs, {"load": load, "draw": draws})

    @staticmethod
    def drawn(
        ranking: Ranking,
        weights: Weights,
        params: Mapping[str, object],
    ) -> Pair:
        """The two, and what of them is compared."""
        return Pair(ranking.terms["load"])


@dataclass(frozen=True, slots=True)
class LeastRequest(Policy):
    """Fewest unfinished requests, by the picker's own count or by the engine's, whichever is larger.

    ``cost = max(running_requests, engine_running + engine_waiting)``, in requests, or one of the two.

    The own count is live but knows only this picker's traffic; the engine's knows all traffic but is as old
    as the last scrape. GORGO's papers describe the own count; their router takes the larger of it and the
    scraped running requests. Requests that wait inside the engine are unfinished too and are counted here. An
    endpoint whose engine metrics are unknown stands with the busiest known one: not knowing never makes it
    look idle. Where no engine reports, the own count decides alone. Ties are drawn.

    Attributes:
        counts: ``live``, the own count; ``engine``, the scraped one; or the ``larger`` of both. Between two
            scrapes the answer of ``engine`` does not move, so every request of the interval goes to the same
            endpoint: the GORGO reference balances so wherever its prefix-cache policy falls back.
    """

    name = "least-request"
    unit = "requests"
    # Engine metrics sharpen the count and are not needed for it.
    counts: Literal["live", "engine", "larger"] = "larger"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        engine = snapshot.engine_running + snapshot.engine_waiting
        return {"running_requests": snapshot.running_requests, "engine_requests": engine}

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        live, engine = terms.values()
        return {"live": live, "engine": engine, "larger": np.maximum(live, engine)}[self.counts]


@dataclass(frozen=True, slots=True)
class LeastLoad(Policy):
    """Least of requests, KV tokens in use and queued prompt tokens, added up.

    ``cost = request_weight * (engine_running + engine_waiting) + used_weight * engine_used_tokens
    + queued_weight * queued_tokens``, in tokens.

    The formula of the GORGO reference (its baseline ``least-load``), all weights 1: requests and tokens are
    added as if they were the same thing, so tokens decide and the requests' term is noise. The last term is
    live, the others are as old as the scrape. With ``queued_weight`` alone it is "least queued tokens".

    The paper's text has another last term: the number of requests that await their first token. Beside used
    tokens it is noise as well, so that nothing moves between scrapes, as with a ``queued_weight`` of 0.

    Attributes:
        queued: what the last term counts: prompt ``tokens`` of unfinished requests as the router does, or
            ``requests`` without a first token as the text says.
    """

    name = "least-load"
    # Without engine metrics the live term decides alone.
    weight_specs = {
        "request_weight": WeightSpec(1.0, 0.0, 10_000.0),  # load of one request that the engine reports
        "used_weight": WeightSpec(1.0, 0.0, 5.0),  # load of one token of the KV cache in use
        "queued_weight": WeightSpec(1.0, 0.0, 5.0),  # load of one prompt token of unfinished requests
    }
    queued: Literal["tokens", "requests"] = "tokens"

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        requests = weights["request_weight"] * (snapshot.engine_running + snapshot.engine_waiting)
        queued = snapshot.queued_tokens
        if self.queued == "requests":
            queued = snapshot.running_requests - snapshot.decoding_requests
        return {
            "requests": requests,
            "used": weights["used_weight"] * snapshot.engine_used_tokens,
            "queued": weights["queued_weight"] * queued,
        }
