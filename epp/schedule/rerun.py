"""A recorded decision priced and drawn again: the proof of a record, and what another policy had said.

Owns nothing and reserves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.policies.base import Ties
from epp.policies.registry import params_of
from epp.schedule.select import select

if TYPE_CHECKING:
    from epp.policies.base import Policy
    from epp.schedule.decision import Decision


def rerun(decision: Decision, policy: Policy, tie_band: float = 0.0) -> Decision:
    """Price and draw a recorded decision again, with the same or another policy; nothing is reserved.

    Args:
        decision: as it was taken.
        policy: that it is asked of.
        tie_band: relative band of equals of another policy that has one; the same one's is the decision's.
    """
    if policy.name == decision.policy:
        weights, band = decision.weights, decision.tie_band
    else:
        weights, band = policy.default_weights(), tie_band if policy.ties is Ties.BAND else 0.0
    ranking = policy.rank(decision.request, decision.fleet, weights, decision.seed)
    selection = select(
        ranking.costs,
        decision.shares,
        decision.fleet.endpoints,
        tie_band=band,
        fallbacks=len(decision.fallbacks),
        seed=decision.seed,
        key=decision.id,
        served_models=decision.served_models,
    )
    return replace(
        decision,
        policy=policy.name,
        params=params_of(policy),
        weights=weights,
        tie_band=band,
        ranking=ranking,
        chosen=selection.chosen,
        fallbacks=selection.fallbacks,
        tied=selection.tied,
        held_back=selection.held_back,
    )
