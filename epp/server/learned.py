"""The reward model at run time, in force and in shadow, put together from the configuration.

A good file replaces the policies' model at once, a bad one changes nothing; a model that is too old or of
other data is withdrawn. A policy is replaced as a whole between two decisions, so that none sees half a
model.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.records.model_files import parse_reward_model
from epp.schedule.model_watch import ModelWatch
from epp.server.files import WatchedFile, applying
from epp.server.shadow import Shadow, shadows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision
    from epp.schedule.picker import Picker
    from epp.server.metrics import Metrics
    from epp.server.process import Tasks

    #: A policy, and who takes it when it changes.
    Taker = tuple[Lodestar, Callable[[Lodestar], None]]

log = logging.getLogger(__name__)

#: After so long without a new reward model the heuristic decides.
MODEL_MAX_AGE_S = 21_600.0

CHECK_S = 1.0
#: Decisions looked at in each check: enough to notice within a minute, too few to cost anything.
PER_CHECK = 8


class Learning:
    """Learned decisions and shadow scoring.

    Args:
        config: the configuration.
        picker: gets the models.
        metrics: counted into.
        clock: the time.
        source: name of the configuration file, for errors.
        base: folder that the model file is relative to.

    Attributes:
        observers: called with every decision, on the request path: they only take note.
        feed: takes contents of the model file; None where no policy uses a model.

    Raises:
        ConfigError: a policy in shadow is not one, or a model file is of no use to anybody.
    """

    def __init__(
        self, config: Config, picker: Picker, metrics: Metrics, clock: Clock, source: str, *, base: Path
    ) -> None:
        name = config.policy.model_file
        self._file = base / name if name else None
        self._metrics = metrics
        self.observers: list[Callable[[Decision], None]] = []
        self.feed: ModelFeed | None = None
        self._shadow = Shadow(shadows(config.shadow, source), tie_band=config.policy.tie_band)
        if config.shadow:
            self.observers.append(self._shadow.decided)
            metrics.show("shadow", self._shadow)
        takers: list[Taker] = []
        if isinstance(picker.policy, Lodestar):
            takers.append((picker.policy, picker.replace_policy))
        shadows_ = (account.policy for account in self._shadow.accounts)
        takers += [
            (policy, self._shadow.replace_policy) for policy in shadows_ if isinstance(policy, Lodestar)
        ]
        if takers:
            if self._file is None:
                log.warning("policy.model_file is not set: lodestar decides by its heuristic alone")
            watch = ModelWatch(MODEL_MAX_AGE_S)
            self.feed = ModelFeed(takers, watch, clock, str(self._file or ""))
            self.observers += [self.feed.decided, count_by(metrics)]
            metrics.show("model", self.feed)
        elif self._file:
            fix = "policy.name: lodestar, or lodestar in shadow"
            raise ConfigError(source, "policy.model_file", "no policy uses a model", fix)

    def files(self) -> list[WatchedFile]:
        """List the model file, where there is one."""
        if self.feed is None or self._file is None:
            return []
        source = str(self._file)

        def parse(text: bytes | None) -> RewardModel | None:
            return None if text is None else parse_reward_model(text, source)

        kept = "the last good model stays"
        file = applying(self._file, "model", self._metrics, parse=parse, apply=self.feed.apply, kept=kept)
        return [file]

    def start(self, tasks: Tasks) -> None:
        """Start what goes on beside the requests."""
        if self.feed is not None:
            tasks.start("check the model", self.feed.run())
        if self._shadow.accounts:
            tasks.start("score in shadow", self._shadow.run())


class ModelFeed:
    """Puts models in force and withdraws them.

    Args:
        takers: policies that use the model.
        watch: says whether a model may be used.
        clock: the time.
        source: the file's name.

    Attributes:
        withdrawn: why the model is not used, ``""`` when it is or when there is none.
    """

    def __init__(self, takers: Sequence[Taker], watch: ModelWatch, clock: Clock, source: str) -> None:
        self._takers = list(takers)
        self._watch, self._clock, self._source = watch, clock, source
        self._recent: deque[Decision] = deque(maxlen=PER_CHECK)
        self.withdrawn = ""

    @property
    def model(self) -> RewardModel | None:
        """The last good content of the file."""
        return self._watch.model

    @property
    def age_s(self) -> float:
        """Time since the model's training."""
        model = self._watch.model
        return max(self._clock.wall_s() - model.trained_at_s, 0.0) if model is not None else math.nan

    def apply(self, model: RewardModel | None) -> None:
        """Put a model in force; None for a file that is gone, which withdraws it."""
        self._watch.watch(model)
        self._recent.clear()
        self._replace_policies()
        if model is None:
            log.info("no reward model in %s: the heuristic decides", self._source)
        else:
            words = "reward model %s: round %d, trained on %d of %d requests"
            log.info(words, model.version, model.round, model.samples, model.seen)

    def decided(self, decision: Decision) -> None:
        """Take note of a decision, to be looked at later."""
        self._recent.append(decision)

    def check(self) -> None:
        """Look at the model's age and at recent decisions."""
        while self._recent:
            self._watch.seen(self._recent.popleft())
        self._replace_policies()

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()

    def _replace_policies(self) -> None:
        withdrawn = self._watch.withdrawn(self._clock.wall_s())
        if withdrawn != self.withdrawn:
            self.withdrawn = withdrawn
            if withdrawn:
                where = ", ".join(self._watch.mismatched())
                log.warning("the reward model is withdrawn: %s%s", withdrawn, f" ({where})" if where else "")
            else:
                log.info("the reward model may be used again")
        for place, (policy, take) in enumerate(self._takers):
            changed = replace(policy, model=self._watch.model, withdrawn=withdrawn)
            if changed != policy:
                take(changed)
                self._takers[place] = (changed, take)


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
