"""Metrics of learned decisions: which model is in force, how old, and who really decided.

Owns names and words. What decided is read from the terms that a decision carries anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.policies.lodestar import FALLBACKS, WITHDRAWN
from epp.server.metrics_hot import Counters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from epp.clock import Clock
    from epp.decide.records import Decision
    from epp.server.learned import ModelFeed

_MODEL, _EXPLORED = "model", "explored"
#: Words for what decided: the model, a draw of exploration, or why it was the heuristic.
DECIDED_BY = (_MODEL, _EXPLORED, *FALLBACKS[1:])


class LearnedMetrics:
    """Counts decisions of the learned policy."""

    def __init__(self) -> None:
        self.decisions = Counters(
            "epp_learned_decisions_total",
            "Decisions of a learned policy by what decided: the model, exploration, or the reason for which"
            " the heuristic did.",
            ("by",),
        )
        self.candidates = Counters(
            "epp_learned_candidates_total",
            "Candidates of these decisions, by whether the model judged them, or why not.",
            ("by",),
        )
        self._by = [self.decisions.child(name) for name in DECIDED_BY]
        self._of = [self.candidates.child(name or _MODEL) for name in FALLBACKS]

    def decided(self, decision: Decision) -> None:
        """A decision, of whatever policy."""
        terms, chosen = decision.ranking.terms, decision.chosen
        fallback = terms.get("fallback")
        if fallback is None:
            return
        code = int(fallback[chosen])
        place = 1 if terms["explored"][chosen] else code + 1 if code else 0
        self._by[place].inc()
        first = int(fallback[0])
        if (fallback == fallback[0]).all():  # nearly always
            self._of[first].inc(float(len(fallback)))
            return
        for reason, count in enumerate(np.bincount(fallback.astype(np.intp))):
            self._of[reason].inc(float(count))

    def families(self) -> tuple[Counters, ...]:
        """For the registry."""
        return self.decisions, self.candidates


class ModelCollector(Collector):
    """Shows the model in force.

    Args:
        feed: holds it.
        clock: the time.
    """

    def __init__(self, feed: ModelFeed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock

    def collect(self) -> Iterator[Metric]:
        """One scrape; without a model its numbers are absent."""
        model = self._feed.model
        info = GaugeMetricFamily(
            "epp_reward_model_info", "The last good reward model.", labels=["version", "heads"]
        )
        told = (
            ("trained_timestamp_seconds", "Unix time of its training."),
            ("age_seconds", "Time since its training."),
            ("training_samples", "Requests that it was trained on."),
            ("seen_samples", "Requests that its learner had seen by then."),
            ("round", "Number of its training."),
        )
        families = [GaugeMetricFamily(f"epp_reward_model_{name}", text, labels=[]) for name, text in told]
        withdrawn = GaugeMetricFamily(
            "epp_reward_model_withdrawn", "1 for the reason why it is not used.", labels=["reason"]
        )
        for reason in WITHDRAWN[1:]:
            withdrawn.add_metric([reason], float(self._feed.withdrawn == reason))
        if model is not None:
            info.add_metric([model.version, "+".join(model.heads)], 1.0)
            age_s = max(self._clock.wall_s() - model.trained_at_s, 0.0)
            numbers = (model.trained_at_s, age_s, model.samples, model.seen, model.round)
            for family, value in zip(families, numbers, strict=True):
                family.add_metric([], float(value))
        yield from (info, *families, withdrawn)
