"""When the learned policy is to be tried against its heuristic, and by which weight.

Owns the rule alone; the machine of `epp.learn.tuner` tries, a process or a simulation drives it. Pure.

The machine tries weights, and `lodestar` has one, ``use_model``, that says whether the model or the heuristic
decides. On trial is thus the policy that goes on learning, not one network: rounds follow each other within
minutes, and evidence about one of them would come when it is gone. A round's model has to pass the gate; the
policy has to pass the trial: a small split, larger ones, the whole fleet back and forth in random order, and
probation afterwards, in which regret brings the heuristic back.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.tuner.state import State
    from epp.policies.reward_model import RewardModel

POLICY = "lodestar"
WEIGHT = "use_model"
#: The heuristic decides, until a trial says otherwise.
STARTING: Mapping[str, float] = MappingProxyType({WEIGHT: 0.0})
#: What is tried.
CHALLENGE: Mapping[str, float] = MappingProxyType({WEIGHT: 1.0})
#: From here on the model decides, below it the heuristic.
LEARNED = 0.5


class Challenger:
    """Proposes the learned policy once each time that the machine searches and a model is there.

    Args:
        retry_s: from a trial that came to nothing to the next one.
    """

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._state: State | None = None
        self._not_before_s = 0.0

    def search(self, state: State, now_s: float) -> None:
        """The machine asks for a candidate."""
        self._state = state
        self._not_before_s = now_s + (self._retry_s if state.fruitless else 0.0)

    def proposes(self, model: RewardModel | None, now_s: float) -> str:
        """Why the learned policy is to be tried now, empty for not now; it is said once.

        Args:
            model: the learner's incumbent, None while there is none.
            now_s: monotonic seconds.
        """
        state = self._state
        if state is None or model is None or state.incumbent.get(WEIGHT, 0.0) >= LEARNED:
            return ""
        if now_s < self._not_before_s:
            return ""
        self._state = None
        return f"a model passed the gate: round {model.round}, {model.seen} requests seen"

    def stop(self) -> None:
        """Nothing is asked for any more."""
        self._state = None
