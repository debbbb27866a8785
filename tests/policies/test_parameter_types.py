"""A parameter of a wrong type is refused by its name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from epp.errors import ConfigError
from epp.policies.registry import POLICIES, create

POLICY_CLASSES: dict[str, Any] = {name: point.load() for name, point in POLICIES.items()}
PARAMETERS = [(name, field.name) for name, cls in POLICY_CLASSES.items() for field in dataclasses.fields(cls)]
#: The one parameter that is any word.
WORD = ("gorgo-v1", "local_region")
WRONG: list[Any] = [[], {"a": "b"}, "no such word"]


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        (name, parameter, value)
        for name, parameter in PARAMETERS
        for value in WRONG
        if not ((name, parameter) == WORD and isinstance(value, str))
    ],
)
def test_the_parameter_is_named(name: str, parameter: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=parameter) as caught:
        create(name, {parameter: value}, source="epp.yaml")
    assert (caught.value.source, caught.value.key) == ("epp.yaml", "policy.params")
    others = {other: getattr(create(name), other) for of, other in PARAMETERS if of == name}
    with pytest.raises(ConfigError, match=parameter):
        create(name, {**others, parameter: value})
