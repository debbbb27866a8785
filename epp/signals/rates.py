"""How fast each engine works: milliseconds per uncached token, per decode step, per sequence beside it.

Owns the rates, learned from outcomes. Rates belong to an engine class and are pooled over its endpoints:
wrong relative rates between equal replicas cost more than any right ones gain (source [P]: 30 % of error
between equals made the 95th percentiles 5 to 10 % worse, a common error none), so an endpoint is set apart
from its class, or where it is alone in it from what it was, only when the evidence that it is slow is
strong. Without measurements a class stays on its priors, and returns there when it is asked no more; times
that no engine gives are refused, rates keep within a factor of their priors, and `describe` says which of it
is so.

Rules: samples are attributed to the state of the endpoint when the request was sent; what waits, batches and
prefills at the same time errs to one side, so samples taken under load count less.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.signals.line import Line
from epp.signals.slots import grown, rows_of
from epp.signals.slow import FORGIVEN_AFTER, SlowEndpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.types import Floats


class Rates(NamedTuple):
    """What an engine needs.

    Attributes:
        prefill_base_ms: fixed time of one prefill, the engine's front end included.
        prefill_ms_per_token: time of one uncached token.
        decode_base_ms: time of a token of an answer that is alone in the batch.
        decode_ms_per_request: what every further answer in the batch adds to it.
    """

    prefill_base_ms: float
    prefill_ms_per_token: float
    decode_base_ms: float
    decode_ms_per_request: float


#: Priors, by what an engine class' name contains. Two L40S and H100: source [G]; A30 and V100: source [L].
PRIORS: Mapping[str, Rates] = {
    "l40s": Rates(85.0, 0.065, 7.4, 1.32),
    "h100": Rates(75.0, 0.040, 4.6, 0.83),
    "a30": Rates(52.0, 0.194, 18.0, 1.3),
    "v100": Rates(55.0, 0.366, 24.0, 1.9),
}
#: The prior of every other class: only ratios between classes matter, and those are soon learned.
DEFAULT_PRIOR = PRIORS["l40s"]

#: ``(requests, tokens)`` and ``(1, requests beside)`` at which priors count as seen.
_PREFILL_DESIGN = ((1.0, 100.0), (1.0, 2_000.0), (1.0, 16_000.0))
_DECODE_DESIGN = ((1.0, 1.0), (1.0, 8.0), (1.0, 32.0))
_LONGEST_TTFT_MS = 600_000.0
_LONGEST_ITL_MS = 10_000.0


class _Class:
    """The two lines of one engine class."""

    def __init__(self, prior: Rates) -> None:
        self.prefill = Line(prior.prefill_base_ms, prior.prefill_ms_per_token, _PREFILL_DESIGN)
        self.decode = Line(prior.decode_base_ms, prior.decode_ms_per_request, _DECODE_DESIGN)
        self.last = 0  # samples of the whole fleet at its last one
        self.set_slots([])

    def set_slots(self, slots: list[int]) -> None:
        self.slots, self.rows = slots, rows_of(np.array(slots, np.intp))

    @property
    def rates(self) -> Rates:
        return Rates(self.prefill.base, self.prefill.slope, self.decode.base, self.decode.slope)


class State(Enum):
    """What a class' rates rest on."""

    PRIORS = "priors"  # nothing was measured yet
    MEASURED = "measured"
    AT_BOUND = "at-bound"  # the measurements fit no engine of this class


class ClassRates(NamedTuple):
    """One class' rates as shown to people.

    Attributes:
        rates: in force.
        state: what they rest on.
        slow: endpoints found slower than the class, or than they were if alone in it, with their factor.
    """

    rates: Rates
    state: State
    slow: Mapping[str, float]


class RateTable:
    """Rates by slot."""

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._of: dict[int, _Class] = {}
        self._block = np.ones((len(Rates._fields), 0), np.float64)
        self._changed: set[_Class] = set()  # classes whose rates are not in the block yet
        self._slow = SlowEndpoints()

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._block = grown(self._block, capacity, 1.0)
        self._slow.resize(capacity)

    def assign(self, slot: int, engine_class: str) -> None:
        """Assign an endpoint to its class; what was known of it alone is forgotten."""
        self.forget(slot)
        known = self._classes.get(engine_class)
        if known is None:
            name = engine_class.lower()
            prior = next((rates for part, rates in PRIORS.items() if part in name), DEFAULT_PRIOR)
            known = self._classes[engine_class] = _Class(prior)
        self._of[slot] = known
        known.set_slots([*known.slots, slot])
        self._show(known)

    def forget(self, slot: int) -> None:
        """Forget an endpoint; its class keeps what it learned."""
        known = self._of.pop(slot, None)
        if known is not None:
            known.set_slots([other for other in known.slots if other != slot])
        self._slow.forget(slot)

    def block(self) -> Floats:
        """``[4, capacity]`` in the order of `Rates`. Not to be written; valid until the next call."""
        if self._changed:
            for known in self._changed:
                self._show(known)
            self._changed.clear()
        return self._block

    def of(self, slot: int) -> Rates:
        """Return the slot's rates."""
        return Rates(*self.block()[:, slot].tolist())

    def observe_prefill(
        self,
        slot: int,
        *,
        ended_s: float,
        requests: float,
        tokens: float,
        ttft_ms: float,
        busy: float = 0.0,
    ) -> None:
        """Learn from a first token.

        Args:
            slot: who sent it.
            ended_s: when the request was over, on one clock for all.
            requests: prefills that it waited for, its own included.
            tokens: uncached tokens of them together, its own included.
            ttft_ms: time to first token without the network's part.
            busy: requests beside it when it was sent; the more, the less the sample counts.
        """
        known = self._of.get(slot)
        if known is None or not 0.0 < ttft_ms <= _LONGEST_TTFT_MS or tokens < 0.0 or requests <= 0.0:
            return
        error = known.prefill.observe(requests, max(tokens, 1.0), ttft_ms, 1.0 / (1.0 + busy))
        self._compare(slot, known, error, ended_s)

    def observe_decode(self, slot: int, *, ended_s: float, beside: float, itl_ms: float) -> None:
        """Learn from an answer that ended.

        Args:
            slot: who sent it.
            ended_s: when it was over, on one clock for all.
            beside: answers that shared the batch with it.
            itl_ms: mean time between its tokens.
        """
        known = self._of.get(slot)
        if known is None or not 0.0 < itl_ms <= _LONGEST_ITL_MS or beside < 0.0:
            return
        error = known.decode.observe(1.0, max(beside, 0.1), itl_ms)
        self._compare(slot, known, error, ended_s, decode=True)

    def describe(self, addresses: Mapping[int, str]) -> dict[str, ClassRates]:
        """Describe the rates by engine class, for people; ``addresses`` by slot."""
        rows: dict[str, ClassRates] = {}
        for name, known in self._classes.items():
            if not known.slots:
                continue
            state = State.MEASURED if known.prefill.samples + known.decode.samples else State.PRIORS
            if known.prefill.at_bound or known.decode.at_bound:
                state = State.AT_BOUND
            factors = self._slow.factors
            slow = {addresses[slot]: float(factors[slot]) for slot in known.slots if factors[slot] > 1.0}
            rows[name] = ClassRates(known.rates, state, slow)
        return rows

    def _compare(
        self, slot: int, known: _Class, error: float, ended_s: float, *, decode: bool = False
    ) -> None:
        """Judge its endpoint by a sample's error, and now and then the classes that sent none."""
        self._changed.add(known)
        for forgiven in self._slow.take(slot, known.slots, error, ended_s, decode=decode):
            self._changed.add(self._of[forgiven])
        known.last = self._slow.seen
        if known.last % FORGIVEN_AFTER == 0:
            self._doubt_unheard_classes()

    def _doubt_unheard_classes(self) -> None:
        """Bring those of which nothing was heard for long halfway back to their priors.

        Where load is low they are chosen no more, and nothing else would ever say that they are well again.
        """
        for known in self._classes.values():
            if self._slow.seen - known.last >= FORGIVEN_AFTER:
                known.prefill.halve()
                known.decode.halve()
                self._changed.add(known)

    def _show(self, known: _Class) -> None:
        prefill, decode, rows = known.prefill, known.decode, known.rows
        values = np.array((prefill.base, prefill.slope, decode.base, decode.slope))[:, None]
        self._block[:, rows] = values * self._slow.factors[rows] if self._slow.any else values
