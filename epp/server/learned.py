"""The reward model at run time: a good file replaces the policy's model at once, a bad one changes nothing.

Owns what of the model file is in force, here and in shadow, and takes a model away that is too old or of
other data. A policy is replaced as a whole between two decisions, so that no decision sees half a model.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from epp.config.reward_model import parse_reward_model
from epp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epp.clock import Clock
    from epp.policies.lodestar import Lodestar
    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision
    from epp.schedule.model_watch import ModelWatch
    from epp.server.metrics import Metrics

log = logging.getLogger(__name__)

CHECK_S = 1.0
#: Decisions looked at in each check: enough to notice within a minute, too few to cost anything.
PER_CHECK = 8


class ModelFeed:
    """Applies contents of the model file.

    Args:
        policies: each with who takes it when it changes: the picker's own, and one in shadow.
        watch: says whether a model may be used.
        metrics: counted into.
        clock: the time.
        source: the file's name.
    """

    def __init__(
        self,
        policies: Sequence[tuple[Lodestar, Callable[[Lodestar], None]]],
        watch: ModelWatch,
        metrics: Metrics,
        clock: Clock,
        source: str,
    ) -> None:
        self._policies = list(policies)
        self._watch, self._metrics, self._clock, self._source = watch, metrics, clock, source
        self._recent: deque[Decision] = deque(maxlen=PER_CHECK)
        self._withdrawn = ""

    @property
    def model(self) -> RewardModel | None:
        """The last good content of the file."""
        return self._watch.model

    @property
    def age_s(self) -> float:
        """Time since the model's training."""
        model = self._watch.model
        return max(self._clock.wall_s() - model.trained_at_s, 0.0) if model is not None else math.nan

    @property
    def withdrawn(self) -> str:
        """Why it is not used, ``""`` when it is or when there is none."""
        return self._withdrawn

    def content(self, text: bytes | None) -> None:
        """New content; None for a file that is gone, which withdraws the model."""
        try:
            model = None if text is None else parse_reward_model(text, self._source)
        except ConfigError as error:
            self._metrics.file_failed("model")
            log.error("%s; the last good model stays in force", error)  # noqa: TRY400
            return
        self._metrics.file_good("model", there=text is not None)
        self._watch.watch(model)
        self._recent.clear()
        self._apply()
        if model is None:
            log.info("no reward model in %s: the heuristic decides", self._source)
        else:
            words = "reward model %s: round %d, trained on %d of %d requests"
            log.info(words, model.version, model.round, model.samples, model.seen)

    def fault(self) -> None:
        """The file cannot be read, or `content` raised, which it never should."""
        self._metrics.file_failed("model")

    def decided(self, decision: Decision) -> None:
        """A decision was made; looked at later."""
        self._recent.append(decision)

    def check(self) -> None:
        """Look at the model's age and at recent decisions."""
        while self._recent:
            self._watch.seen(self._recent.popleft())
        self._apply()

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()

    def _apply(self) -> None:
        withdrawn = self._watch.withdrawn(self._clock.wall_s())
        if withdrawn != self._withdrawn:
            self._withdrawn = withdrawn
            if withdrawn:
                where = ", ".join(self._watch.mismatched())
                log.warning("the reward model is withdrawn: %s%s", withdrawn, f" ({where})" if where else "")
            else:
                log.info("the reward model may be used again")
        for place, (policy, take) in enumerate(self._policies):
            changed = replace(policy, model=self._watch.model, withdrawn=withdrawn)
            if changed != policy:
                take(changed)
                self._policies[place] = (changed, take)
