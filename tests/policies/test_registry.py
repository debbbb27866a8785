from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.policies.registry import POLICIES, create, params_of


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("least_request", "'least-request'"),
        ("gorg", "'gorgo'"),
        ("xxxxxxxx", "one of: dynamo, gorgo, gorgo-hillclimb, gorgo-ms"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        create(name, source="epp.yaml")
    assert caught.value.source == "epp.yaml"
    assert caught.value.key == "policy.name"


def test_two_policies_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = EntryPoint("gorgo", "theirs:Gorgo", "epp.policies")
    monkeypatch.setattr("epp.policies.registry._POINTS", [POLICIES["gorgo"], theirs])
    with pytest.raises(ConfigError, match=r"epp\.policies\.gorgo:Gorgo, theirs:Gorgo") as caught:
        create("gorgo")
    assert caught.value.key == "policy.name"


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match="gorgo has no parameter 'rtt'"):
        create("gorgo", {"rtt": 1})
    with pytest.raises(ConfigError) as caught:
        create("gorgo", {"rtt": 1}, source="epp.yaml")
    assert caught.value.key == "policy.params.rtt"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("prefix-cache", {"counts": "fresh"}),
        ("prefix-cache", {"longest_only": "yes"}),
        ("dynamo", {"block_tokens": 0}),
        ("llm-d", {"counts": "all"}),
        ("mooncake-static", {"speeds": {"h100": 0}}),
        ("gorgo-v1", {"local_region": 3}),
        ("lodestar", {"k": 1.5}),
        ("lodestar", {"load_factor": 0.5}),
        ("lodestar", {"withdrawn": "old"}),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, params: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        create(name, params)
    assert caught.value.key == f"policy.params.{next(iter(params))}"


def test_a_models_file_is_no_parameter() -> None:
    with pytest.raises(ConfigError, match=r"policy\.model_file"):
        create("lodestar", {"model": "reward.json"})


def test_the_guide_describes_every_policy_with_its_constants() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    rows = [line.split("|") for line in guide.splitlines() if line.startswith("| `")]
    table = {name: row for row in rows if len(row) == 7 for name in [row[1].strip(" `")]}
    assert table.keys() == POLICIES.keys()
    for name in POLICIES:
        specs = create(name).weight_specs
        assert (table[name][3].strip() == "-") == (not specs), name


@pytest.mark.parametrize("name", POLICIES)
def test_defaults_are_no_parameters(name: str) -> None:
    assert params_of(create(name)) == {}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("lmetric", {"counts": "engine"}),
        ("power-of-two", {"load": "tokens"}),
        ("mooncake-static", {"speeds": {"a": 2.0}, "counts": "engine"}),
        ("llm-d", {"counts": "live"}),
    ],
)
def test_parameters_make_the_same_policy_again(name: str, params: dict[str, object]) -> None:
    policy = create(name, params)
    assert params_of(policy) == params
    assert create(name, params_of(policy)) == policy
