"""Offer the learned policy to the tuner's machine as a candidate, in place of rehearsed weights.

The machine tries weights, and `lodestar` has one, ``use_model``, that says whether the model or the heuristic
decides. On trial is thus the policy that goes on learning, not one network: rounds follow each other within
minutes, and evidence about one of them would come when it is gone. A round's model has to pass the gate; the
policy has to pass the trial: a small split, larger ones, the whole fleet back and forth in random order, and
probation afterwards, in which regret brings the heuristic back.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from epp_lab.tuner.tuner import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epp.clock import Clock
    from epp.policies.reward_model import RewardModel
    from epp_lab.tuner.state import TunerState

POLICY = "lodestar"
WEIGHT = "use_model"
#: The heuristic decides, until a trial says otherwise.
STARTING: Mapping[str, float] = MappingProxyType({WEIGHT: 0.0})
#: From here on the model decides, below it the heuristic.
LEARNED = 0.5


class Contender:
    """Stands in a rehearsal's place: proposes the learned policy once each time that the machine searches.

    Args:
        model: the learner's incumbent, None while there is none.
        clock: the time.
        retry_s: from a trial that came to nothing to the next one.
    """

    def __init__(self, model: Callable[[], RewardModel | None], clock: Clock, retry_s: float) -> None:
        self._model, self._clock, self._retry_s = model, clock, retry_s
        self._from_s: float | None = None

    def start(self, state: TunerState, reason: str) -> None:  # noqa: ARG002  # the reason is the machine's own
        """Take the machine's request for a candidate; none is wanted where the model decides already."""
        wait_s = self._retry_s if state.fruitless else 0.0
        settled = state.incumbent.get(WEIGHT, 0.0) >= LEARNED
        self._from_s = None if settled else self._clock.mono_s() + wait_s

    def poll(self) -> Found | None:
        """Return the learned policy, once, when there is a model."""
        model = self._model()
        if self._from_s is None or model is None or self._clock.mono_s() < self._from_s:
            return None
        self._from_s = None
        return Found(
            {WEIGHT: 1.0}, f"a model passed the gate: round {model.round}, {model.seen} requests seen"
        )

    def stop(self) -> None:
        """Forget the request."""
        self._from_s = None
