"""Policies by the name that configuration uses.

A policy is a class that a package registers as an entry point of the group `epp.policies`: this one in its
`pyproject.toml`, any other installed package in its own.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from epp.errors import ConfigError, raise_all
from epp.policies.reward_model import RewardModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from epp.policies.base import Policy
    from epp.policies.drawn import Drawn

#: Entry points by the name of the policy they load; a policy's module is imported when it is first created.
POLICIES: dict[str, EntryPoint] = {
    point.name: point for point in sorted(entry_points(group="epp.policies"), key=lambda point: point.name)
}

_PARAMS = "policy.params"


def draws(name: str) -> Callable[..., Drawn | None] | None:
    """What tells, of a policy's rankings, what its own draw was among (`epp.policies.drawn`).

    None of a policy that draws nothing, and of one that is not known.
    """
    point = POLICIES.get(name)
    drawn: Callable[..., Drawn | None] | None = getattr(point.load(), "drawn", None) if point else None
    return drawn


def create(
    name: str,
    params: Mapping[str, object] | None = None,
    *,
    source: str = "<text>",
    key: str = "policy.name",
) -> Policy:
    """The policy of that name with the given parameters (fields of its class).

    Args:
        name: a key of `POLICIES`.
        params: parameters by name; those left out keep their defaults.
        source: file that names the policy, for the error.
        key: dotted path of the name in that file, for the error; parameters stand in `policy.params`.

    Raises:
        ConfigError: unknown policy or parameter, or a value that the policy refuses; names the nearest right
            one.
    """
    if name not in POLICIES:
        raise ConfigError(source, key, f"unknown policy {name!r}", _nearest(name, POLICIES))
    factory: type[Policy] = POLICIES[name].load()
    known: list[str] = []
    if dataclasses.is_dataclass(factory):
        known = [field.name for field in dataclasses.fields(factory)]
    errors = []
    for param in params or {}:
        if param not in known:
            problem = f"policy {name} has no parameter {param!r}"
            errors.append(ConfigError(source, f"{_PARAMS}.{param}", problem, _nearest(param, known)))
    raise_all(errors)
    try:
        return factory(**(params or {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(source, _PARAMS, f"policy {name}: {error}") from error


def params_of(policy: Policy) -> dict[str, object]:
    """The parameters in which a policy differs from its defaults: what `create` needs to make it again.

    A model is told by its version: whoever makes the policy again has to bring the model itself.
    """
    if not dataclasses.is_dataclass(policy):
        return {}
    changed: dict[str, object] = {}
    for field in dataclasses.fields(policy):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        value = getattr(policy, field.name)
        if isinstance(value, RewardModel):
            changed[field.name] = value.version
        elif value != default:
            changed[field.name] = dict(value) if isinstance(value, Mapping) else value
    return changed


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "one of: " + ", ".join(names)
