"""Shadow scoring: what other policies would have done with live decisions, without a say in them.

Scores between requests, a few decisions a second, the newest first; a policy that fails is counted and goes
on being asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from epp.errors import ConfigError, gather, raise_all
from epp.policies.gorgo_ms import GorgoMs
from epp.policies.lodestar import Lodestar
from epp.policies.registry import create
from epp.schedule.decision import Basis, rerun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from epp.policies.base import Policy
    from epp.schedule.decision import Decision

log = logging.getLogger(__name__)

#: Decisions a second that are scored, at most.
PER_S = 20.0
#: Decisions that wait: a burst is sampled, not stored.
_WAITING = 8
#: The mean of differences fades over so many decisions.
_HORIZON = 500.0
_BY_RATES = GorgoMs()
_AS_MEASURED = dict.fromkeys(GorgoMs.weight_specs, 1.0)


@dataclass(slots=True)
class Account:
    """What came of one policy in shadow.

    Attributes:
        policy: the policy.
        counts: live decisions by whether it would have picked the same endpoint, or failed.
        difference_s: mean latency, estimated at learned rates, of its picks less that of the live picks.
        seen: estimates in that mean.
    """

    policy: Policy
    counts: dict[str, int] = field(default_factory=lambda: {"agreed": 0, "differed": 0, "failed": 0})
    difference_s: float = 0.0
    seen: int = 0

    def score(self, decision: Decision, estimated_ms: NDArray[np.float64], tie_band: float) -> None:
        """Ask the policy about a decision, whose endpoints would take so long each."""
        try:
            chosen = rerun(decision, self.policy, tie_band).chosen
        except Exception:  # a policy in shadow may be anybody's; it must not reach users
            if not self.counts["failed"]:
                log.exception("%s cannot score a live decision in shadow", self.policy.name)
            self.counts["failed"] += 1
            return
        self.counts["agreed" if chosen == decision.chosen else "differed"] += 1
        seconds = float(estimated_ms[chosen] - estimated_ms[decision.chosen]) / 1e3
        self.seen += 1
        self.difference_s += (seconds - self.difference_s) / min(float(self.seen), _HORIZON)


class Shadow:
    """Scores live decisions.

    Args:
        policies: that are asked.
        tie_band: relative band of equals, of policies that have one.
    """

    def __init__(self, policies: Iterable[Policy], *, tie_band: float = 0.0) -> None:
        self._tie_band = tie_band
        self.accounts = [Account(quiet(policy)) for policy in policies]
        self._waiting: deque[Decision] = deque(maxlen=_WAITING)

    def replace_policy(self, policy: Policy) -> None:
        """Ask this policy from now on instead of the one of its name."""
        for account in self.accounts:
            if account.policy.name == policy.name:
                account.policy = policy

    def decided(self, decision: Decision) -> None:
        """Take note of a live decision; what exploration drew is nobody's opinion and is passed over."""
        explored = decision.ranking.terms.get("explored")
        if decision.basis is Basis.POLICY and (explored is None or not explored[decision.chosen]):
            self._waiting.append(decision)

    async def run(self) -> None:
        """Score for ever, one policy of one decision at a time, so that requests come in between."""
        while True:
            await asyncio.sleep(1.0 / PER_S)
            if self._waiting:
                decision = self._waiting.pop()
                estimated_ms = _estimated_ms(decision)
                for account in self.accounts:
                    await asyncio.sleep(0)
                    account.score(decision, estimated_ms, self._tie_band)

    def score(self, decision: Decision) -> None:
        """Score a decision now."""
        for account in self.accounts:
            account.score(decision, _estimated_ms(decision), self._tie_band)


def _estimated_ms(decision: Decision) -> NDArray[np.float64]:
    return _BY_RATES.rank(decision.request, decision.fleet, _AS_MEASURED, decision.seed).costs


def quiet(policy: Policy) -> Policy:
    """Take a policy's exploration away: it is asked for its opinion, not for a draw."""
    return replace(policy, explore=0.0) if isinstance(policy, Lodestar) else policy


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
