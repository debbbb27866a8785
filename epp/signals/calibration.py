"""What the engines' own counters say of our estimates, where answers carry no usage.

Engines count prompt tokens, and those found in the cache, over all requests. Between two scrapes the increase
is what our requests cost, if they were the only ones: so a window counts only where the engine finished as
many requests as we did, with about as many unfinished at its end as at its beginning. Two things come of it:
bytes per token, where one model was asked for and no answer told its own count, and the hit ratio: cached
tokens as the engine had them over those that the prefix index foretold.

Owns the open window of each slot, the hit ratios, and which processes tell cached tokens. Knows neither
engines nor counters of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from epp.signals.slots import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.signals.metrics_text import EngineSample

#: Requests that make a window, and the age at which one is given up.
_REQUESTS, _LONGEST_S = 32, 600.0
#: How far counts of requests may be apart, as a share and in requests: scrapes and reports cross each other.
_APART_SHARE, _APART_REQUESTS = 0.1, 2.0
#: Above this share of answers with a count of their own there is nothing to calibrate.
_TOLD_SHARE = 0.5
#: Names of models remembered of a window: what counts is whether there is one. Clients choose them, and a
#: window stays open for as long as scrapes fail.
_MODELS = 2
#: Weight left of the past after one more request told: the last fifty or so count.
_FADING = 0.98
#: Tokens foretold and found that a ratio starts from: one request does not make it.
_PRIOR_TOKENS = 2048.0
_MOST = 1.5


class Finished(Struct, frozen=True):
    """A request that an engine has answered.

    Attributes:
        model: public model name.
        text_bytes: canonical bytes that its count was estimated from, 0 where they teach no ratio.
        prompt_tokens: as we counted them.
        expected_tokens: those of them that were expected in the cache.
        told: the answer told its prompt tokens.
        cached_told: the answer told its cached tokens.
    """

    model: str
    text_bytes: int
    prompt_tokens: int
    expected_tokens: float
    told: bool
    cached_told: bool


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """An engine counted so many tokens in so many canonical bytes of one model's prompts."""

    model: str
    text_bytes: int
    prompt_tokens: float
    requests: int


@dataclass(slots=True)
class _Window:
    opened: EngineSample
    opened_s: float
    running: float
    requests: int = 0
    text_bytes: int = 0
    prompt_tokens: int = 0
    expected_tokens: float = 0.0
    told: int = 0
    cached_told: int = 0
    models: set[str] = field(default_factory=set)
    opaque: bool = False


class CounterCalibration:
    """Windows and hit ratios by slot."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        # Lists: they are read and written one by one, where an array's element costs an object.
        self._reported: list[float] = []
        self._predicted: list[float] = []
        self._ratio = np.ones(0, np.float64)
        #: Slots whose processes told cached tokens, and of requests of which API.
        self._tells: set[tuple[int, str]] = set()
        #: Windows that were of use, and those in which others had sent requests, too.
        self.used = self.refused = 0

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        for sums in (self._reported, self._predicted):
            sums.extend([_PRIOR_TOKENS] * (capacity - len(sums)))
        self._ratio = grown(self._ratio, capacity, 1.0)

    def forget(self, slot: int) -> None:
        """The slot's engine is another."""
        self._windows.pop(slot, None)
        self._reported[slot] = self._predicted[slot] = _PRIOR_TOKENS
        self._ratio[slot] = 1.0
        self._tells = {known for known in self._tells if known[0] != slot}

    @property
    def hit_ratio(self) -> NDArray[np.float64]:
        """Cached tokens that engines had over those foretold, by slot, 0 to 1.5; 1 before anything is known.

        Not to be written.
        """
        return self._ratio

    def to_prefill(self, slot: int, prompt_tokens: int, cached_tokens: float) -> float:
        """Tokens of a prompt that the slot's engine has to prefill, by its hit ratio and the index's hits."""
        return max(prompt_tokens - float(self._ratio[slot]) * cached_tokens, 0.0)

    def cached_or_left_out(self, slot: int, api: str, cached_tokens: int | None) -> int | None:
        """Cached tokens of an answer, 0 where they are left out by a process that tells them otherwise."""
        if cached_tokens is not None:
            self._tells.add((slot, api))
            return cached_tokens
        return 0 if (slot, api) in self._tells else None

    def cached(self, slot: int, predicted_tokens: float, reported_tokens: float) -> None:
        """One answer told its cached tokens; both in the same tokens. Nothing foretold says nothing."""
        if predicted_tokens > 0.0:
            self._found(slot, predicted_tokens, reported_tokens, 1)

    def finished(self, slot: int, request: Finished) -> None:
        """An engine has answered a request of ours."""
        window = self._windows.get(slot)
        if window is None:
            return
        window.requests += 1
        window.text_bytes += request.text_bytes
        window.prompt_tokens += request.prompt_tokens
        window.expected_tokens += request.expected_tokens
        window.told += request.told
        window.cached_told += request.cached_told
        window.opaque = window.opaque or not request.text_bytes
        if len(window.models) < _MODELS:
            window.models.add(request.model)

    def scraped(self, slot: int, sample: EngineSample, running: float, now_s: float) -> TokenRatio | None:
        """Look at an engine's counters; close the window when it tells something.

        Args:
            slot: the engine's.
            sample: its metrics.
            running: our unfinished requests there.
            now_s: the time.

        Returns:
            Bytes and tokens, where the window tells of them.
        """
        if sample.requests_total is None:
            self._windows.pop(slot, None)
            return None
        window = self._windows.get(slot)
        if window is None or now_s - window.opened_s > _LONGEST_S or _went_back(window.opened, sample):
            self._windows[slot] = _Window(sample, now_s, running)
            return None
        limit = max(_APART_REQUESTS, _APART_SHARE * window.requests)
        if window.requests < _REQUESTS or abs(running - window.running) > limit:
            return None
        self._windows[slot] = _Window(sample, now_s, running)
        theirs = sample.requests_total - (window.opened.requests_total or 0.0)
        if abs(theirs - window.requests) > limit:
            self.refused += 1
            return None
        self.used += 1
        prompt_tokens = _increase(window.opened.prompt_tokens_total, sample.prompt_tokens_total)
        if prompt_tokens <= 0.0:
            return None
        hits = min(_increase(window.opened.prefix_hits_total, sample.prefix_hits_total), prompt_tokens)
        if sample.prefix_hits_total is not None and window.cached_told <= _TOLD_SHARE * window.requests:
            scale = prompt_tokens / max(window.prompt_tokens, 1)
            self._found(slot, window.expected_tokens * scale, hits, window.requests)
        return _ratio(window, prompt_tokens)

    def _found(self, slot: int, predicted_tokens: float, reported_tokens: float, requests: int) -> None:
        left = _FADING**requests
        for sums, tokens in ((self._predicted, predicted_tokens), (self._reported, reported_tokens)):
            # What fades gives way to the prior, so that silence and small numbers end at a ratio of 1.
            sums[slot] = _PRIOR_TOKENS + (sums[slot] - _PRIOR_TOKENS) * left + tokens
        self._ratio[slot] = min(max(self._reported[slot] / self._predicted[slot], 0.0), _MOST)


def _ratio(window: _Window, prompt_tokens: float) -> TokenRatio | None:
    if window.opaque or len(window.models) != 1 or window.told > _TOLD_SHARE * window.requests:
        return None
    return TokenRatio(next(iter(window.models)), window.text_bytes, prompt_tokens, window.requests)


def _increase(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else now - before


def _went_back(before: EngineSample, now: EngineSample) -> bool:
    return any(
        _increase(getattr(before, name), getattr(now, name)) < 0.0
        for name in ("requests_total", "prompt_tokens_total", "prefix_hits_total")
    )
