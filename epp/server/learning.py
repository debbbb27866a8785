"""Learned decisions and shadow scoring, put together from the configuration.

Owns which parts there are: a model file is watched where a policy, or one in shadow, uses a model.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.schedule.model_watch import ModelWatch
from epp.server.files import WatchedFile
from epp.server.learned import ModelFeed
from epp.server.shadow import Shadow, shadows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.server.metrics import Metrics
    from epp.server.tasks import Tasks

log = logging.getLogger(__name__)


class Learning:
    """All that learns or watches beside the picker.

    Args:
        config: the configuration.
        picker: gets the models.
        metrics: counted into.
        clock: the time.
        source: name of the configuration file, for errors.
        base: folder that the model file is relative to.

    Raises:
        ConfigError: a policy in shadow is not one, or a model file is of no use to anybody.
    """

    def __init__(
        self, config: Config, picker: Picker, metrics: Metrics, clock: Clock, source: str, *, base: Path
    ) -> None:
        #: To be told of every decision, on the request path: they only take note.
        self.observers: list[Callable[[Decision], None]] = []
        name = config.policy.model_file
        self._model_file = base / name if name else None
        #: Takes contents of the model file; None where no policy uses a model.
        self.feed: ModelFeed | None = None
        self._shadow = Shadow(
            shadows(config.shadow, source),
            lambda: self.feed.model if self.feed is not None else None,
            tie_band=config.policy.tie_band,
        )
        if config.shadow:
            self.observers.append(self._shadow.decided)
            metrics.show("shadow", self._shadow)
        takers: list[tuple[Lodestar, Callable[[Lodestar], None]]] = []
        for policies, take in (([picker.policy], picker.replace_policy), (
            self._shadow.policies, self._shadow.replace_policy
        )):  # fmt: skip
            takers += [(policy, take) for policy in policies if isinstance(policy, Lodestar)]
        self._watch_model(config, takers, metrics, clock, source)

    def _watch_model(
        self,
        config: Config,
        takers: list[tuple[Lodestar, Callable[[Lodestar], None]]],
        metrics: Metrics,
        clock: Clock,
        source: str,
    ) -> None:
        if not takers:
            if self._model_file:
                fix = "policy.name: lodestar, or lodestar in shadow"
                raise ConfigError(source, "policy.model_file", "no policy uses a model", fix)
            return
        if not self._model_file:
            log.warning("policy.model_file is not set: lodestar decides by its heuristic alone")
        watch = ModelWatch(config.policy.model_max_age_s)
        self.feed = ModelFeed(takers, watch, metrics, clock, str(self._model_file or ""))
        self.observers += [self.feed.decided, count_by(metrics)]
        metrics.show("model", self.feed)

    def files(self) -> list[WatchedFile]:
        """The model file, where there is one."""
        if self.feed is None or not self._model_file:
            return []
        return [WatchedFile(self._model_file, self.feed.content, self.feed.fault)]

    def start(self, tasks: Tasks) -> None:
        """Start what goes on beside the requests."""
        if self.feed is not None:
            tasks.start("check the model", self.feed.run())
        if self._shadow.policies:
            tasks.start("score in shadow", self._shadow.run())


def count_by(metrics: Metrics) -> Callable[[Decision], None]:
    """Make an observer that counts decisions of a learned policy by what decided, read from their terms."""
    words = ("model", *FALLBACKS[1:])
    series = [metrics.value("epp_learned_decisions_total", word) for word in words]
    explored = metrics.value("epp_learned_decisions_total", "explored")

    def decided(decision: Decision) -> None:
        terms, chosen = decision.ranking.terms, decision.chosen
        if "fallback" in terms:
            found = explored if terms["explored"][chosen] else series[int(terms["fallback"][chosen])]
            found.value += 1.0

    return decided
