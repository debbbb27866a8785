"""How long answers are, per model: what a decision may expect of one that has not begun.

Owns the averages. An average is enough: in a prototype the true length of each answer bought nothing
(source [P]).
"""

from __future__ import annotations

from collections import OrderedDict

#: Tokens of an answer of a model that none was seen of.
PRIOR_TOKENS = 128.0
#: Weight of the newest answer (source [P]).
_ALPHA = 0.02
#: Models remembered: clients choose the names.
_MAX_MODELS = 1000
_LONGEST_TOKENS = 1_000_000


class AnswerLengths:
    """Mean tokens of an answer by model name, fading."""

    def __init__(self) -> None:
        self._mean: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def observe(self, model: str, completion_tokens: int) -> None:
        """An answer ended; counts that no engine gives are ignored."""
        if not 0 <= completion_tokens <= _LONGEST_TOKENS:
            return
        mean, count = self._mean.get(model, (PRIOR_TOKENS, 0))
        step = max(_ALPHA, 1.0 / (count + 2.0))  # the prior weighs one answer
        self._mean[model] = (mean + step * (completion_tokens - mean), count + 1)
        self._mean.move_to_end(model)
        if len(self._mean) > _MAX_MODELS:
            self._mean.popitem(last=False)

    def expected(self, model: str, max_output_tokens: int | None = None) -> float:
        """Tokens to expect of the next answer, no more than the client's limit."""
        mean = self._mean.get(model, (PRIOR_TOKENS, 0))[0]
        return mean if max_output_tokens is None else min(mean, float(max_output_tokens))
