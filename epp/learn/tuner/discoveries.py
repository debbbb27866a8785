"""Promotions across an endless row of candidates: how strong evidence must be for the next one.

Owns the levels of e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024): candidate
``t`` is promoted when its e-value reaches ``1 / level(t)``,
``level(t) = alpha * gamma(t) * (promotions so far + 1)``, with ``gamma`` summing to 1. Of all promotions then
at most a share ``alpha`` is expected to be false, whatever the candidates have to do with each other: a
search that learns from its trials makes them depend, which LORD++ on p-values would not allow. Pure.
"""

from __future__ import annotations

#: gamma(t) = t ** -EXPONENT / zeta(EXPONENT). Low, so that the row can be long: the tenth candidate still
#: gets 1.1 % of alpha, the hundredth 0.07 %.
_EXPONENT = 1.2
_ZETA = 5.591582441177751


def gamma(number: int) -> float:
    """Share of the error budget that candidate ``number`` (from 1) gets."""
    if number < 1:
        raise ValueError(f"candidates are counted from 1, not {number}")
    return float(number**-_EXPONENT / _ZETA)


def level(alpha: float, number: int, promotions: int) -> float:
    """Level at which candidate ``number`` is tested after so many promotions."""
    return min(alpha * gamma(number) * (promotions + 1), 1.0)
