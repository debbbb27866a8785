"""What another policy says of decisions that were taken, and how much longer its own would have taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epp.policies.gorgo_ms import GorgoMs
from epp.policies.lodestar import Lodestar
from epp.schedule.decision import Basis, rerun

if TYPE_CHECKING:
    from epp.policies.base import Policy
    from epp.schedule.decision import Decision

_BY_RATES = GorgoMs()
_AS_MEASURED = dict.fromkeys(GorgoMs.weight_specs, 1.0)


def quiet(policy: Policy) -> Policy:
    """Take a policy's exploration away: it is asked for its opinion, not for a draw."""
    return replace(policy, explore=0.0) if isinstance(policy, Lodestar) else policy


def is_opinion(decision: Decision) -> bool:
    """Tell whether a policy meant a decision: neither plain balancing nor what exploration drew."""
    explored = decision.ranking.terms.get("explored")
    return decision.basis is Basis.POLICY and (explored is None or not explored[decision.chosen])


def ask(decision: Decision, policy: Policy, tolerance: float) -> tuple[int, float]:
    """Ask a policy about a decision.

    Returns:
        What it would have chosen, and how many ms longer that would take than the live decision, estimated at
        learned rates.
    """
    chosen = rerun(decision, policy, tolerance).chosen
    costs = _BY_RATES.rank(decision.request, decision.snapshot, _AS_MEASURED, decision.seed).costs
    return chosen, costs.item(chosen) - costs.item(decision.chosen)
