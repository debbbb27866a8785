"""Shadow scoring: what other policies would have done with live decisions, without a say in them.

Owns the queue of decisions that wait to be scored and what became of them. Scoring is done between requests,
a few decisions a second, the newest first; a policy that fails is counted and goes on being asked. Nothing of
it is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from epp.errors import ConfigError, gather, raise_all
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp.schedule.decision import Basis
from epp.schedule.rerun import rerun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from epp.policies.base import Policy
    from epp.policies.reward_model import RewardModel
    from epp.schedule.decision import Decision

    _Judge = tuple[str, NDArray[np.float64], NDArray[np.bool_]]
    _Judges = list[_Judge]

log = logging.getLogger(__name__)

#: Decisions a second that are scored, at most.
PER_S = 20.0
#: Decisions that wait: a burst is sampled, not stored.
_WAITING = 8
#: The mean of differences fades over so many decisions.
_HORIZON = 500.0
_MS = 1e-3
_BY_RATES = GorgoMs()
_AS_MEASURED = dict.fromkeys(GorgoMs.weight_specs, 1.0)
#: Judges of a difference, the better first.
JUDGES = ("model", "gorgo-ms")


@dataclass(slots=True)
class Account:
    """What came of one policy in shadow.

    Attributes:
        policy: the policy.
        counts: live decisions by whether it would have picked the same endpoint, or failed.
        difference_s: by judge, mean estimated latency of its picks less that of the live picks.
        seen: by judge, estimates in that mean.
        logged: whether a failure was logged.
    """

    policy: Policy
    counts: dict[str, int] = field(default_factory=lambda: {"agreed": 0, "differed": 0, "failed": 0})
    difference_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(JUDGES, 0.0))
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JUDGES, 0))
    logged: bool = False

    def differs(self, judge: str, seconds: float) -> None:
        """Take one more estimate of a difference into the mean."""
        self.seen[judge] += 1
        mean_s = self.difference_s[judge]
        self.difference_s[judge] = mean_s + (seconds - mean_s) / min(float(self.seen[judge]), _HORIZON)


class Shadow:
    """Scores live decisions.

    Args:
        policies: that are asked.
        model: the reward model in force, None while there is none.
        tie_band: relative band of equals, of policies that have one.
    """

    def __init__(
        self,
        policies: Iterable[Policy],
        model: Callable[[], RewardModel | None] = lambda: None,
        *,
        tie_band: float = 0.0,
    ) -> None:
        self._tie_band = tie_band
        self.accounts = [Account(quiet(policy)) for policy in policies]
        self._model = model
        self._waiting: deque[Decision] = deque(maxlen=_WAITING)
        self._told = False

    @property
    def policies(self) -> Sequence[Policy]:
        """Those that are asked."""
        return [account.policy for account in self.accounts]

    def replace_policy(self, policy: Policy) -> None:
        """From now on the policy of that name is this one."""
        for account in self.accounts:
            if account.policy.name == policy.name:
                account.policy = policy

    def decided(self, decision: Decision) -> None:
        """A live decision; what exploration drew is nobody's opinion and is passed over."""
        explored = decision.ranking.terms.get("explored")
        if decision.basis is Basis.POLICY and (explored is None or not explored[decision.chosen]):
            self._waiting.append(decision)

    async def run(self) -> None:
        """Score for ever, one policy of one decision at a time, so that requests come in between."""
        while True:
            await asyncio.sleep(1.0 / PER_S)
            if not self._waiting:
                continue
            decision = self._waiting.pop()
            judges = self._estimates(decision)
            for account in self.accounts:
                await asyncio.sleep(0)
                self._score(account, decision, judges)

    def score(self, decision: Decision) -> None:
        """Score a decision now."""
        judges = self._estimates(decision)
        for account in self.accounts:
            self._score(account, decision, judges)

    def _score(self, account: Account, decision: Decision, judges: _Judges) -> None:
        try:
            chosen = rerun(decision, account.policy, self._tie_band).chosen
        except Exception:  # a policy in shadow may be anybody's; it must not reach users
            account.counts["failed"] += 1
            if not account.logged:
                log.exception("%s cannot score a live decision in shadow", account.policy.name)
                account.logged = True
            return
        account.counts["agreed" if chosen == decision.chosen else "differed"] += 1
        for judge, estimated_ms, inside in judges:
            if inside[chosen] and inside[decision.chosen]:
                account.differs(judge, float(estimated_ms[chosen] - estimated_ms[decision.chosen]) * _MS)
                return

    def _estimates(self, decision: Decision) -> _Judges:
        """What each endpoint would have meant, by each judge, and of which endpoints it knows."""
        try:
            return list(self._judged(decision))
        except Exception:  # as above: nothing here may reach users
            if not self._told:
                log.exception("policies in shadow are compared by agreement alone")
                self._told = True
            return []

    def _judged(self, decision: Decision) -> Iterator[_Judge]:
        request, fleet, model = decision.request, decision.fleet, self._model()
        if model is not None:
            x = model.inputs(request, fleet)
            yield JUDGES[0], model.predict(x)[:, 0], ~model.out_of_distribution(x)
        by_rates = _BY_RATES.rank(request, fleet, _AS_MEASURED, decision.seed).costs
        yield JUDGES[1], by_rates, np.ones(len(fleet), np.bool_)


def quiet(policy: Policy) -> Policy:
    """The policy without its exploration: asked for its opinion, not for a draw."""
    return replace(policy, explore=0.0) if isinstance(policy, Lodestar) else policy


def shadows(names: Sequence[str], source: str) -> list[Policy]:
    """The policies of a configuration's list, with their defaults.

    Raises:
        ConfigError: one is not registered, or told twice.
    """
    made: list[Policy] = []
    errors: list[ConfigError] = []
    for place, name in enumerate(names):
        with gather(errors):
            made.append(create(name, source=source, key=f"shadow[{place}]"))
            if name in names[:place]:
                raise ConfigError(source, f"shadow[{place}]", f"{name} is told twice", "name each once")
    raise_all(errors)
    return made
