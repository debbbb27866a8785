"""How long answers are, per model: what a decision may expect of one that has not begun.

An average is enough: in a prototype the true length of each answer bought nothing (source [P]).
"""

from __future__ import annotations

from epp.signals.model_means import ModelMeans

#: Tokens of an answer of a model that none was seen of.
PRIOR_TOKENS = 128.0
#: Weight of the newest answer (source [P]).
_ALPHA = 0.02
_LONGEST_TOKENS = 1_000_000


class AnswerLengths:
    """Mean tokens of an answer by model name, fading."""

    def __init__(self) -> None:
        self._means = ModelMeans(_ALPHA, PRIOR_TOKENS, prior_weight=1.0)

    def observe(self, model: str, completion_tokens: int) -> None:
        """An answer ended; counts that no engine gives are ignored."""
        if 0 <= completion_tokens <= _LONGEST_TOKENS:
            self._means.add(model, completion_tokens)

    def expected(self, model: str, max_output_tokens: int | None = None) -> float:
        """Tokens to expect of the next answer, no more than the client's limit."""
        mean, _ = self._means.of(model)
        return mean if max_output_tokens is None else min(mean, float(max_output_tokens))
