"""The chance that each endpoint had to be chosen, over all draws of a decision.

Draws are independent: the policy's own (`epp.policies.drawn`), slow start's admissions and the one among
equals (`epp.schedule.select`). Pure, and off the request path: for records and for those who learn of them.

With slow start every endpoint i is admitted with its share s_i, and where nobody is, everybody is. What a
competitor j that may be absent does to a chance is a factor ``1 - s_j + s_j * x``, with x what it does when
admitted: integrals over products of these are sums over all sets that may be admitted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from epp.policies.drawn import Explored, Pair, Softmax
from epp.schedule.select import band_limit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from epp.policies.drawn import Drawn

    Floats = NDArray[np.float64]

# Gauss-Legendre nodes on [0, 1]: exact for polynomials up to degree 63, i.e. up to 64 tied endpoints; beyond
# that the integrand is so flat that the error is far below what a record's digits hold.
_NODES, _WEIGHTS = (values * 0.5 for values in np.polynomial.legendre.leggauss(32))
_NODES = _NODES + 0.5

# Trapezoids over the logarithm of time: as the integrand is analytic, the error is about e^(-pi^2 / step).
_STEP = 0.4
#: From where a competitor has almost surely not come to where it almost surely has, in steps about its mean.
_FROM, _TO = -75, 12
#: Values of an integrand that are held at once.
_AT_ONCE = 1_000_000


def chances(
    costs: Floats,
    shares: Floats | None,
    *,
    tie_band: float,
    drawn: Drawn | None = None,
) -> Floats:
    """Chance of each endpoint to be chosen, over the draws; sums to 1.

    Args:
        costs: of each, non-empty.
        shares: slow-start share of each in 0..1, None when nobody is warming up.
        tie_band: relative width of the band of equals.
        drawn: what the policy drew among; None for a policy that did not, whose costs say it all.
    """
    share = None if shares is None or bool((shares >= 1.0).all()) else np.clip(shares, 0.0, 1.0)
    match drawn:
        case Softmax():
            # Where the noise is lost in what counts as rounding, all are equal and the last draw decides.
            if drawn.width > band_limit(float(drawn.costs.min()), 0.0) - float(drawn.costs.min()):
                return _softmax(drawn, share)
            costs = drawn.costs
        case Pair():
            return _pair(drawn.load, share)
        case Explored():
            return _explored(drawn, share, tie_band)
    found: Floats = _cheapest(costs, share, tie_band)[0]
    return found


def _cheapest(costs: Floats, share: Floats | None, tie_band: float) -> Floats:
    """Chances by cost; in a second row the same times how many are then expected not to be admitted, of all.

    Without warming endpoints: equal shares within the band. With them: condition on the cheapest admitted
    endpoint k (everyone cheaper was not admitted); of the m admitted rivals in k's band the chance is
    E[1/(1+m)] = integral over t in 0..1 of prod_j (1 - s_j + s_j t), for independent admissions s_j. Where
    nobody is admitted, nobody counts as missing.
    """
    result = np.zeros((2, len(costs)))
    nobody_yet = 1.0
    if share is not None:
        order = np.lexsort((np.arange(len(costs)), costs))
        for position, best in enumerate(order):
            if nobody_yet <= 0.0:
                break
            rest = order[position + 1 :]
            within = costs[rest] <= band_limit(float(costs[best]), tie_band)
            missing = position + float((1.0 - share[rest[~within]]).sum())
            weight = nobody_yet * float(share[best])
            _add_band(result, best, rest[within], share, weight=weight, missing=missing)
            nobody_yet *= 1.0 - share[best]
    if nobody_yet > 0.0:
        tied = (costs <= band_limit(float(costs.min()), tie_band)).astype(np.float64)
        result[0] += nobody_yet * (tied / tied.sum())
    return result


def _add_band(
    result: Floats,
    best: np.int64,
    rivals: NDArray[np.int64],
    share: Floats,
    *,
    weight: float,
    missing: float,
) -> None:
    """Spread ``weight``, the chance that ``best`` is the cheapest admitted, over it and its rivals."""
    if weight <= 0.0:
        return
    factors = 1.0 - share[rivals, None] * (1.0 - _NODES[None, :])  # one row per rival, one column per node
    product = factors.prod(axis=0)
    absent = (1.0 - share[rivals, None]) / factors
    lacking = missing + absent.sum(axis=0)
    result[0, best] += weight * float(_WEIGHTS @ product)
    result[1, best] += weight * float(_WEIGHTS @ (product * lacking))
    for row, rival in enumerate(rivals):
        # Given that this rival is admitted, `best` takes the place of a sure competitor: its factor is t.
        others = product / factors[row] * _NODES
        result[0, rival] += weight * share[rival] * float(_WEIGHTS @ others)
        result[1, rival] += weight * share[rival] * float(_WEIGHTS @ (others * (lacking - absent[row])))


def _explored(drawn: Explored, share: Floats | None, tie_band: float) -> Floats:
    """One drawn evenly from all is taken where it is admitted; where not, the cheapest of the others is."""
    cheapest, missing = _cheapest(drawn.costs, share, tie_band)
    taken = np.ones(len(cheapest)) if share is None else share + float((1.0 - share).prod()) + missing
    result: Floats = (1.0 - drawn.explore) * cheapest + drawn.explore / len(cheapest) * taken
    return result


def _pair(load: Floats, share: Floats | None) -> Floats:
    """Of n drawn in pairs, an admitted endpoint wins three ways.

    It is drawn with one that has more load or is not admitted (half with one of equal load); or, by symmetry
    one of the m admitted, with none of those drawn admitted: E[1/m] over all pairs that are absent, where
    1/m is the integral of ``exp(-m t)``.
    """
    count = len(load)
    if count == 1:
        return np.ones(1)
    everybody: Floats = _beaten(load, np.ones(count)) * 2.0 / (count * (count - 1))
    if share is None:
        return everybody
    absent = 1.0 - share
    times = np.exp(np.arange(_FROM, _TO) * _STEP)
    factors = absent[:, None] + share[:, None] * np.exp(-times)
    product, gone = factors.prod(axis=0), absent[:, None] / factors
    one = gone.sum(axis=0) - gone
    two = (one**2 - ((gone**2).sum(axis=0) - gone**2)) / 2.0
    neither = (product / factors * two) @ (np.exp(-times) * times * _STEP)
    wins = _beaten(load, share) + absent.sum() - absent + neither
    result: Floats = share * wins * 2.0 / (count * (count - 1)) + float(absent.prod()) * everybody
    return result


def _beaten(load: Floats, share: Floats) -> Floats:
    """Of the others, the sum of shares of those with more load, and half of those with the same."""
    order = np.argsort(load, kind="stable")
    ordered, sums = load[order], np.concatenate(([0.0], np.cumsum(share[order])))
    below = sums[np.searchsorted(ordered, load, "left")]
    up_to = sums[np.searchsorted(ordered, load, "right")]
    result: Floats = sums[-1] - up_to + (up_to - below - share) / 2.0
    return result


def _softmax(drawn: Softmax, share: Floats | None) -> Floats:
    """Softmax over those admitted.

    It is a race: everybody comes after a time that is exponential with the rate w_i, and the first is taken.
    P(i) = s_i * integral over t of w_i * exp(-w_i t) * prod_j (1 - s_j + s_j * exp(-w_j t)).
    """
    least = float(drawn.costs.min())
    rates = (least - drawn.costs) / drawn.width  # logarithms
    weights = np.array([math.exp(rate) for rate in rates.tolist()])  # as the noise: the same wherever it runs
    everybody: Floats = weights / weights.sum()
    if share is None:
        return everybody
    middles = np.unique(np.round(-rates / _STEP))
    nodes = np.unique(middles[:, None] + np.arange(_FROM, _TO)) * _STEP
    sure, first = share >= 1.0, np.zeros(len(rates))
    for part in np.array_split(nodes, 1 + nodes.size * len(rates) // _AT_ONCE):
        awaited = np.minimum(part[:, None] + rates, 700.0)  # beyond, it has come; and the exponential ends
        still = -np.exp(awaited)
        alone = np.where(sure, still, np.log1p(share * np.where(sure, 0.0, np.expm1(still))))
        others = alone.sum(axis=1, keepdims=True) - alone
        first += np.exp(awaited + still + others).sum(axis=0)
    result: Floats = share * first * _STEP + float((1.0 - share).prod()) * everybody
    result /= result.sum()
    return result
