"""How long first tokens usually take, per model: what makes a request one that waits long anyway.

Of each request the least time counts that it had to expect anywhere, as the policy that placed it foretold
it: of one and the same rates, so that rates which are wrong by a factor hardly matter.
"""

from __future__ import annotations

import math

from epp.signals.model_means import ModelMeans

#: Requests of a model before its mean is told.
_LEAST_REQUESTS = 20
#: Weight of the newest request: a mean of the last hundred.
_ALPHA = 0.01


class FirstTokens:
    """Mean of the least time to first token by model name, ms, fading."""

    def __init__(self) -> None:
        self._means_ms = ModelMeans(_ALPHA)

    def observe(self, model: str, least_ms: float) -> None:
        """A request was placed; times of policies that foretell none, 0, are ignored."""
        if 0.0 < least_ms < math.inf:
            self._means_ms.add(model, least_ms)

    def usual_ms(self, model: str) -> float:
        """What requests of the model had to expect of late; 0 before there were enough of them."""
        mean_ms, count = self._means_ms.of(model)
        return mean_ms if count >= _LEAST_REQUESTS else 0.0
