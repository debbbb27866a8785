"""What is left to try after an attempt: the count that clients are told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.policies.capability import WORTH_TERM

if TYPE_CHECKING:
    from epp.schedule.decision import Decision


def untried_models(decision: Decision) -> frozenset[str]:
    """Models that could serve the request again, neither tried nor picked now, and worth the attempt.

    All are worth it unless the policy tells of some that they are not.
    """
    names = decision.served_models
    worth = decision.ranking.terms.get(WORTH_TERM)
    if worth is not None:
        names = tuple(name for name, share in zip(names, worth.tolist(), strict=True) if share)
    return frozenset(names).difference(decision.request.tried_models, (decision.served_model,))
