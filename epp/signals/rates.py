"""How fast each engine works: milliseconds per uncached token, per decode step, per sequence beside it.

Owns the rates, learned from outcomes. Rates belong to an engine class and are pooled over its endpoints:
wrong relative rates between equal replicas cost more than any right ones gain (source [P]: 30 % of error
between equals made the 95th percentiles 5 to 10 % worse, a common error none), so an endpoint is told apart
from its class, or where it is alone in it from what it was, only when the evidence that it is slow is
strong. Without measurements a class stays on its priors, and returns there when it is asked no more; times
that no engine gives are refused, rates keep within a factor of their priors, and `describe` says which of it
is so.

Rules: samples are attributed to the state of the endpoint when the request was sent; what waits, batches and
prefills at the same time errs to one side, so samples taken under load count less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.line import Line
from epp.signals.slots import grown, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rates:
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

    def __post_init__(self) -> None:
        """All of them are times above 0."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, not {value}")


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
#: An endpoint is slower than its class from this factor on, and equal again below the second one.
_SLOW, _EQUAL = 1.4, 1.2
_SLOWEST = 8.0
#: Samples, two a request, that the evidence on an endpoint reaches back: who slows down for minutes has to be
#: told within seconds, and a third as many tell endpoints slow that are not (docs/gorgo-ms.md, Failures). And
#: the fewest that make evidence, weighed as they fade: some 47 of an endpoint that is new.
_EVIDENCE_MEMORY, _LEAST_EVIDENCE = 30.0, 24.0
#: Samples of an endpoint that count as evidence at once, and in each second: requests that wait and run
#: together are delayed together, by a process that stalls as by a prompt that none of them foresaw.
_AT_ONCE, _IN_A_SECOND = 2.0, 2.0
#: Standard errors by which the evidence must be beyond equal.
_SIGNIFICANT = 3.0
#: Samples of one endpoint between two judgements of it.
_JUDGED_EVERY = 3
#: Samples of the whole fleet, two a request, after which one that was told slow and sent none is judged anew,
#: and a class of which none came believes half of what it had learned: where load is low they are chosen no
#: more, and nothing else would ever say that they are well again.
_FORGIVEN_AFTER = 1000


class _Class:
    """The two lines of one engine class."""

    __slots__ = ("decode", "last", "prefill", "refused", "rows", "slots")

    def __init__(self, prior: Rates) -> None:
        self.prefill = Line(prior.prefill_base_ms, prior.prefill_ms_per_token, _PREFILL_DESIGN)
        self.decode = Line(prior.decode_base_ms, prior.decode_ms_per_request, _DECODE_DESIGN)
        self.refused = 0
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


@dataclass(frozen=True, slots=True)
class ClassRates:
    """One class' rates as shown to people.

    Attributes:
        rates: in force.
        prefill_samples: first tokens learned from.
        decode_samples: answers learned from.
        refused: samples that no engine gives.
        state: what they rest on.
        slow: endpoints found slower than the class, or than they were if alone in it, with their factor.
    """

    rates: Rates
    prefill_samples: int
    decode_samples: int
    refused: int
    state: State
    slow: Mapping[str, float]


class RateTable:
    """Rates by slot.

    Args:
        priors: by engine class, before the built-in ones.
    """

    def __init__(self, priors: Mapping[str, Rates] | None = None) -> None:
        self._priors = dict(priors or {})
        self._classes: dict[str, _Class] = {}
        self._of: dict[int, str] = {}
        self._block = np.ones((len(Rates.__slots__), 0), np.float64)
        self._changed: set[str] = set()  # classes whose rates are not in the block yet
        # How an endpoint's times compare with its class' word, as logarithms that fade: weight of the
        # samples, their mean, the sum of squares around it, and the factor that follows.
        # Lists: they are read and written one by one, where an array's element costs an object.
        self._weight: list[float] = []
        self._open: list[float] = []  # samples that may count, as of
        self._open_s: list[float] = []  # that time
        self._mean: list[float] = []
        self._square: list[float] = []
        self._factor = np.zeros(0, np.float64)
        self._slow: set[int] = set()  # endpoints whose factor is not 1
        self._seen = 0  # samples of all endpoints
        self._last: dict[int, int] = {}  # that number at an endpoint's last sample
        self._samples: dict[int, int] = {}

    def resize(self, capacity: int) -> None:
        """Make room for slots below ``capacity``."""
        self._block = grown(self._block, capacity, 1.0)
        for column in (self._weight, self._mean, self._square, self._open, self._open_s):
            column.extend([0.0] * (capacity - len(column)))
        self._factor = grown(self._factor, capacity, 1.0)

    def assign(self, slot: int, engine_class: str) -> None:
        """The slot's endpoint is of this class; what was known of it as an endpoint is forgotten."""
        self.forget(slot)
        known = self._classes.get(engine_class)
        if known is None:
            known = self._classes[engine_class] = _Class(self._prior(engine_class))
        self._of[slot] = engine_class
        known.set_slots([*known.slots, slot])
        self._show(known)

    def forget(self, slot: int) -> None:
        """Another process, or none, is behind the slot; its class keeps what it learned."""
        name = self._of.pop(slot, None)
        if name is not None:
            known = self._classes[name]
            known.set_slots([other for other in known.slots if other != slot])
        self._forget_evidence(slot)

    def block(self) -> NDArray[np.float64]:
        """``[4, capacity]`` in the order of `Rates`. Not to be written; valid until the next call."""
        if self._changed:
            for name in self._changed:
                self._show(self._classes[name])
            self._changed.clear()
        return self._block

    def of(self, slot: int) -> Rates:
        """The slot's rates."""
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
    ) -> bool:
        """A first token came.

        Args:
            slot: who sent it.
            ended_s: when the request was over, on one clock for all.
            requests: prefills that it waited for, its own included.
            tokens: uncached tokens of them together, its own included.
            ttft_ms: time to first token without the network's part.
            busy: requests beside it when it was sent; the more, the less the sample counts.

        Returns:
            False for a time that no engine gives: refused and counted.
        """
        known = self._known(slot)
        if known is None:
            return False
        if not 0.0 < ttft_ms <= _LONGEST_TTFT_MS or tokens < 0.0 or requests <= 0.0:
            known.refused += 1
            return False
        error = known.prefill.observe(requests, max(tokens, 1.0), ttft_ms, 1.0 / (1.0 + busy))
        self._compare(slot, known, error, ended_s)
        return True

    def observe_decode(self, slot: int, *, ended_s: float, beside: float, itl_ms: float) -> bool:
        """An answer ended.

        Args:
            slot: who sent it.
            ended_s: when it was over, on one clock for all.
            beside: answers that shared the batch with it.
            itl_ms: mean time between its tokens.

        Returns:
            False for a time that no engine gives: refused and counted.
        """
        known = self._known(slot)
        if known is None:
            return False
        if not 0.0 < itl_ms <= _LONGEST_ITL_MS or beside < 0.0:
            known.refused += 1
            return False
        error = known.decode.observe(1.0, max(beside, 0.1), itl_ms)
        self._compare(slot, known, error, ended_s)
        return True

    def describe(self, addresses: Mapping[int, str]) -> dict[str, ClassRates]:
        """By engine class, for people; ``addresses`` by slot."""
        rows: dict[str, ClassRates] = {}
        for name, known in self._classes.items():
            if not known.slots:
                continue
            state = State.MEASURED if known.prefill.samples + known.decode.samples else State.PRIORS
            if known.prefill.at_bound or known.decode.at_bound:
                state = State.AT_BOUND
            slow = {
                addresses[slot]: float(self._factor[slot]) for slot in known.slots if self._factor[slot] > 1.0
            }
            rows[name] = ClassRates(
                known.rates, known.prefill.samples, known.decode.samples, known.refused, state, slow
            )
        return rows

    def _prior(self, engine_class: str) -> Rates:
        if engine_class in self._priors:
            return self._priors[engine_class]
        name = engine_class.lower()
        return next((rates for part, rates in PRIORS.items() if part in name), DEFAULT_PRIOR)

    def _known(self, slot: int) -> _Class | None:
        name = self._of.get(slot)
        return None if name is None else self._classes[name]

    def _compare(self, slot: int, known: _Class, error: float, now_s: float) -> None:
        """Add to the evidence on one endpoint, and judge it now and then."""
        counts = self._counts(slot, now_s)
        keep = 1.0 - counts / _EVIDENCE_MEMORY
        log_ratio = math.log(max(1.0 + error, 0.02))
        weight = keep * self._weight[slot] + counts
        if weight:
            away = log_ratio - self._mean[slot]
            self._square[slot] = keep * self._square[slot] + counts * away * away * (1.0 - counts / weight)
            self._mean[slot] += counts * away / weight
            self._weight[slot] = weight
        samples = self._samples[slot] = self._samples.get(slot, 0) + 1
        self._seen += 1
        self._last[slot] = known.last = self._seen
        if samples % _JUDGED_EVERY == 0:
            self._judge(slot, known)
        self._changed.add(self._of[slot])
        if self._slow:
            self._forgive()
        if self._seen % _FORGIVEN_AFTER == 0:
            self._doubt_unheard_classes()

    def _counts(self, slot: int, now_s: float) -> float:
        """How much a sample counts that comes now, 0..1."""
        left, since_s = self._open[slot], now_s - self._open_s[slot]
        if since_s > 0.0:
            left = min(left + since_s * _IN_A_SECOND, _AT_ONCE)
            self._open_s[slot] = now_s
        counts = min(left, 1.0)
        self._open[slot] = left - counts
        return counts

    def _forgive(self) -> None:
        """Judge anew those who were told slow and have not been heard of for long."""
        for slot in [slot for slot in self._slow if self._seen - self._last[slot] >= _FORGIVEN_AFTER]:
            self._forget_evidence(slot)
            self._changed.add(self._of[slot])

    def _doubt_unheard_classes(self) -> None:
        """Bring those of which nothing was heard for long halfway back to their priors."""
        for name, known in self._classes.items():
            if self._seen - known.last >= _FORGIVEN_AFTER:
                known.prefill.halve()
                known.decode.halve()
                self._changed.add(name)

    def _forget_evidence(self, slot: int) -> None:
        self._samples.pop(slot, None)
        self._last.pop(slot, None)
        self._weight[slot] = self._mean[slot] = self._square[slot] = 0.0
        self._set_factor(slot, 1.0)

    def _judge(self, slot: int, known: _Class) -> None:
        """Whether the endpoint is slow among its equals: beyond doubt, and by enough to matter.

        One that has no equals is compared with what its class has learned of it over a longer time: slow is
        then what has become slower. The factor goes as the class learns that, too. Equals of whom little is
        known yet say nothing.
        """
        weights, means, weight = self._weight, self._mean, self._weight[slot]
        if weight < _LEAST_EVIDENCE:
            return
        equals = [
            means[other] for other in known.slots if other != slot and weights[other] >= _LEAST_EVIDENCE
        ]
        if not equals and len(known.slots) > 1:
            return
        beyond = means[slot] - (_median(equals) if equals else 0.0)
        error = math.sqrt(self._square[slot]) / weight
        if slot in self._slow:
            slow = beyond > math.log(_EQUAL)
        else:
            slow = beyond > math.log(_SLOW) and beyond - _SIGNIFICANT * error > math.log(_EQUAL)
        self._set_factor(slot, min(math.exp(beyond), _SLOWEST) if slow else 1.0)

    def _set_factor(self, slot: int, factor: float) -> None:
        self._factor[slot] = factor
        (self._slow.discard if factor == 1.0 else self._slow.add)(slot)

    def _show(self, known: _Class) -> None:
        prefill, decode, rows = known.prefill, known.decode, known.rows
        values = np.array((prefill.base, prefill.slope, decode.base, decode.slope))[:, None]
        self._block[:, rows] = values * self._factor[rows] if self._slow else values


def _median(values: list[float]) -> float:
    """The middle of them, or between its two neighbours: of few values, for less than a call of NumPy's."""
    values.sort()
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2.0
