"""What each original does, on small committed snapshots: worked out by hand or taken from its own documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epp.policies.registry import POLICIES, create
from tests.kit.fleets import fleet_view, request

FOLDER = Path(__file__).parent / "fixtures"
#: Policies whose published behaviour needs no snapshot: they are proved by sequences and counts elsewhere.
ELSEWHERE = {
    "gorgo",
    "gorgo-hillclimb",
    "gorgo-ms",
    "laar",
    "local-first",
    "llm-d-profile",
    "llm-d-profiles",
    "llm-d-stages",
    "lodestar",
    "lodestar-paper",
    "power-of-two",
    "prefix-hash",
    "random",
    "round-robin",
    "session-affinity",
    "session-affinity-bounded",
    "session-affinity-hash256",
}


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted(FOLDER.glob("*.json"))
        for case in json.loads(path.read_text())["cases"]
    ]


@pytest.mark.parametrize("case", cases())
def test_does_what_the_original_does(case: dict[str, Any]) -> None:
    policy = create(case["policy"], case.get("params"))
    columns = case["fleet"]
    snapshot = fleet_view(
        len(next(iter(columns.values()))),
        regions=case.get("regions", ()),
        engine_classes=case.get("engine_classes", ()),
        **columns,
    )
    weights = {**policy.default_weights(), **case.get("weights", {})}
    assert weights.keys() == policy.weight_specs.keys(), "a weight that the policy does not have"
    ranking = policy.rank(request(prompt_tokens=case.get("prompt_tokens", 0)), snapshot, weights, 0)
    tolerance = case.get("tolerance", 1e-9)
    if "costs" in case:
        assert ranking.costs.tolist() == pytest.approx(case["costs"], abs=tolerance)
    if "chosen" in case:
        best = np.flatnonzero(ranking.costs == ranking.costs.min()).tolist()
        assert best == case["chosen"], ranking
    for name, values in case.get("terms", {}).items():
        assert ranking.terms[name].tolist() == pytest.approx(values, abs=tolerance), name


def test_every_baseline_has_a_fixture() -> None:
    covered = {case.values[0]["policy"] for case in cases()}
    assert covered | ELSEWHERE == POLICIES.keys()
