"""How many requests, and how many pairs of blocks, which effect needs. Arithmetic only.

TTFT is taken as lognormal; an effect is a relative change of a quantile.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def requests_per_arm(
    effect: float, sigma: float, *, q: float = 0.95, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Independent requests that each arm needs to tell a change of a quantile, looked at once.

    The logarithm of a sample quantile has variance ``q (1 - q) / (n f^2)`` with
    ``f = density(z_q) / sigma`` the density of the log latency at the quantile; two arms have twice that, and
    ``(z_(1 - alpha / 2) + z_power)^2`` of it must fit into the squared effect.

    Args:
        effect: relative change, e.g. 0.05.
        sigma: standard deviation of the log latency.
        q: the quantile.
        alpha: two-sided level.
        power: chance to see it.
    """
    density = _NORMAL.pdf(_NORMAL.inv_cdf(q)) / sigma
    z = _NORMAL.inv_cdf(1.0 - alpha / 2.0) + _NORMAL.inv_cdf(power)
    return math.ceil(2.0 * q * (1.0 - q) / density**2 * (z / effect) ** 2)


def exceedance_change(effect: float, sigma: float, *, q: float = 0.95) -> float:
    """Change of the share above a frozen threshold when the quantile at it changes by ``effect``.

    ``1 - q`` becomes ``1 - Phi(z_q - ln(1 + effect) / sigma)``: 5 % of p95 at sigma 0.8 are 0.7 points of the
    5 that exceed it, and 5 % less are 0.6.
    """
    shifted = _NORMAL.inv_cdf(q) - math.log1p(effect) / sigma
    return _NORMAL.cdf(_NORMAL.inv_cdf(q)) - _NORMAL.cdf(shifted)


def pairs_needed(
    effect: float,
    sigma: float,
    *,
    requests_per_block: float,
    spread: float = 1.0,
    level: float = 0.05,
    bound: float = 0.15,
    q: float = 0.95,
) -> float:
    """Pairs of blocks after which the wealth of `epp.tuner.betting` is expected to reach ``1 / level``.

    Growth per pair of the best stake ``s <= 0.96 / bound`` on a mean difference ``d`` with variance ``v``:
    ``s d - s^2 v / 2``. The mixture costs about ``ln 20 / 2`` on top.

    Args:
        effect: relative improvement of the quantile, e.g. 0.05.
        sigma: standard deviation of the log latency.
        requests_per_block: judged ones.
        spread: variance of a block's rate over that of independent requests; 2 to 4 where they burst.
        level: of the test, as `epp.tuner.discoveries.level` gives it.
        bound: of winsorising.
        q: the quantile.
    """
    gain = abs(exceedance_change(-abs(effect), sigma, q=q))
    variance = 2.0 * q * (1.0 - q) * spread / requests_per_block
    stake = min(gain / variance, 0.96 / bound)
    growth = stake * gain - 0.5 * stake**2 * variance
    return (-math.log(level) + 0.5 * math.log(20.0)) / growth
