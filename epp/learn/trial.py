"""The learned policy as a candidate of the tuner's machine: tried against its heuristic, undone on regret.

The machine (`epp.tuner.machine`) tries weights, and `lodestar` has one, ``use_model``, that says whether the
model or the heuristic decides. On trial is thus the policy that goes on learning, not one network: rounds
follow each other within minutes, and evidence about one of them would come when it is gone. A round's model
has to pass the gate; the policy has to pass the trial: a small split, larger ones, the whole fleet back and
forth in random order, and probation afterwards, in which regret brings the heuristic back.

Owns when a trial is asked for. `Contender` takes the place of the tuner's rehearsal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.tune.tuner import Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.clock import Clock
    from epp.policies.reward_model import RewardModel
    from epp.tuner.state import State

POLICY = "lodestar"
WEIGHT = "use_model"
#: The heuristic decides, until a trial says otherwise.
STARTING = {WEIGHT: 0.0}
_LEARNED = 0.5


class Contender:
    """Proposes the learned policy when there is a model that passed the gate.

    Args:
        model: the learner's incumbent, None while there is none.
        clock: the time.
        retry_s: from a trial that came to nothing to the next one.
    """

    def __init__(self, model: Callable[[], RewardModel | None], clock: Clock, retry_s: float) -> None:
        self._model, self._clock, self._retry_s = model, clock, retry_s
        self._state: State | None = None
        self._not_before_s = 0.0

    def start(self, state: State, reason: str) -> None:  # noqa: ARG002  # the reason is the machine's own
        """The machine asks for a candidate."""
        self._state = state
        waits = self._retry_s if state.fruitless else 0.0
        self._not_before_s = self._clock.mono_s() + waits

    def poll(self) -> Found | None:
        """The learned policy, once, where the heuristic decides and a model is there."""
        state, model = self._state, self._model()
        if state is None or model is None or state.incumbent.get(WEIGHT, 0.0) >= _LEARNED:
            return None
        if self._clock.mono_s() < self._not_before_s:
            return None
        self._state = None
        return Found(
            {WEIGHT: 1.0}, f"a model passed the gate: round {model.round}, {model.seen} requests seen"
        )

    def stop(self) -> None:
        """Nothing runs beside."""
        self._state = None
