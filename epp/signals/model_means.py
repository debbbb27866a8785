"""What was usual of late: fading means by model name, and how often prompts part from a prefix.

Clients choose the names, so the least recently seen goes.
"""

from __future__ import annotations

import math
from collections import OrderedDict

#: Models remembered.
_MAX_MODELS = 1000


#: Tokens of an answer of a model that none was seen of.
PRIOR_TOKENS = 128.0
_LONGEST_TOKENS = 1_000_000
#: Requests of a model before its mean is returned.
_LEAST_REQUESTS = 20


class ModelMeans:
    """A mean for each model.

    Args:
        alpha: weight of the newest value; while there are few, all weigh the same.
        prior: the mean of a model that nothing was seen of.
        prior_weight: values that the prior counts for beside those that were seen.
    """

    def __init__(self, alpha: float, prior: float = 0.0, prior_weight: float = 0.0) -> None:
        self._alpha, self._unseen, self._first = alpha, (prior, 0), 1.0 + prior_weight
        self._means: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, model: str, value: float) -> None:
        """Add a value."""
        mean, count = self.of(model)
        step = max(self._alpha, 1.0 / (count + self._first))
        self._means[model] = (mean + step * (value - mean), count + 1)
        self._means.move_to_end(model)
        if len(self._means) > _MAX_MODELS:
            self._means.popitem(last=False)

    def of(self, model: str) -> tuple[float, int]:
        """Return the model's mean, and how many values were seen."""
        return self._means.get(model, self._unseen)


class AnswerLengths:
    """Mean tokens of an answer by model name, fading: what to expect of one that has not begun.

    In a prototype the true length of each answer bought nothing over this mean (source [P]).
    """

    def __init__(self) -> None:
        self._means = ModelMeans(0.02, PRIOR_TOKENS, prior_weight=1.0)  # source [P]

    def observe(self, model: str, completion_tokens: int) -> None:
        """Add an answer; counts that no engine gives are ignored."""
        if 0 <= completion_tokens <= _LONGEST_TOKENS:
            self._means.add(model, completion_tokens)

    def expected(self, model: str, max_output_tokens: int | None = None, sequences: int = 1) -> float:
        """Return the tokens to expect of the next answers, each no more than the client's limit."""
        mean, _ = self._means.of(model)
        return sequences * (mean if max_output_tokens is None else min(mean, float(max_output_tokens)))


class FirstTokens:
    """Mean of the least time to first token by model name, ms, over the last hundred requests.

    Of each request the least time counts that its policy expected anywhere: so rates that are wrong by a
    factor hardly matter.
    """

    def __init__(self) -> None:
        self._means_ms = ModelMeans(0.01)

    def observe(self, model: str, least_ms: float) -> None:
        """Add a request that was placed; times of policies that expect none, 0, are ignored."""
        if 0.0 < least_ms < math.inf:
            self._means_ms.add(model, least_ms)

    def usual_ms(self, model: str) -> float:
        """Return what requests of the model had to expect of late; 0 before there were enough of them."""
        mean_ms, count = self._means_ms.of(model)
        return mean_ms if count >= _LEAST_REQUESTS else 0.0


#: Seconds after which a count weighs 1/e (source [P]).
FADE_S = 60.0
#: Seconds within which requests of one prefix are one burst: siblings start within 0.3 s, and what uses a
#: copy has to come after it was made, some 0.1 to 1 s for a prefix of 1,000 to 10,000 tokens.
BURST_S = 2.0
_MAX_PREFIXES = 20_000


class Popularity:
    """How often a prefix is what several prompts part from: a shared context, not a conversation.

    A conversation's next turn goes on beyond the end of the last, so each of its prefixes is the deepest
    match once; of a context that many prompts share, every one of them has the same deepest match. Counts
    fade, and the least recently used go first.

    Bursts count once: what comes within `BURST_S` of the last one counts by its share of it. A copy pays for
    itself by who comes later; a planner's siblings ask for one context within a third of a second, and when
    the last of them counts the others nobody is left who would use a further copy. So no prefix counts more
    than ``FADE_S / BURST_S``, which many a minute reach too.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def sharing(self, block: int, now_s: float) -> float:
        """Return how many prompts had this as their deepest match lately, fading; a burst is one."""
        count, seen_s = self._seen.get(block, (0.0, -math.inf))
        return count * math.exp((seen_s - now_s) / FADE_S)

    def count(self, block: int, now_s: float) -> None:
        """Count a prompt whose deepest match this is."""
        _, seen_s = self._seen.get(block, (0.0, -math.inf))
        part = min((now_s - seen_s) / BURST_S, 1.0)
        self._seen[block] = (self.sharing(block, now_s) + part, now_s)
        self._seen.move_to_end(block)
        if len(self._seen) > _MAX_PREFIXES:
            self._seen.popitem(last=False)
