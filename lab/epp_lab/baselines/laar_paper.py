"""LAAR as its paper writes it: expected latency over the chance of a correct answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from epp.policies.base import Need, Policy, PositiveShare, WeightSpec
from epp.policies.laar import LEAST_SUCCESS, TRIED_PENALTY, success_of, tried_factor
from epp.types import length_bucket

if TYPE_CHECKING:
    from epp.policies.base import Terms, Weights
    from epp.types import Floats, RequestInfo, Snapshot


@dataclass(frozen=True, slots=True)
class LaarPaper(Policy):
    """``cost(m | x) = c(m) * (T(x) + alpha * R(m)) / Q(m, x) * tried_penalty`` where tried.

    ``c(m)`` is the time of a *generated* token of the model (``decode_base_ms``, as learned), ``T(x)`` the
    tokens of the prompt's length bucket, ``R(m)`` the prompt tokens that the endpoint is working on or has in
    its queue (``queued_tokens``), ``Q(m, x)`` the column ``success``. Source [R], sections 5.1 to 5.3.

    A decode rate multiplies a prompt's length here, as it does there: costs are no times, and rank models
    only as far as models that decode slowly also prefill slowly. `Laar` is the form without that.

    Attributes:
        least_success: a lower chance counts as this one.
    """

    name = "laar-paper"
    needs = frozenset({Need.PROMPT})
    weight_specs = {
        "alpha": WeightSpec(0.7, 0.0, 10.0),  # price of a token that is queued, of one's own
        "tried_penalty": TRIED_PENALTY,
    }
    chances_after_failures = False
    least_success: PositiveShare = LEAST_SUCCESS

    def terms(self, request: RequestInfo, snapshot: Snapshot, weights: Weights) -> Terms:
        bucket = length_bucket(request.prompt_tokens)
        return {
            "latency": snapshot.decode_base_ms * (bucket + weights["alpha"] * snapshot.queued_tokens),
            "success": success_of(snapshot, self.least_success),
            "tried": tried_factor(request, snapshot, weights["tried_penalty"]),
        }

    def combine(self, terms: Terms, snapshot: Snapshot, weights: Weights) -> Floats:
        return terms["latency"] / terms["success"] * terms["tried"]
