"""How fast each engine works: milliseconds per uncached token, per decode step, per sequence beside it.

Owns the rates, learned from outcomes. Rates belong to an engine class and are pooled over its endpoints:
wrong relative rates between equal replicas cost more than any right ones gain (source [P]: 30 % of error
between equals made the 95th percentiles 5 to 10 % worse, a common error none), so an endpoint is set apart
from its class, or where it is alone in it from what it was, only when the evidence that it is slow is
strong. Without measurements a class stays on its priors, and returns there when it is asked no more; times
that no engine gives are refused, rates keep within a factor of their priors, and `describe` says which of it
is so.

Rules: samples are attributed to the state of the endpoint when the request was sent; what waits, batches and
prefills at the same time errs to one side, so samples taken under load count less. Each rate is a
coefficient of a `Line`; `SlowEndpoints` says who is slower than its equals, and by what factor.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from epp.signals.linear_fit import Learned, LinearFit
from epp.signals.slots import grown, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epp.types import Floats


#: An endpoint is slower than its class from this factor on, after first tokens, too, and equal again below
#: the second one.
_SLOW, _EQUAL = 1.4, 1.2
_SLOWEST = 8.0
#: Samples, two a request, that the evidence on an endpoint reaches back: who slows down for minutes has to be
#: found within seconds, and a third as many find endpoints slow that are not. And the fewest that make
#: evidence, weighed as they fade: some 47 of an endpoint that is new.
_MEMORY, _LEAST = 30.0, 24.0
#: The fewest of tokens after the first that say something.
_LEAST_DECODE = 6.0
#: Samples of an endpoint that count at once, and in each second.
_AT_ONCE, _IN_A_SECOND = 4.0, 4.0
#: Standard errors by which the evidence must be beyond equal.
_SIGNIFICANT = 3.0
#: Samples of one endpoint between two comparisons of it.
_JUDGED_EVERY = 3
#: Samples of all endpoints, two a request, without one of its own after which who was found slow counts
#: as equal again.
FORGIVEN_AFTER = 1000


class _Mean:
    """A mean that fades, and the weight of what it is of."""

    __slots__ = ("mean", "weight")

    def __init__(self) -> None:
        self.mean = self.weight = 0.0


class _Evidence:
    """How an endpoint's times compare with its class' word."""

    __slots__ = ("all", "decode", "last", "open", "open_s", "samples", "square")

    def __init__(self) -> None:
        self.all, self.decode = _Mean(), _Mean()
        self.open = self.open_s = 0.0  # samples that may count, as of that time
        self.square = 0.0  # sum of squares around the mean of all
        self.samples = 0
        self.last = 0  # samples of all endpoints at its last one

    def take(self, log_ratio: float, now_s: float, *, decode: bool) -> None:
        """Add a sample."""
        counts = self._counts(now_s)
        if not counts:
            return
        keep = 1.0 - counts / _MEMORY
        of_all, of_decode = self.all, self.decode
        weight = of_all.weight = keep * of_all.weight + counts
        away = log_ratio - of_all.mean
        self.square = keep * self.square + counts * away * away * (1.0 - counts / weight)
        of_all.mean += counts * away / weight
        of_decode.weight *= keep
        if decode:
            of_decode.weight += counts
            of_decode.mean += counts * (log_ratio - of_decode.mean) / of_decode.weight

    def _counts(self, now_s: float) -> float:
        """Weigh a sample that comes now, 0..1."""
        left, since_s = self.open, now_s - self.open_s
        if since_s > 0.0:
            left = min(left + since_s * _IN_A_SECOND, _AT_ONCE)
            self.open_s = now_s
        counts = min(left, 1.0)
        self.open = left - counts
        return counts


class SlowEndpoints:
    """Who is slow, by slot.

    Owns the evidence: the errors of a class' rates in what its endpoints did, as logarithms, fading. Equals
    are set apart only beyond doubt. Rules:

    * One that has no equals is compared with what its class learned of it over a longer time: slow is then
      what has become slower, and its factor goes as the class learns that, too. Equals of whom little is
      known say nothing.
    * Requests that wait and run together are delayed together, by a process that stalls as by a prompt that
      none of them foresaw: what ends within a second counts as a few samples, however much it is.
    * Slow is who is slow after first tokens, too, where that is known: wrong round trips look like a slow
      engine until the first token, and not after it.
    * Who was found slow and has not been heard of for long counts as equal again: it is chosen no more where
      load is low, and nothing else would ever say that it is well.
    """

    def __init__(self) -> None:
        self._evidence: list[_Evidence] = []
        self._factors = np.zeros(0, np.float64)
        self._slow: set[int] = set()
        #: Samples of all endpoints.
        self.seen = 0

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._evidence.extend(_Evidence() for _ in range(capacity - len(self._evidence)))
        self._factors = grown(self._factors, capacity, 1.0)

    @property
    def any(self) -> bool:
        """Whether somebody is slow."""
        return bool(self._slow)

    @property
    def factors(self) -> Floats:
        """``[capacity]``, 1 and more; not to be written."""
        return self._factors

    def forget(self, slot: int) -> None:
        """Forget the slot's endpoint."""
        self._evidence[slot] = _Evidence()
        self._set_factor(slot, 1.0)

    def take(
        self, slot: int, of_class: Sequence[int], error: float, now_s: float, *, decode: bool
    ) -> list[int]:
        """Add a sample to the evidence on an endpoint, and compare it with its equals now and then.

        Args:
            slot: the endpoint.
            of_class: slots of its class, its own among them.
            error: relative error of the class' rates in the sample.
            now_s: when its request was over, on one clock for all.
            decode: whether it is of tokens after the first.

        Returns:
            Others whose factor has changed, because nothing was heard of them for long.
        """
        evidence = self._evidence[slot]
        evidence.take(math.log(max(1.0 + error, 0.02)), now_s, decode=decode)
        evidence.samples += 1
        self.seen += 1
        evidence.last = self.seen
        if evidence.samples % _JUDGED_EVERY == 0:
            self._compare(slot, of_class)
        if not self._slow:
            return []
        unheard = [at for at in self._slow if self.seen - self._evidence[at].last >= FORGIVEN_AFTER]
        for at in unheard:
            self.forget(at)
        return unheard

    def _compare(self, slot: int, of_class: Sequence[int]) -> None:
        """Decide whether the endpoint is slow among its equals: beyond doubt, and by enough to matter."""
        evidence = self._evidence[slot]
        known = evidence.all
        if known.weight < _LEAST:
            return
        others = [self._evidence[at] for at in of_class if at != slot]
        equals = [other.all.mean for other in others if other.all.weight >= _LEAST]
        if others and not equals:
            return
        beyond = known.mean - _median(equals)
        slow = beyond > math.log(_EQUAL)
        if slot not in self._slow:
            error = math.sqrt(evidence.square) / known.weight
            slow = beyond > math.log(_SLOW) and beyond - _SIGNIFICANT * error > math.log(_EQUAL)
            slow = slow and _slow_after_first_tokens(evidence.decode, [other.decode for other in others])
        self._set_factor(slot, min(math.exp(beyond), _SLOWEST) if slow else 1.0)

    def _set_factor(self, slot: int, factor: float) -> None:
        self._factors[slot] = factor
        (self._slow.discard if factor == 1.0 else self._slow.add)(slot)


def _slow_after_first_tokens(decode: _Mean, others: list[_Mean]) -> bool:
    """Tell whether the network cannot be why; True where little is known of these tokens."""
    if decode.weight < _LEAST_DECODE:
        return True
    equals = [other.mean for other in others if other.weight >= _LEAST_DECODE]
    return decode.mean - _median(equals) > math.log(_SLOW)


def _median(values: list[float]) -> float:
    """Return the median, 0 of none, for less than a call of NumPy's."""
    if not values:
        return 0.0
    values.sort()
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2.0


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
        self.prefill = LinearFit(prior.prefill_base_ms, prior.prefill_ms_per_token, _PREFILL_DESIGN)
        self.decode = LinearFit(prior.decode_base_ms, prior.decode_ms_per_request, _DECODE_DESIGN)
        self.last = 0  # samples of the whole fleet at its last one
        self.set_slots([])

    def set_slots(self, slots: list[int]) -> None:
        self.slots, self.rows = slots, rows_of(np.array(slots, np.intp))

    @property
    def rates(self) -> Rates:
        return Rates(self.prefill.base, self.prefill.slope, self.decode.base, self.decode.slope)


class RateState(Enum):
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
    state: RateState
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

    @property
    def learned(self) -> dict[str, tuple[Learned, Learned]]:
        """Return what each class' lines rest on, of prefills and of decodes."""
        return {name: (known.prefill.learned, known.decode.learned) for name, known in self._classes.items()}

    def adopt(self, learned: Mapping[str, tuple[Learned, Learned]]) -> None:
        """Take another picker's samples of the classes here, where those are more."""
        for name, (prefill, decode) in learned.items():
            known = self._classes.get(name)
            if known is not None:
                known.prefill.adopt(prefill)
                known.decode.adopt(decode)
                self._changed.add(known)

    def describe(self, addresses: Mapping[int, str]) -> dict[str, ClassRates]:
        """Describe the rates by engine class, for people; ``addresses`` by slot."""
        rows: dict[str, ClassRates] = {}
        for name, known in self._classes.items():
            if not known.slots:
                continue
            state = RateState.MEASURED if known.prefill.samples + known.decode.samples else RateState.PRIORS
            if known.prefill.at_bound or known.decode.at_bound:
                state = RateState.AT_BOUND
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
