"""How long first tokens usually take, per model: what makes a request one that waits long anyway.

Owns the averages. Of each request the least time counts that it had to expect anywhere, as the policy that
placed it foretold it: of one and the same rates, so that rates which are wrong by a factor hardly matter.
"""

from __future__ import annotations

from collections import OrderedDict

#: Requests of a model before its mean is told.
_LEAST_REQUESTS = 20
#: Weight of the newest request: a mean of the last hundred.
_ALPHA = 0.01
#: Models remembered: clients choose the names.
_MAX_MODELS = 1000


class FirstTokens:
    """Mean of the least time to first token by model name, ms, fading."""

    def __init__(self) -> None:
        self._mean_ms: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def observe(self, model: str, least_ms: float) -> None:
        """A request was placed; times of policies that foretell none, 0, are ignored."""
        if not 0.0 < least_ms < float("inf"):
            return
        mean_ms, count = self._mean_ms.get(model, (0.0, 0))
        step = max(_ALPHA, 1.0 / (count + 1.0))
        self._mean_ms[model] = (mean_ms + step * (least_ms - mean_ms), count + 1)
        self._mean_ms.move_to_end(model)
        if len(self._mean_ms) > _MAX_MODELS:
            self._mean_ms.popitem(last=False)

    def usual_ms(self, model: str) -> float:
        """What requests of the model had to expect of late; 0 before there were enough of them."""
        mean_ms, count = self._mean_ms.get(model, (0.0, 0))
        return mean_ms if count >= _LEAST_REQUESTS else 0.0
