"""Offer the learned policy to the tuner's machine as a candidate, in place of rehearsed weights.

Owns nothing but the clock that the rule is asked with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.learn.reward_model.challenger import CHALLENGE, Challenger
from epp.learn.tuner.tuner import Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.clock import Clock
    from epp.learn.tuner.state import State
    from epp.policies.reward_model import RewardModel


class Contender:
    """Proposes the learned policy when there is a model that passed the gate.

    Args:
        model: the learner's incumbent, None while there is none.
        clock: the time.
        retry_s: from a trial that came to nothing to the next one.
    """

    def __init__(self, model: Callable[[], RewardModel | None], clock: Clock, retry_s: float) -> None:
        self._model, self._clock = model, clock
        self._rule = Challenger(retry_s)

    def start(self, state: State, reason: str) -> None:  # noqa: ARG002  # the reason is the machine's own
        """The machine asks for a candidate."""
        self._rule.search(state, self._clock.mono_s())

    def poll(self) -> Found | None:
        """The learned policy, once, where the heuristic decides and a model is there."""
        reason = self._rule.proposes(self._model(), self._clock.mono_s())
        return Found(dict(CHALLENGE), reason) if reason else None

    def stop(self) -> None:
        """Nothing runs beside."""
        self._rule.stop()
