from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from epp.errors import ConfigError
from epp.policies.gorgo import Gorgo
from epp.policies.least_request import LeastRequest
from epp.policies.registry import POLICIES, create


def test_creates_by_name() -> None:
    assert create("gorgo") == Gorgo()
    assert create("least-request", {}) == LeastRequest()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("least_request", "'least-request'"),
        ("gorg", "'gorgo'"),
        ("xxxxxxxx", "one of: dynamo, gorgo, gorgo-v1"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        create(name, source="epp.yaml", key="policy.name")
    assert caught.value.source == "epp.yaml"
    assert caught.value.key == "policy.name"


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match="gorgo has no parameter 'rtt'"):
        create("gorgo", {"rtt": 1})


@dataclass(frozen=True, slots=True)
class Tuned(LeastRequest):
    name: ClassVar[str] = "tuned"
    limit: int = 3

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")


def test_parameters_reach_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "tuned", Tuned)
    assert create("tuned", {"limit": 5}) == Tuned(limit=5)
    with pytest.raises(ConfigError, match="did you mean 'limit'"):
        create("tuned", {"limits": 5})
    with pytest.raises(ConfigError, match="limit must be at least 1"):
        create("tuned", {"limit": 0})
