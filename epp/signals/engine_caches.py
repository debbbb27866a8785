"""What is said of a prompt by engines' events and by the estimate, and how far the events are believed.

The estimate, what was sent, is right at once and never hears of evictions; events hear of all, a moment late.
So a prompt that was sent is credited until events had the time to tell of it. Events are believed of an
endpoint as long as no message is missing, they come, and answers do not show the estimate to be nearer; where
they have not been heard from a process's start, what the estimate knows beyond them counts, too.

Owns the trust and what is credited. The blocks are the index's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.types import CACHED_SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from epp.prefix_cache.engine_blocks import ChainKey, Credit, EngineBlocks
    from epp.types import Floats, RequestInfo, Slots

#: Events tell of a prompt's blocks while it is computed; they have so long after its first token.
LAG_S = 2.0
#: A message that was lost counts half after so long; at half a message events are believed again.
LOST_HALF_S, _LOST_MOST = 60.0, 0.5
#: Prompts in a row of whose blocks no message came, after which an endpoint is deaf.
_DEAF = 3
#: Answers that tell hits before errors are compared, weight of one, and how much worse events may be.
_ANSWERS, _WEIGHT, _WORSE, _SLACK_TOKENS = 8, 0.1, 1.1, 64.0
#: A process that a scrape and a new sequence tell of within so long is one.
_ONE_RESTART_S = 60.0
_ESTIMATE, _EVENTS, _BOTH = map(CACHED_SOURCES.index, ("estimate", "events", "both"))


class Fused(NamedTuple):
    """What is known of a prompt by candidate.

    Attributes:
        tokens: cached tokens that count.
        estimated: by what was sent.
        told: by events and credit, NaN where nothing was told.
        sources: what counts, as indices of `epp.types.CACHED_SOURCES`.
    """

    tokens: Floats
    estimated: Floats
    told: Floats
    sources: NDArray[np.int8]


@dataclass(slots=True)
class SentPrefix:
    """What was known of a prompt where it was sent, and what is credited for it."""

    slot: int
    credit: Credit | None
    estimated_tokens: float
    told_tokens: float
    sent_s: float
    settling: bool = False


@dataclass(slots=True)
class _Trust:
    """Of one endpoint; ``whole`` are its ranks of which all is known that they hold."""

    ranks: int = 1
    whole: set[int] = field(default_factory=set)
    heard_s: float = -np.inf
    lost: float = 0.0
    lost_s: float = 0.0
    silent: int = 0
    answers: int = 0
    told_error: float = 0.0
    estimated_error: float = 0.0

    def lost_now(self, now_s: float) -> float:
        return self.lost * float(0.5 ** ((now_s - self.lost_s) / LOST_HALF_S)) if self.lost else 0.0

    def problem(self, now_s: float) -> str:
        """Say why events are not believed, ``""`` where they are."""
        if self.heard_s == -np.inf:
            return "unheard"
        if self.lost_now(now_s) >= _LOST_MOST:
            return "lost"
        if self.silent >= _DEAF:
            return "deaf"
        bound_tokens = _WORSE * self.estimated_error + _SLACK_TOKENS
        return "wrong" if self.answers >= _ANSWERS and self.told_error > bound_tokens else ""


class EngineCaches:
    """Events and estimate, fused.

    Args:
        index: what events told.
        adapter_of: of a slot and a public model the adapter's name there, ``""`` for a base model.
    """

    def __init__(self, index: EngineBlocks, adapter_of: Callable[[int, str], str]) -> None:
        self.index, self._adapter_of = index, adapter_of
        self._trust: dict[int, _Trust] = {}
        self._settling: deque[tuple[float, SentPrefix]] = deque()
        self._restarted_s: dict[int, float] = {}
        self._began_s: dict[int, float] = {}

    def listen(self, slot: int, ranks: int = 1) -> None:
        """Expect events of a slot, from so many data-parallel ranks."""
        self._trust.setdefault(slot, _Trust()).ranks = ranks
        self.index.expect_ranks(slot, ranks)

    def forget(self, slot: int) -> None:
        """Forget a slot: its endpoint has gone."""
        self.index.forget(slot)
        for of_slot in (self._trust, self._restarted_s, self._began_s):
            of_slot.pop(slot, None)

    def restarted(self, slot: int, now_s: float) -> None:
        """Forget what a process held that has ended, but not what a new sequence has told since."""
        trust = self._trust.get(slot)
        if trust is None:
            return
        self._restarted_s[slot] = now_s
        if now_s - self._began_s.get(slot, -np.inf) > _ONE_RESTART_S:
            self.index.forget(slot)
            self._trust[slot] = _Trust()
            self.listen(slot, trust.ranks)

    def began_anew(self, slot: int, rank: int, now_s: float) -> bool:
        """Take a sequence that begins anew for another process; False where its restart is known."""
        if (trust := self._trust.get(slot)) is None:
            return False
        self.index.clear(slot, rank)
        whole = trust.whole - {rank}
        trust = self._trust[slot] = _Trust(trust.ranks, whole, trust.heard_s)
        known_s = max(self._restarted_s.get(slot, -np.inf), self._began_s.get(slot, -np.inf))
        self._began_s[slot] = now_s
        return now_s - known_s > _ONE_RESTART_S

    def heard(self, slot: int, rank: int, now_s: float, *, whole: bool = False) -> None:
        """Note a message of a slot; ``whole``: with it all is known that the rank holds."""
        if (trust := self._trust.get(slot)) is not None:
            trust.heard_s, trust.silent = now_s, 0
            if whole:
                trust.whole.add(rank)

    def missed(self, slot: int, rank: int, messages: int, now_s: float) -> None:
        """Note messages that never came, or that cannot be applied."""
        if (trust := self._trust.get(slot)) is not None:
            trust.lost, trust.lost_s = trust.lost_now(now_s) + messages, now_s
            self.index.uncount_repeats(slot, rank)

    def refused(self, slot: int, rank: int) -> None:
        """Note blocks that were not taken, or not read: what is known of the rank is not all any more."""
        if (trust := self._trust.get(slot)) is not None:
            trust.whole.discard(rank)

    def problems(self, now_s: float) -> dict[int, str]:
        """Say by slot why its events are not believed, ``""`` where they are."""
        return {slot: trust.problem(now_s) for slot, trust in self._trust.items()}

    def hashed(self, model: str, tokens: bytes, salt: str) -> Mapping[ChainKey, Sequence[int]]:
        """Hash a prompt's token ids (4 bytes each) as its engines' blocks are."""
        return self.index.chains(self._loras(self._trust, model), tokens, salt)

    def _loras(self, slots: Iterable[int], model: str) -> dict[int, str]:
        return {slot: self._adapter_of(slot, model) for slot in slots}

    def fuse(self, request: RequestInfo, slots: Slots, estimated: Floats, now_s: float) -> Fused | None:
        """Say what is known of a request's prompt by candidate; None where the estimate is all."""
        self._sweep(now_s)
        if not request.engine_blocks:
            return None
        listed = [slot for slot in slots.tolist() if slot in self._trust]
        found = self.index.held_tokens(listed, request.engine_blocks, self._loras(listed, request.model))
        tokens, told = estimated.copy(), np.full(len(slots), np.nan)
        sources = np.full(len(slots), _ESTIMATE, np.int8)
        most_tokens = request.prompt_tokens
        if request.readable_tokens is not None:
            most_tokens = min(most_tokens, request.readable_tokens)
        for row, slot in enumerate(slots.tolist()):
            if slot not in found:
                continue
            told[row] = known = min(found[slot], most_tokens)
            trust = self._trust[slot]
            if trust.problem(now_s):
                continue
            whole = len(trust.whole) >= trust.ranks
            tokens[row] = known if whole else max(known, tokens[row])
            sources[row] = _EVENTS if whole else _BOTH
        return Fused(tokens, estimated, told, sources)

    def sent(self, slot: int, request: RequestInfo, fused: Fused, row: int, now_s: float) -> SentPrefix:
        """Credit a slot with a prompt that is sent there."""
        lora = self._adapter_of(slot, request.model)
        credit = self.index.credit(slot, request.engine_blocks, lora)
        return SentPrefix(slot, credit, float(fused.estimated[row]), float(fused.told[row]), now_s)

    def settle(self, sent: SentPrefix, now_s: float) -> None:
        """Let a credit end soon: the prompt was computed, or never will be."""
        if not sent.settling:
            sent.settling = True
            self._settling.append((now_s + LAG_S, sent))

    def answered(self, sent: SentPrefix, cached_tokens: int) -> None:
        """Compare the tokens that an engine served from its cache with what events and estimate said."""
        trust = self._trust.get(sent.slot)
        if trust is None or np.isnan(sent.told_tokens):
            return
        weight = max(_WEIGHT, 1.0 / (trust.answers + 1))
        for name, said in (("told_error", sent.told_tokens), ("estimated_error", sent.estimated_tokens)):
            error = getattr(trust, name)
            setattr(trust, name, error + weight * (abs(said - cached_tokens) - error))
        trust.answers += 1

    def _sweep(self, now_s: float) -> None:
        while self._settling and self._settling[0][0] <= now_s:
            _, sent = self._settling.popleft()
            if sent.credit is None:
                continue
            trust = self._trust.get(sent.slot)
            if trust is not None and sent.credit.open and trust.heard_s < sent.sent_s:
                trust.silent += 1
            self.index.settle(sent.credit)
