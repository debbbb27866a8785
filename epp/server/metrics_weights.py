"""Metrics of the weights: in force, of a trial's second arm, and which arm decided how much.

Owns names and words; the values are those of the picker's `WeightBook`. The kind of a trial and its arm are
labels, its name is not: there is always another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from epp.decide.weights import NO_ARM
from epp.tuner.plan import CANDIDATE, INCUMBENT, PREVIOUS, Split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from epp.decide.weights import WeightBook


def weight_families(book: WeightBook) -> Iterator[Metric]:
    """All of it, as one scrape sees it."""
    current, plan = book.current, book.plan
    weights = GaugeMetricFamily("epp_weight", "Weight in force.", labels=["name", "source"])
    for name, value in current.values.items():
        weights.add_metric([name, current.sources[name]], value)
    yield weights
    version = GaugeMetricFamily(
        "epp_weights_info", "Policy, and version of the weights in force.", labels=["policy", "version"]
    )
    version.add_metric([book.policy, current.version], 1.0)
    yield version
    yield GaugeMetricFamily(
        "epp_tuner_written_timestamp_seconds",
        "Unix time at which the tuner wrote the weights file in force; 0 without one, or by hand.",
        value=plan.written_wall_s,
    )
    yield CounterMetricFamily(
        "epp_tuner_ended_for_fleet_total",
        "Trials that the tuner of this file ended because the whole fleet was worse than before them.",
        value=float(plan.ended_for_fleet),
    )
    yield from _trial(book)
    decided = CounterMetricFamily(
        "epp_arm_decisions_total",
        "Decisions during trials, by arm; none: the request belongs to neither.",
        labels=["arm"],
    )
    for arm in (INCUMBENT, CANDIDATE, PREVIOUS, NO_ARM):
        decided.add_metric([arm], float(book.decided.get(arm, 0)))
    yield decided


def _trial(book: WeightBook) -> Iterator[Metric]:
    trial = book.plan.trial
    share = GaugeMetricFamily(
        "epp_trial_share",
        "Share of the sessions (split) or of the time (switchback) that the trial's second arm gets.",
        labels=["kind", "arm"],
    )
    until = GaugeMetricFamily(
        "epp_trial_until_timestamp_seconds",
        "Unix time at which the trial in the weights file ends if its tuner does not move it on.",
        labels=["kind", "arm"],
    )
    weights = GaugeMetricFamily(
        "epp_trial_weight", "Weight of the trial's second arm.", labels=["name", "arm"]
    )
    if trial is not None:
        kind, part = ("split", trial.share) if isinstance(trial, Split) else ("switchback", 0.5 / trial.every)
        share.add_metric([kind, trial.arm], part)
        until.add_metric([kind, trial.arm], trial.valid_until_wall_s)
        for name, value in book.arm_weights.values.items():
            weights.add_metric([name, trial.arm], value)
    yield from (share, until, weights)
