"""Stickiness without state: rendezvous hashing of a session or a prefix, with a bound on load or without."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import xxhash

from epp.policies.balancing import LeastRequest
from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.parts import places
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epp.policies.base import Weights
    from epp.types import Floats, RequestInfo, Snapshot

_WITHOUT_KEY = LeastRequest()


@dataclass(frozen=True, slots=True)
class SessionAffinity(Policy):
    """The same session to the same endpoint, by highest random weight (Thaler and Ravishankar, 1998).

    Each endpoint weighs ``xxh3(endpoint, seed = xxh3(affinity_key))``; ``cost`` is its place in descending
    order of weight, 0 for the session's own endpoint, so that fallbacks follow the session's own order too.
    When an endpoint leaves, only its sessions move, each to its next place; when one joins, it takes its
    share and nothing else moves. Weights depend on key and address alone, so all pickers agree without
    talking.

    A request without a key goes by `LeastRequest`: nothing ties it to a place, so it may as well balance.
    """

    name = "session-affinity"
    needs = frozenset({Need.SESSION})

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Places in the session's order of endpoints, or the counts of `LeastRequest` without a session."""
        if not request.affinity_key:
            return _WITHOUT_KEY.rank(request, snapshot, weights, seed)
        place = session_places(request.affinity_key, snapshot.endpoints)
        return Ranking(place, {"place": place})


def session_places(key: str, endpoints: Sequence[str]) -> Floats:
    """Place endpoints in the order of this key, by highest random weight; the key's own is 0."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    weigh, count = xxhash.xxh3_64_intdigest, len(endpoints)
    weights = np.fromiter((weigh(endpoint.encode(), seed) for endpoint in endpoints), np.uint64, count)
    result = np.empty(count, np.float64)
    result[np.argsort(weights)[::-1]] = np.arange(count)
    return result


@dataclass(frozen=True, slots=True)
class SessionAffinityBounded(Policy):
    """The session's first endpoint that has room (Mirrokni, Thorup and Zadimoghaddam, 2018).

    An endpoint has room while ``running_requests + 1 <= ceil(load_factor * (total + 1) / n) +
    slack_requests``, where ``total`` is the sum of ``running_requests``. ``cost`` is a place: those with room
    before those without, each in the session's own order (`SessionAffinity`). At any load factor of 1 or
    more somebody has room. Live counters only.

    Defaults are those of SGLang's ``prefix_hash``, factor 1.25; its successor adds a slack of 10 requests.

    Attributes:
        key: what is sticky. ``session``: the affinity key; ``prefix``: the first 256 tokens, as SGLang.
        overflow: who serves when the home endpoint is full. ``next``: the next in the session's order, which
            keeps the overflow of a session together; ``least``: the least loaded, as SGLang.
    """

    name = "session-affinity-bounded"
    needs = frozenset({Need.SESSION})
    weight_specs = {
        "load_factor": WeightSpec(1.25, 1.0, 10.0),  # most load of an endpoint, as a multiple of the mean
        "slack_requests": WeightSpec(0.0, 0.0, 100.0),  # requests on top of that
    }
    key: Literal["session", "prefix"] = "session"
    overflow: Literal["next", "least"] = "next"

    def rank(self, request: RequestInfo, snapshot: Snapshot, weights: Weights, seed: int) -> Ranking:
        """Places, with the session's order and the room left as terms."""
        key = request.affinity_key if self.key == "session" else request.prefix_key
        if not key:
            return _WITHOUT_KEY.rank(request, snapshot, weights, seed)
        load = snapshot.running_requests
        total = math.fsum(load)
        bound = math.ceil(weights["load_factor"] * (total + 1.0) / len(snapshot)) + weights["slack_requests"]
        room = bound - load
        place = session_places(key, snapshot.endpoints)
        full = room < 1.0
        after_home = place if self.overflow == "next" else np.where(place == 0.0, -1.0, load)
        return Ranking(places(full, after_home, place), {"place": place, "room_requests": room})


@dataclass(frozen=True, slots=True)
class PrefixHash(SessionAffinityBounded):
    """SGLang's ``prefix_hash``: `SessionAffinityBounded` of the prompt's first 256 tokens.

    What does not fit under the bound goes to the least loaded. The original walks a ring of hashes, where
    this draws by highest random weight: the same shares, and the same few moves when the fleet changes. Its
    successor smg adds 10 requests to the bound (``slack_requests``).
    """

    name = "prefix-hash"
    needs = frozenset({Need.PROMPT})
    key: Literal["session", "prefix"] = "prefix"
    overflow: Literal["next", "least"] = "least"
