"""Whether the world is still the one that the weights were found in.

Owns the comparison of two stretches of time: arrival rate, prompts, share of slow requests. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epp.learn.tuner.histogram import bin_of
from epp.learn.tuner.state import Features

if TYPE_CHECKING:
    from epp.learn.tuner.settings import Drift
    from epp.learn.tuner.tally import Baseline, Thresholds


def features(baseline: Baseline, thresholds: Thresholds) -> Features:
    """Features of a stretch of time in which the incumbent served; failures are no drift and left out."""
    limit = bin_of(thresholds.slow_ms)
    slow = sum(n for place, n in baseline.measure_ms.items() if place > limit) - baseline.failed
    requests = max(1, baseline.requests)
    return Features(
        weights_version=baseline.weights_version,
        rate_per_s=baseline.requests / max(baseline.lasted_s, 1.0),
        prompt_tokens=baseline.prompt_tokens / requests,
        slow_share=max(0, slow) / max(1, baseline.requests - baseline.failed),
    )


def drifted(before: Features, now: Features, settings: Drift) -> str:
    """What has changed, in words; empty where nothing has."""
    if now.weights_version != before.weights_version:
        return "other weights are in force than those that were frozen"
    for name, a, b in (
        ("arrival rate", before.rate_per_s, now.rate_per_s),
        ("mean prompt", before.prompt_tokens, now.prompt_tokens),
    ):
        if a > 0.0 and b > 0.0 and not 1.0 / settings.factor <= b / a <= settings.factor:
            return f"{name} is {b / a:.2f} times what it was"
    change = now.slow_share - before.slow_share
    if abs(change) > settings.slow_change:
        return f"share of slow requests moved from {before.slow_share:.3f} to {now.slow_share:.3f}"
    return ""
