"""Policies by the name that configuration uses.

A policy is a class that a package registers as an entry point of the group `epp.policies`: this one in its
`pyproject.toml`, any other installed package in its own.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, get_type_hints

import msgspec

from epp.errors import ConfigError, raise_all
from epp.policies.base import Policy
from epp.policies.reward_model import RewardModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from epp.policies.base import Drawn

_POINTS = sorted(entry_points(group="epp.policies"), key=lambda point: point.name)
#: Entry points by the name of the policy they load; a policy's module is imported when it is first created.
POLICIES: dict[str, EntryPoint] = {point.name: point for point in _POINTS}

_PARAMS = "policy.params"


@lru_cache(64)  # loading an entry point takes longer than the rest of a record's chances
def _loaded(name: str) -> object:
    return POLICIES[name].load() if name in POLICIES else None


def draws(name: str) -> Callable[..., Drawn | None] | None:
    """Return `Policy.drawn` of a policy by name; None of one that draws nothing, and of an unknown one."""
    drawn: Callable[..., Drawn | None] | None = getattr(_loaded(name), "drawn", None)
    return None if drawn is Policy.drawn else drawn


def unit_of(name: str) -> str:
    """Return `Policy.unit` of a policy by name, empty for an unknown one."""
    unit: str = getattr(_loaded(name), "unit", "")
    return unit


def create(
    name: str,
    params: Mapping[str, object] | None = None,
    *,
    source: str = "<text>",
    key: str = "policy.name",
) -> Policy:
    """Make the policy of that name with the given parameters, checked by the types of its fields.

    Args:
        name: a key of `POLICIES`.
        params: parameters by name; those left out keep their defaults.
        source: file that names the policy, for the error.
        key: dotted path of the name in that file, for the error; parameters stand in `policy.params`.

    Raises:
        ConfigError: unknown policy or parameter, a value that the policy refuses; two of the name.
    """
    if len(places := sorted({point.value for point in _POINTS if point.name == name})) > 1:
        problem = f"{len(places)} installed policies are called {name}: {', '.join(places)}"
        raise ConfigError(source, key, problem, "rename or uninstall one")
    if name not in POLICIES:
        raise ConfigError(source, key, f"unknown policy {name!r}", _nearest(name, POLICIES))
    try:
        factory: type[Policy] = POLICIES[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(source, key, f"policy {name} cannot be loaded: {error}") from error
    known: list[str] = (
        [field.name for field in dataclasses.fields(factory)] if dataclasses.is_dataclass(factory) else []
    )
    types = get_type_hints(factory, include_extras=True) if params else {}
    errors, values = [], {}
    for param, value in (params or {}).items():
        at = f"{_PARAMS}.{param}"
        if param not in known:
            problem = f"policy {name} has no parameter {param!r}"
            errors.append(ConfigError(source, at, problem, _nearest(param, known)))
            continue
        try:
            whole = types[param] == RewardModel | None
            values[param] = value if whole else msgspec.convert(value, types[param])
        except msgspec.ValidationError as error:
            errors.append(ConfigError(source, at, f"policy {name}: {error}"))
    raise_all(errors)
    try:
        return factory(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(source, _PARAMS, f"policy {name}: {error}") from error


def params_of(policy: Policy) -> dict[str, object]:
    """Return the parameters that differ from their defaults, a model by its version."""
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
            changed[field.name] = (
                {name: msgspec.to_builtins(part) for name, part in value.items()}
                if isinstance(value, Mapping)
                else value
            )
    return changed


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "one of: " + ", ".join(names)
