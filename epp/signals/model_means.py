"""Fading means of what was seen of models, by name.

Owns the means and how many there are: clients choose the names, so the least recently seen goes.
"""

from __future__ import annotations

from collections import OrderedDict

#: Models remembered.
_MAX_MODELS = 1000


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
        """A value was seen."""
        mean, count = self.of(model)
        step = max(self._alpha, 1.0 / (count + self._first))
        self._means[model] = (mean + step * (value - mean), count + 1)
        self._means.move_to_end(model)
        if len(self._means) > _MAX_MODELS:
            self._means.popitem(last=False)

    def of(self, model: str) -> tuple[float, int]:
        """The model's mean, and how many values were seen."""
        return self._means.get(model, self._unseen)
