"""Which weights price a request: the arm of a trial that its conversation belongs to, stamped at dispatch.

Composes the weights in force with what keeps a conversation together. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.schedule.prompt_roots import PromptRoots

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.schedule.in_flight import Ask
    from epp.schedule.weights import WeightBook, Weights


class Arms:
    """Chooses the arm of each request that the tuned policy prices.

    Args:
        weights: the weights in force.
        name_block: a block's name as other pickers of the deployment spell it too.
    """

    def __init__(self, weights: WeightBook, name_block: Callable[[int], str]) -> None:
        self._weights, self._name_block = weights, name_block
        self._roots = PromptRoots()

    def choose(self, ask: Ask, wall_s: float) -> tuple[Weights, str]:
        """Weights for a request and the stamp of its arm, empty outside of trials."""
        if self._weights.trial is None:
            return self._weights.current, ""
        return self._weights.choose(wall_s, self._together(ask))

    def _together(self, ask: Ask) -> str:
        """The client's session, else the prompt's root; looked for only while arms are drawn by it."""
        if ask.session or ask.prompt is None or not self._weights.draws_sessions:
            return ask.session
        root = self._roots.root(ask.prompt)
        return "" if root is None else self._name_block(root)
