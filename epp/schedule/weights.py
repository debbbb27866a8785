"""The weights in force: the policy's defaults, the configuration, the tuner's file, the operator's file.

Later ones win, value by value, in both arms of a trial. Owns the last good content of both files; a bad
file changes nothing. Which arm a request belongs to is the file's own rule
(`epp.config.plan.assign`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from epp.config.load import check_weights, parse_weights
from epp.config.plan import INCUMBENT, Plan, assign, parse_plan
from epp.errors import ConfigError, gather, raise_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.policies.base import WeightSpec

_NO_PLAN = Plan()
#: Changes of the weights that are remembered for people.
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Weights:
    """Merged weights.

    Attributes:
        values: every weight of the policy.
        sources: where each came from: ``default``, ``config``, ``tuner`` or ``override``.
        version: digest of the values; equal values have equal versions everywhere.
    """

    values: Mapping[str, float]
    sources: Mapping[str, str]
    version: str


def effective_bounds(
    specs: Mapping[str, WeightSpec],
    configured: Mapping[str, tuple[float, float]],
    source: str,
    errors: list[ConfigError],
) -> dict[str, tuple[float, float]]:
    """Tighten the policy's hard bounds by the configuration.

    Unknown weights, reversed bounds, and bounds wider than the policy's own are added to ``errors``; they
    tighten nothing.
    """
    bounds = {name: (spec.low, spec.high) for name, spec in specs.items()}
    for name, (low, high) in configured.items():
        key = f"policy.bounds.{name}"
        if name not in bounds:
            known = ", ".join(sorted(bounds)) or "none; this policy has no weights"
            errors.append(ConfigError(source, key, "unknown weight", f"known: {known}"))
        elif not bounds[name][0] <= low <= high <= bounds[name][1]:
            problem = f"[{low}, {high}] is not within the policy's {list(bounds[name])}"
            errors.append(ConfigError(source, key, problem, "low <= high"))
        else:
            bounds[name] = (low, high)
    return bounds


class WeightBook:
    """Merges weights and remembers the last good file contents.

    Args:
        policy: name of the policy.
        specs: its weights.
        configured: starting values from the configuration.
        bounds: bounds from the configuration.
        source: name of the configuration file, for errors.

    Raises:
        ConfigError: a configured weight or bound is unknown or out of bounds.
    """

    def __init__(
        self,
        *,
        policy: str,
        specs: Mapping[str, WeightSpec],
        configured: Mapping[str, float],
        bounds: Mapping[str, tuple[float, float]],
        source: str,
    ) -> None:
        self.policy = policy
        errors: list[ConfigError] = []
        self.bounds = effective_bounds(specs, bounds, source, errors)
        base = {name: spec.default for name, spec in specs.items()}
        for name, value in base.items():
            # A default outside of tightened bounds moves to the nearest allowed value.
            base[name] = min(max(value, self.bounds[name][0]), self.bounds[name][1])
        self._base = base
        with gather(errors):
            self._configured = self.check_configured(configured, source)
        raise_all(errors)
        #: The last good content of the tuner's file.
        self.plan = _NO_PLAN
        self._overrides: Mapping[str, float] = {}
        self.current = self._merge(self.plan.weights)
        #: Weights of the second arm; those in force when there is none.
        self.arm_weights = self.current
        #: Unix time and weights of the latest changes, as they were noted.
        self.history: deque[tuple[float, Weights]] = deque(maxlen=_REMEMBERED)

    def check_configured(self, configured: Mapping[str, float], source: str) -> dict[str, float]:
        """Check weights of the configuration, without effect.

        Raises:
            ConfigError: naming each that is unknown or out of bounds.
        """
        return check_weights(configured, source, "policy.weights", self.bounds)

    def configure(self, configured: Mapping[str, float]) -> None:
        """Put checked weights of the configuration in the place of those before."""
        self._configured = dict(configured)
        self._merge_arms()

    def note(self, wall_s: float) -> None:
        """Remember the weights in force, where they are others than before."""
        if not self.history or self.history[-1][1].version != self.current.version:
            self.history.append((wall_s, self.current))

    def choose(self, wall_s: float, session: str) -> tuple[Weights, str]:
        """Choose the weights of a request and the stamp of its arm, empty outside of trials.

        Args:
            wall_s: Unix time of the decision.
            session: what keeps the requests of a conversation together; empty when nothing does.
        """
        found = assign(self.plan, wall_s, session)
        return self.current if found.arm == INCUMBENT else self.arm_weights, found.stamp

    def update(self, layer: str, text: bytes | None, source: str) -> bool:
        """Take new content of a shared file; None, for a file that is gone, withdraws its values.

        Args:
            layer: ``tuner`` or ``override``.
            text: the file's bytes.
            source: the file's name, for errors.

        Returns:
            Whether the weights in force, or those of the second arm, changed.

        Raises:
            ConfigError: the content is unusable; the values from its last good content stay in force.
        """
        if layer == "tuner":
            self.plan = (
                _NO_PLAN if text is None else parse_plan(text, source, policy=self.policy, bounds=self.bounds)
            )
        else:
            self._overrides = (
                {} if text is None else parse_weights(text, source, policy=self.policy, bounds=self.bounds)
            )
        before = self.current, self.arm_weights
        self._merge_arms()
        return before != (self.current, self.arm_weights)

    def _merge_arms(self) -> None:
        plan = self.plan
        self.current = self.arm_weights = self._merge(plan.weights)
        if plan.trial is not None:
            self.arm_weights = self._merge({**plan.weights, **plan.trial.weights})

    def _merge(self, tuned: Mapping[str, float]) -> Weights:
        values = dict(self._base)
        sources = dict.fromkeys(values, "default")
        layers = (("config", self._configured), ("tuner", tuned), ("override", self._overrides))
        for layer, content in layers:
            for name, value in content.items():
                values[name], sources[name] = value, layer
        text = ",".join(f"{name}={value!r}" for name, value in sorted(values.items()))
        return Weights(values, sources, xxhash.xxh3_64_hexdigest(f"{self.policy}:{text}".encode()))
