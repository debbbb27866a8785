"""Which endpoints are slower than their equals, and by what factor.

Owns the evidence, by slot: the errors of a class' rates in what its endpoints did, as logarithms, fading.
Equals are set apart only beyond doubt, because wrong relative rates between them cost more than right ones
gain (source [P]). Rules:

* One that has no equals is compared with what its class learned of it over a longer time: slow is then what
  has become slower, and its factor goes as the class learns that, too. Equals of whom little is known say
  nothing.
* Requests that wait and run together are delayed together, by a process that stalls as by a prompt that none
  of them foresaw: what ends within a second counts as a few samples, however much it is.
* Slow is who is slow after first tokens, too, where that is known: wrong round trips look like
  a slow engine until the first token, and not after it.
* Who was found slow and has not been heard of for long counts as equal again: it is chosen no more where load
  is low, and nothing else would ever say that it is well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.signals.slots import grown

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Who is slow, by slot."""

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
