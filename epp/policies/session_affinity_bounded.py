"""Stickiness that gives way: rendezvous hashing with a bound on everybody's load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from epp.policies.base import Need, Policy, WeightSpec
from epp.policies.least_request import LeastRequest
from epp.policies.parts import check_choice, places
from epp.policies.session_affinity import session_places
from epp.types import Ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import RequestView, Snapshot

_WITHOUT_KEY = LeastRequest()


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
    weight_specs = MappingProxyType(
        {
            "load_factor": WeightSpec(1.25, 1.0, 10.0, "most load of an endpoint, as a multiple of the mean"),
            "slack_requests": WeightSpec(0.0, 0.0, 100.0, "requests on top of that"),
        }
    )
    key: Literal["session", "prefix"] = "session"
    overflow: Literal["next", "least"] = "next"

    def __post_init__(self) -> None:
        check_choice("key", self.key, ("session", "prefix"))
        check_choice("overflow", self.overflow, ("next", "least"))

    def rank(self, request: RequestView, fleet: Snapshot, weights: Mapping[str, float], seed: int) -> Ranking:
        """Places, with the session's order and the room left as terms."""
        key = request.affinity_key if self.key == "session" else request.prefix_key
        if not key:
            return _WITHOUT_KEY.rank(request, fleet, weights, seed)
        load = fleet.running_requests
        total = math.fsum(load)
        bound = math.ceil(weights["load_factor"] * (total + 1.0) / len(fleet)) + weights["slack_requests"]
        room = bound - load
        place = session_places(key, fleet.endpoints)
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
