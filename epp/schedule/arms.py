"""Which weights price a request: the arm of a trial that its conversation belongs to, stamped at dispatch.

Composes the weights in force with what keeps a conversation together. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.schedule.prompt_roots import PromptRoots

if TYPE_CHECKING:
    from collections.abc import Callable

    from epp.schedule.weights import WeightBook, Weights
    from epp.types import RequestView


class Arms:
    """Chooses the arm of each request that the tuned policy prices.

    Args:
        weights: the weights in force.
        name_block: a block's name as other pickers of the deployment spell it too.
    """

    def __init__(self, weights: WeightBook, name_block: Callable[[int], str]) -> None:
        self._weights, self._name_block = weights, name_block
        self._roots = PromptRoots()

    def choose(self, request: RequestView, wall_s: float) -> tuple[Weights, str]:
        """Weights for a request and the stamp of its arm, empty outside of trials."""
        if self._weights.trial is None:
            return self._weights.current, ""
        return self._weights.choose(wall_s, self._together(request))

    def _together(self, request: RequestView) -> str:
        """The client's session, else the prompt's root; looked for only while arms are drawn by it."""
        if request.session or not request.prompt_tokens or not self._weights.draws_sessions:
            return request.session
        root = self._roots.root(request)
        return "" if root is None else self._name_block(root)
