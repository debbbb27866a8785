from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from epp.errors import ConfigError
from epp.policies.gorgo import Gorgo
from epp.policies.least_request import LeastRequest
from epp.policies.registry import POLICIES, create, params_of
from tests.kit.fleets import fleet_view, register, request


def test_creates_by_name() -> None:
    assert create("gorgo") == Gorgo()
    assert create("least-request", {}) == LeastRequest()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("least_request", "'least-request'"),
        ("gorg", "'gorgo'"),
        ("xxxxxxxx", "one of: dynamo, dynamo-softmax, gorgo, gorgo-ms"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        create(name, source="epp.yaml")
    assert caught.value.source == "epp.yaml"
    assert caught.value.key == "policy.name"


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match="gorgo has no parameter 'rtt'"):
        create("gorgo", {"rtt": 1})
    with pytest.raises(ConfigError) as caught:
        create("gorgo", {"rtt": 1}, source="epp.yaml")
    assert caught.value.key == "policy.params.rtt"


@dataclass(frozen=True, slots=True)
class Tuned(LeastRequest):
    name: ClassVar[str] = "tuned"
    limit: int = 3

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")


def test_parameters_reach_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, Tuned)
    assert create("tuned", {"limit": 5}) == Tuned(limit=5)
    with pytest.raises(ConfigError, match="did you mean 'limit'"):
        create("tuned", {"limits": 5})
    with pytest.raises(ConfigError, match="limit must be at least 1"):
        create("tuned", {"limit": 0})


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("prefix-cache", {"counts": "fresh"}, "counts must be one of live, engine, not 'fresh'"),
        ("prefix-cache", {"longest_only": "yes"}, "longest_only must be true or false"),
        ("power-of-two", {"load": 3}, "load must be one of requests, tokens"),
        ("session-affinity-bounded", {"key": "user"}, "key must be one of session, prefix"),
        ("session-affinity-bounded", {"overflow": ""}, "overflow must be one of next, least"),
        ("dynamo", {"block_tokens": 0}, "block_tokens must be a number from 1"),
        ("llm-d", {"match_length_weight": 1.5}, "match_length_weight must be a number from 0.0 to 1.0"),
        ("mooncake-static", {"speeds": {"h100": 0}}, "speeds.h100 must be a number"),
        ("mooncake-static", {"speeds": 3}, "speeds must map"),
        ("llm-d", {"counts": "fresh"}, "counts must be one of live, engine, not 'fresh'"),
        ("llm-d-affinity", {"prefill_tokens_per_ms": 0}, "prefill_tokens_per_ms must be a number"),
        ("mooncake", {"rates": "guessed"}, "rates must be one of fitted, learned"),
        ("gorgo-v1", {"local_region": 3}, "local_region must be a name"),
        ("lodestar", {"k": 1.5}, "k must be a whole number from 0, not 1.5"),
        ("lodestar", {"candidates": 10.5}, "candidates must be a whole number from 1"),
        ("lodestar", {"min_samples": 0.5}, "min_samples must be a whole number from 0"),
        ("lodestar", {"load_factor": math.inf}, "load_factor must be a number from 1.0"),
        ("least-request-stale", {"count_waiting": 1}, "count_waiting must be true or false"),
    ],
)
def test_bad_parameters_are_refused_in_words(name: str, params: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(name, params)


def test_parameters_change_the_formula() -> None:
    fleet = fleet_view(2, running_requests=[4, 1], engine_classes=["H100", "l40s"])
    faster = create("mooncake-static", {"speeds": {"h100": 5, "L40S": 1}})
    assert faster.rank(request(), fleet, {}, 0).costs.tolist() == [1, 2]


def test_the_guide_describes_every_policy_with_its_constants() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    rows = [line.split("|") for line in guide.splitlines() if line.startswith("| `")]
    table = {name: row for row in rows if len(row) == 7 for name in [row[1].strip(" `")]}
    assert table.keys() == POLICIES.keys()
    for name in POLICIES:
        specs = create(name).weight_specs
        assert (table[name][3].strip() == "-") == (not specs), name
    advised = {name.strip(" `") for row in rows if len(row) == 5 for name in row[1].split(",")}
    assert advised == POLICIES.keys()


@pytest.mark.parametrize("name", POLICIES)
def test_defaults_are_no_parameters(name: str) -> None:
    assert params_of(create(name)) == {}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("lmetric", {"counts": "engine"}),
        ("power-of-two", {"load": "tokens"}),
        ("mooncake-static", {"speeds": {"a": 2.0}, "counts": "engine"}),
        ("llm-d", {"match_length_weight": 0.5}),
    ],
)
def test_parameters_make_the_same_policy_again(name: str, params: dict[str, object]) -> None:
    policy = create(name, params)
    assert params_of(policy) == params
    assert create(name, params_of(policy)) == policy
