"""The weights in force: the policy's defaults, the configuration, the tuner's file, the operator's file.

Later ones win, value by value, in both arms of a trial. Owns the last good content of both files; a bad
file changes nothing. Which arm a request belongs to is the file's own rule
(`epp.learn.tuner.plan.assign`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from epp.config.load import check_weights, parse_weights
from epp.errors import ConfigError, gather, raise_all
from epp.learn.tuner.plan import INCUMBENT, Plan, Split, assign, parse_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epp.learn.tuner.plan import Trial
    from epp.policies.base import WeightSpec

_NO_PLAN = Plan()


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
    """The policy's hard bounds, tightened by the configuration.

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
        self._policy = policy
        errors: list[ConfigError] = []
        self.bounds = effective_bounds(specs, bounds, source, errors)
        base = {name: spec.default for name, spec in specs.items()}
        for name, value in base.items():
            # A default outside of tightened bounds moves to the nearest allowed value.
            base[name] = min(max(value, self.bounds[name][0]), self.bounds[name][1])
        self._base = base
        with gather(errors):
            self._configured = check_weights(configured, source, "policy.weights", self.bounds)
        raise_all(errors)
        self._plan = _NO_PLAN
        self._overrides: Mapping[str, float] = {}
        self.current = self._merge(self._plan.weights)
        self._arm_weights = self.current

    @property
    def policy(self) -> str:
        """Name of the policy that the weights are of."""
        return self._policy

    @property
    def plan(self) -> Plan:
        """The last good content of the tuner's file."""
        return self._plan

    @property
    def trial(self) -> Trial | None:
        """The second arm that the tuner's file carries, over or not."""
        return self._plan.trial

    @property
    def draws_sessions(self) -> bool:
        """Whether arms are drawn by session at present."""
        return isinstance(self._plan.trial, Split)

    @property
    def arm_weights(self) -> Weights:
        """Weights of the second arm; those in force when there is none."""
        return self._arm_weights

    def choose(self, wall_s: float, session: str) -> tuple[Weights, str]:
        """Weights for a request and the stamp of its arm, empty outside of trials.

        Args:
            wall_s: Unix time of the decision.
            session: what keeps the requests of a conversation together; empty when nothing does.
        """
        found = assign(self._plan, wall_s, session)
        return self.current if found.arm == INCUMBENT else self._arm_weights, found.stamp

    def update(self, layer: str, text: bytes | None, source: str) -> bool:
        """New content of a shared file; None means that the file is not there, which withdraws its values.

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
            self._plan = (
                _NO_PLAN
                if text is None
                else parse_plan(text, source, policy=self._policy, bounds=self.bounds)
            )
        elif layer == "override":
            self._overrides = (
                {} if text is None else parse_weights(text, source, policy=self._policy, bounds=self.bounds)
            )
        else:
            raise ValueError(f"unknown layer {layer!r}")
        before = self.current, self._arm_weights
        plan = self._plan
        self.current = self._arm_weights = self._merge(plan.weights)
        if plan.trial is not None:
            self._arm_weights = self._merge({**plan.weights, **plan.trial.weights})
        return before != (self.current, self._arm_weights)

    def _merge(self, tuned: Mapping[str, float]) -> Weights:
        values = dict(self._base)
        sources = dict.fromkeys(values, "default")
        layers = (("config", self._configured), ("tuner", tuned), ("override", self._overrides))
        for layer, content in layers:
            for name, value in content.items():
                values[name], sources[name] = value, layer
        text = ",".join(f"{name}={value!r}" for name, value in sorted(values.items()))
        return Weights(values, sources, xxhash.xxh3_64_hexdigest(f"{self._policy}:{text}".encode()))
