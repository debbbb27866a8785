"""The reward model at run time, and shadow scoring: what other policies would have done with live decisions.

A good model file replaces the policies' model at once, a bad one changes nothing; a model that is too old or
of other data is withdrawn. A policy is replaced as a whole between two decisions, so that none sees half a
model. Policies in shadow have no say: they score between requests, a few decisions a second, the newest
first; one that fails is counted and goes on being asked.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from epp.errors import ConfigError, gather, raise_all
from epp.feeds.files import AppliedFile
from epp.policies.lodestar import FALLBACKS, Lodestar
from epp.policies.registry import create
from epp.records.model_files import parse_reward_model
from epp.schedule.model_watch import ModelWatch
from epp.schedule.second_opinion import ask, is_opinion, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from epp.clock import Clock
    from epp.config.schema import Config
    from epp.feeds.files import WatchedFile
    from epp.feeds.lead import LeadFeed
    from epp.metrics.metrics import Metrics
    from epp.policies.base import Policy
    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision
    from epp.schedule.scheduler import Scheduler
    from epp.threads import Tasks

    #: A policy, and who takes it when it changes.
    Taker = tuple[Lodestar, Callable[[Lodestar], None]]

log = logging.getLogger(__name__)

#: After so long without a new reward model the heuristic decides.
MODEL_MAX_AGE_S = 21_600.0

CHECK_S = 1.0
#: Decisions looked at in each check: enough to notice within a minute, too few to cost anything.
PER_CHECK = 8
#: Decisions a second that are scored in shadow, at most.
SHADOW_PER_S = 20.0
#: Decisions that wait for that: a burst is sampled, not stored.
_WAITING = 8
#: The mean of differences fades over so many decisions.
_HORIZON = 500.0


class Learning:
    """Learned decisions and shadow scoring.

    Args:
        config: the configuration.
        scheduler: gets the models.
        metrics: counted into.
        clock: the time.
        source: name of the configuration file, for errors.
        base: folder that the model file is relative to.

    Attributes:
        observers: called with every decision, on the request path: they only take note.
        feed: takes contents of the model file; None where no policy uses a model.
        shadow: scores live decisions.

    Raises:
        ConfigError: a policy in shadow is not one, or a model file is of no use to anybody.
    """

    def __init__(
        self, config: Config, scheduler: Scheduler, metrics: Metrics, clock: Clock, source: str, *, base: Path
    ) -> None:
        name = config.policy.model_file
        self._file = base / name if name else None
        self._metrics = metrics
        self.observers: list[Callable[[Decision], None]] = []
        self.feed: ModelFeed | None = None
        self.shadow = Shadow(shadows(config.shadow, source), tolerance=config.policy.tolerance)
        if config.shadow:
            self.observers.append(self.shadow.decided)
            metrics.show("shadow", self.shadow)
        takers: list[Taker] = []
        if isinstance(scheduler.policy, Lodestar):
            takers.append((scheduler.policy, scheduler.replace_policy))
        takers += [
            (account.policy, partial(setattr, account, "policy"))
            for account in self.shadow.accounts
            if isinstance(account.policy, Lodestar)
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

    def files(self, lead: LeadFeed | None) -> list[WatchedFile]:
        """List the model file, where there is one; ``lead`` says whose content counts."""
        if self.feed is None or self._file is None:
            return []
        source = str(self._file)

        def parse(text: bytes | None) -> RewardModel | None:
            return None if text is None else parse_reward_model(text, source)

        checked = parse if lead is None else lead.checked("model", parse)
        kept = "the last good model stays"
        apply, metrics = self.feed.apply, self._metrics
        # The learner removes it while the heuristic shall decide.
        return [AppliedFile(self._file, "model", metrics, parse=checked, apply=apply, kept=kept, may_go=True)]

    def start(self, tasks: Tasks) -> None:
        """Start what goes on beside the requests."""
        if self.feed is not None:
            tasks.start("check the model", self.feed.run())
        if self.shadow.accounts:
            tasks.start("score in shadow", self.shadow.run())


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


@dataclass(slots=True)
class Account:
    """What came of one policy in shadow.

    Attributes:
        policy: the policy.
        counts: live decisions by whether it would have chosen the same endpoint, or failed.
        difference_s: mean latency, estimated at learned rates, of its decisions less that of the live
            decisions.
        seen: estimates in that mean.
    """

    policy: Policy
    counts: dict[str, int] = field(default_factory=lambda: {"agreed": 0, "differed": 0, "failed": 0})
    difference_s: float = 0.0
    seen: int = 0

    def score(self, decision: Decision, tolerance: float) -> None:
        """Ask the policy about a decision."""
        try:
            chosen, difference_ms = ask(decision, self.policy, tolerance)
        except Exception:  # a policy in shadow may be anybody's; it must not reach users
            if not self.counts["failed"]:
                log.exception("%s cannot score a live decision in shadow", self.policy.name)
            self.counts["failed"] += 1
            return
        self.counts["agreed" if chosen == decision.chosen else "differed"] += 1
        self.seen += 1
        self.difference_s += (difference_ms / 1e3 - self.difference_s) / min(float(self.seen), _HORIZON)


class Shadow:
    """Scores live decisions.

    Args:
        policies: that are asked.
        tolerance: relative band of equals, of policies that have one.
    """

    def __init__(self, policies: Iterable[Policy], *, tolerance: float = 0.0) -> None:
        self._tolerance = tolerance
        self.accounts = [Account(quiet(policy)) for policy in policies]
        self._waiting: deque[Decision] = deque(maxlen=_WAITING)

    def decided(self, decision: Decision) -> None:
        """Take note of a live decision; what exploration drew is nobody's opinion and is passed over."""
        if is_opinion(decision):
            self._waiting.append(decision)

    async def run(self) -> None:
        """Score for ever."""
        while True:
            await asyncio.sleep(1.0 / SHADOW_PER_S)
            if self._waiting:
                await self.score(self._waiting.pop())

    async def score(self, decision: Decision) -> None:
        """Score a decision, one policy at a time, so that requests come in between."""
        for account in self.accounts:
            await asyncio.sleep(0)
            account.score(decision, self._tolerance)


def shadows(names: Sequence[str], source: str) -> list[Policy]:
    """Make the policies of a configuration's list, with their defaults.

    Raises:
        ConfigError: one is not registered, or named twice.
    """
    made: list[Policy] = []
    errors: list[ConfigError] = []
    for place, name in enumerate(names):
        with gather(errors):
            made.append(create(name, source=source, key=f"shadow[{place}]"))
            if name in names[:place]:
                raise ConfigError(source, f"shadow[{place}]", f"{name} is named twice", "name each once")
    raise_all(errors)
    return made
