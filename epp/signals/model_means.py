"""Fading means by model name: lengths of answers, and the usual time to first token.

Clients choose the names, so the least recently seen goes.
"""

from __future__ import annotations

import math
from collections import OrderedDict

#: Models remembered.
_MAX_MODELS = 1000


#: Tokens of an answer of a model that none was seen of.
PRIOR_TOKENS = 128.0
_LONGEST_TOKENS = 1_000_000
#: Requests of a model before its mean is returned.
_LEAST_REQUESTS = 20


class ModelMeans:
    """A mean for each model.

    Args:
        alpha: weight of the newest value; while there are few, all weigh the same.
        prior: the mean of a model that nothing was seen of.
        prior_weight: values that the prior counts for beside those that were seen.
    """

    def __init__(self, alpha: float, prior: float = 0.0, prior_weight: float = 0.0) -> None:
        self._alpha, self._unseen, self._first = alpha, (prior, 0), 1.0 + prior_weight
        self._means: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, model: str, value: float) -> None:
        """Add a value."""
        mean, count = self.of(model)
        step = max(self._alpha, 1.0 / (count + self._first))
        self._means[model] = (mean + step * (value - mean), count + 1)
        self._means.move_to_end(model)
        if len(self._means) > _MAX_MODELS:
            self._means.popitem(last=False)

    def of(self, model: str) -> tuple[float, int]:
        """Return the model's mean, and how many values were seen."""
        return self._means.get(model, self._unseen)


class AnswerLengths:
    """Mean tokens of an answer by model name, fading: what to expect of one that has not begun.

    In a prototype the true length of each answer bought nothing over this mean (source [P]).
    """

    def __init__(self) -> None:
        self._means = ModelMeans(0.02, PRIOR_TOKENS, prior_weight=1.0)  # source [P]

    def observe(self, model: str, completion_tokens: int) -> None:
        """Add an answer; counts that no engine gives are ignored."""
        if 0 <= completion_tokens <= _LONGEST_TOKENS:
            self._means.add(model, completion_tokens)

    def expected(self, model: str, max_output_tokens: int | None = None) -> float:
        """Return the tokens to expect of the next answer, no more than the client's limit."""
        mean, _ = self._means.of(model)
        return mean if max_output_tokens is None else min(mean, float(max_output_tokens))


class FirstTokens:
    """Mean of the least time to first token by model name, ms, over the last hundred requests.

    Of each request the least time counts that its policy expected anywhere: so rates that are wrong by a
    factor hardly matter.
    """

    def __init__(self) -> None:
        self._means_ms = ModelMeans(0.01)

    def observe(self, model: str, least_ms: float) -> None:
        """Add a request that was placed; times of policies that expect none, 0, are ignored."""
        if 0.0 < least_ms < math.inf:
            self._means_ms.add(model, least_ms)

    def usual_ms(self, model: str) -> float:
        """Return what requests of the model had to expect of late; 0 before there were enough of them."""
        mean_ms, count = self._means_ms.of(model)
        return mean_ms if count >= _LEAST_REQUESTS else 0.0
