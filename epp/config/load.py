"""From text to a checked `Config`, and from two shared weight files to their values."""

from __future__ import annotations

import math
from posixpath import normpath
from typing import TYPE_CHECKING

from epp.config.address import UNIX, split_address
from epp.config.environment import Overlay
from epp.config.pool import parse_pool
from epp.config.renamed import rename_keys
from epp.config.schema import Config
from epp.config.section import Section
from epp.config.strict import Salvaged, decode, loaded
from epp.errors import ConfigError, gather, raise_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from epp.config.pool import EndpointSpec

_NONE: Mapping[str, str] = {}


def parse_config(text: str | bytes, source: str, environment: Mapping[str, str] = _NONE) -> Config:
    """`epp.yaml` as text, and the environment's variables over it, to a `Config`.

    Raises:
        ConfigError: naming the file, the key and the fix of each error.
    """
    config, errors = salvage_config(text, source, environment)
    raise_all(errors)
    return config


def salvage_config(
    text: str | bytes, source: str, environment: Mapping[str, str] = _NONE
) -> tuple[Config, list[ConfigError]]:
    """What can be used of `epp.yaml` and the variables over it, the rest at its defaults, and all errors.

    Raises:
        ConfigError: the text is not YAML.
    """
    overlay, errors = Overlay(environment), list[ConfigError]()
    found = Salvaged(overlay.lay(rename_keys(loaded(text, source), source), errors), Config, source)
    config, errors = found.value or Config(), errors + found.errors
    for key in ("grpc", "http", "first_token", "health"):
        address = getattr(config.listen, key)
        if key == "first_token" and address.startswith(UNIX) and address != UNIX:
            continue
        if key in ("first_token", "health") and not address:
            continue
        try:
            split_address(address)
        except ValueError as error:
            errors.append(ConfigError(source, f"listen.{key}", str(error), "e.g. 127.0.0.1:9002"))
    weights, overrides = config.weights_file, config.overrides_file
    if weights and overrides and normpath(weights) == normpath(overrides):
        fix = "a file each: the tuner writes the first and you the second, which wins"
        errors.append(ConfigError(source, "overrides_file", f"{overrides} is weights_file, too", fix))
    return config, [overlay.named(error) for error in errors]


def salvage_files(
    path: Path, read: Callable[[Path], bytes], environment: Mapping[str, str], *, pool: bool = True
) -> tuple[Config, dict[str, EndpointSpec], list[ConfigError]]:
    """What can be used of a configuration and of the endpoints file that it names, and all errors.

    Args:
        path: the configuration.
        read: reads a file, or raises a ConfigError.
        environment: variables over it.
        pool: whether the endpoints are wanted; there are none where a cluster has them.

    Raises:
        ConfigError: the configuration cannot be read, or is not YAML.
    """
    config, errors = salvage_config(read(path), str(path), environment)
    specs: dict[str, EndpointSpec] = {}
    if pool and config.pool.kubernetes is None and stated(errors, "pool", "file", "kubernetes"):
        file = path.resolve().parent / config.pool.file
        with gather(errors):
            specs = parse_pool(read(file), str(file))
    return config, specs, errors


def stated(found: Sequence[ConfigError], section: str, *keys: str) -> bool:
    """Whether keys of a section say what the operator means: no error casts doubt on them.

    Args:
        found: all errors of the file.
        section: name of a section.
        keys: keys in it.
    """
    wrong = {"", section, *(f"{section}.{key}" for key in keys)}
    meant = {"": {f"did you mean {section!r}?"}, section: {f"did you mean {key!r}?" for key in keys}}
    return not any(
        error.key in wrong
        or error.key.startswith(tuple(f"{section}.{key}." for key in keys))
        or (error.problem == "unknown key" and error.fix in meant.get(error.key.rpartition(".")[0], ()))
        for error in found
    )


class WeightsFile(Section, frozen=True):
    """A shared weights file: `weights.yaml` (one writer: the tuner) or `overrides.yaml` (the operator).

    Attributes:
        weights: values by weight name; weights not named keep their value from below.
        policy: the policy they were made for; when set, another policy refuses the file.
        version: format of the file.
    """

    weights: dict[str, float] = {}
    policy: str = ""
    version: int = 1


def parse_weights(
    text: str | bytes, source: str, *, policy: str, bounds: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """A weights file to checked values.

    Args:
        text: the file's content.
        source: its name, for errors.
        policy: the policy in force.
        bounds: allowed ``[low, high]`` of every weight it knows.

    Raises:
        ConfigError: empty or torn file, unknown weight, wrong policy or version, value out of bounds.
    """
    if not text.strip():
        raise ConfigError(source, "", "the file is empty", "write 'weights: {}' for no values")
    parsed = decode(text, WeightsFile, source)
    if parsed.version != 1:
        raise ConfigError(source, "version", f"version {parsed.version} is not known", "this program reads 1")
    if parsed.policy and parsed.policy != policy:
        raise ConfigError(source, "policy", f"made for {parsed.policy!r}, but {policy!r} is in force")
    return check_weights(parsed.weights, source, "weights", bounds)


def check_weights(
    weights: Mapping[str, float], source: str, key: str, bounds: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Weights whose names are known and whose values lie within their bounds.

    Raises:
        ConfigError: naming each weight that is wrong.
    """
    errors = []
    for name, value in weights.items():
        if name not in bounds:
            known = ", ".join(sorted(bounds)) or "none; this policy has no weights"
            errors.append(ConfigError(source, f"{key}.{name}", "unknown weight", f"known: {known}"))
            continue
        low, high = bounds[name]
        if not math.isfinite(value) or not low <= value <= high:
            problem = f"{value} is out of bounds"
            errors.append(ConfigError(source, f"{key}.{name}", problem, f"{low} to {high}"))
    raise_all(errors)
    return dict(weights)
