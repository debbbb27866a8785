"""Whether a reward model may still be used: its age, and whether it is of the data that decisions now see.

Owns the recent inputs that its normalisation is compared with. Pure: takes decisions and instants.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision
    from epp.types import Floats

#: Decisions compared at once; half of them must be there before anything is said.
WINDOW = 128
#: Standard deviations of the training that the mean of an input may have moved.
MOST_DEVIATIONS = 4.0


class ModelWatch:
    """Watches one model after another.

    Args:
        max_age_s: from a training on, so long its model is used.
    """

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._model: RewardModel | None = None
        self._rows: deque[Floats] = deque(maxlen=WINDOW)

    @property
    def model(self) -> RewardModel | None:
        """The model watched."""
        return self._model

    def watch(self, model: RewardModel | None) -> None:
        """Watch this model from now on, or none."""
        if model != self._model:
            self._rows.clear()
        self._model = model

    def seen(self, decision: Decision) -> None:
        """Take a decision: the model's inputs of the chosen endpoint."""
        if self._model is not None:
            self._rows.append(self._model.inputs(decision.request, decision.snapshot)[decision.chosen])

    def withdrawn(self, wall_s: float) -> Literal["", "stale", "mismatch"]:
        """Return why the model may not be used, ``""`` if it may."""
        model = self._model
        if model is None:
            return ""
        if wall_s - model.trained_at_s > self._max_age_s:
            return "stale"
        return "mismatch" if self.mismatched() else ""

    def mismatched(self) -> tuple[str, ...]:
        """List the features whose recent mean is not of the data that the model was normalised by.

        That is: beyond the bounds of the training, and several of its standard deviations away from its mean.
        One request out of bounds is the policy's to see; here the model as a whole is of other data.
        """
        model = self._model
        if model is None or len(self._rows) < WINDOW // 2:
            return ()
        mean = np.mean(self._rows, axis=0)
        far = np.abs(mean - model.mean) > MOST_DEVIATIONS * model.std
        count = len(model.features)
        far[:count] &= model.beyond(mean[None, :])[0]
        return tuple(name for name, is_far in zip(model.features, far[:count], strict=True) if is_far)
