"""What would become of an `EndpointPickerConfig`, without starting: accepted, mapped or refused.

Pure: text in, verdicts out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from epp.config.strict import load_yaml
from epp.errors import ConfigError
from epp.llmd.flags import read_flags
from epp.llmd.picker_config import KIND
from epp.llmd.settings import translate
from epp.policies.registry import create

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Keys by which a values file of llm-d's charts is known; none is ours.
VALUES = frozenset(("router", "epp", "modelServers", "inferenceExtension"))
#: Stand for the flags of a deployment; what a configuration says does not depend on them.
_FLAGS = {"pool-name": "pool", "metrics-endpoint-auth": "false"}


class Refusal(msgspec.Struct, frozen=True):
    """Name a part that is refused: where it stands, why, what to do instead."""

    source: str
    key: str
    problem: str
    fix: str


class CheckedConfig(msgspec.Struct, frozen=True):
    """Say what becomes of one configuration.

    Attributes:
        source: its file, and where in it.
        status: ``accepted``, ``mapped`` where a part of it means something else here, or ``refused``.
        policy: that it becomes, ``""`` of a refused one.
        mapped: a sentence for each part that means something else.
        refused: all that is refused.
    """

    source: str
    status: str
    policy: str = ""
    mapped: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def check_text(text: str | bytes, source: str) -> list[CheckedConfig]:
    """Check every `EndpointPickerConfig` of a file, also within the texts of a ConfigMap or a values file.

    Returns:
        A verdict for each; values without any stand for llm-d's default. None of other files.

    Raises:
        ConfigError: the file is not YAML.
    """
    values = load_yaml(text, source)
    found = [_verdict(part, place) for place, part in picker_configs(values, source)]
    if not found and isinstance(values, dict) and values.keys() & VALUES:
        found = [_verdict("", f"{source}: llm-d's default plugins")]
    return found


def picker_configs(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield the text of each `EndpointPickerConfig` in a file's values, with its place."""
    if isinstance(value, str) and KIND in value and "\n" in value:
        try:
            inner = load_yaml(value, place)
        except ConfigError:
            return
        if isinstance(inner, dict):
            yield from picker_configs(inner, place)
    elif isinstance(value, list):
        for position, part in enumerate(value):
            yield from picker_configs(part, f"{place}[{position}]")
    elif isinstance(value, dict) and value.get("kind") == KIND:
        yield place, msgspec.json.encode(value).decode()
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from picker_configs(part, f"{place}: {name}")


def _verdict(text: str, source: str) -> CheckedConfig:
    try:
        found = translate(read_flags(_FLAGS), text, {}, source)
        policy = found.config.policy
        create(policy.name, policy.params, source=source)
    except ConfigError as error:
        return refused(source, error)
    return CheckedConfig(source, "mapped" if found.warnings else "accepted", policy.name, found.warnings)


def refused(source: str, error: ConfigError) -> CheckedConfig:
    """Make a verdict of errors."""
    parts = tuple(Refusal(each.source, each.key, each.problem, each.fix) for each in error.errors)
    return CheckedConfig(source, "refused", refused=parts)
