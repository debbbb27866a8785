"""Token counts: the estimate from bytes, by a ratio per model that starts at a prior and can be learned.

Owns the ratios. Knows models by name only. Bounds: a ratio stays within `_LOWEST` and `_HIGHEST` bytes per
token, one observation moves it by a few percent at most, and at most `MAX_MODELS` models are remembered, the
least recently observed going first.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING

from epp.apis.canonical import MEDIA_BYTES_PER_TOKEN, exact_tokens, media_bytes

if TYPE_CHECKING:
    from epp.apis.types import ParsedRequest

#: Four bytes of English or code per token: OpenAI's rule of thumb for its tokenizers, and what 73 KB chat
#: bodies of 18k tokens come to with the 100k-150k vocabularies of current open models.
DEFAULT_BYTES_PER_TOKEN = 4.0
#: Model families whose vocabulary differs enough to matter, by name. 32k vocabularies: Llama 3 was announced
#: with up to 15 % fewer tokens than Llama 2 for the same text. 200k vocabularies: GPT-4o was announced with
#: 1.1 times fewer tokens for English.
_FAMILIES = (
    (re.compile(r"llama-?2|codellama|vicuna|mistral-7b|mixtral|phi-?3|tinyllama", re.IGNORECASE), 3.5),
    (re.compile(r"gpt-?oss|gpt-?4o|gpt-?4\.1|gpt-?5|o200k", re.IGNORECASE), 4.4),
)
#: A byte can be a token; beyond sixteen bytes a token, what was counted is not what was sent.
_LOWEST, _HIGHEST = 1.0, 16.0
#: Below this many tokens the template's own tokens, which are not in the body, decide the ratio.
_LEAST_TOKENS = 64
#: Weight of an observation, and how far off it may be believed to be: one request moves a ratio by 1 %.
_WEIGHT, _BELIEVED = 0.05, 0.2
#: Models whose ratios are remembered.
MAX_MODELS = 256


@lru_cache(maxsize=256)
def _of_family(model: str) -> float:
    """Return bytes per token by a model's name alone."""
    return next((ratio for family, ratio in _FAMILIES if family.search(model)), DEFAULT_BYTES_PER_TOKEN)


class EstimateCounter:
    """Divides bytes by bytes per token; counts prompts given as token ids."""

    def __init__(self) -> None:
        self._learned: OrderedDict[str, float] = OrderedDict()

    def count(self, request: ParsedRequest) -> int:
        """Return prompt tokens, at least 1 for a prompt that is not empty."""
        size = len(request.canonical)
        if not size:
            return 0
        if request.text_only:
            return max(1, round(size / self.bytes_per_token(request.model)))
        exact = exact_tokens(request.canonical)
        if exact is not None:
            return max(1, exact)
        media = media_bytes(request.canonical)
        text_tokens = (size - media) / self.bytes_per_token(request.model)
        return max(1, round(text_tokens + media / MEDIA_BYTES_PER_TOKEN))

    def bytes_per_token(self, model: str) -> float:
        """Return the ratio in force for a model: learned, else its family's, else the default."""
        learned = self._learned.get(model)
        return _of_family(model) if learned is None else learned

    def observe(self, model: str, canonical_bytes: int, prompt_tokens: float) -> None:
        """Learn from the tokens that an engine counted in prompts of so many canonical bytes.

        Moves the ratio by a bounded step towards what was seen, so that no single request can spoil it.
        Small prompts say nothing, nor do those that are not text alone.
        """
        if not _LEAST_TOKENS <= prompt_tokens < math.inf or canonical_bytes <= 0:
            return
        ratio = self.bytes_per_token(model)
        off = canonical_bytes / prompt_tokens / ratio - 1.0
        ratio *= 1.0 + _WEIGHT * min(max(off, -_BELIEVED), _BELIEVED)
        self._learned[model] = min(max(ratio, _LOWEST), _HIGHEST)
        self._learned.move_to_end(model)
        if len(self._learned) > MAX_MODELS:
            self._learned.popitem(last=False)
