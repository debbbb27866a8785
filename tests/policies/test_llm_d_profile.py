"""llm-d's plugins keep the contract of policies, and come back from records."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from epp.llmd.policies.filters import Filters, HeaderSelector, RevisionGating, RolloutScreener
from epp.llmd.policies.profile import KV_SOURCE_HEADER, LlmDProfile
from epp.llmd.policies.scorers import Scorers
from epp.policies.contract import breaches
from epp.policies.registry import create
from tests.kit.fleets import fleet_view, request

NEEDED: dict[str, dict[str, Any]] = {
    "utilization-filter": {
        "conditions": [{"metric": "waiting-queue", "maxValue": 100}],
        "fallbackOnEmpty": True,
    },
    "by-label": {"label": "tier", "allowsNoLabel": True},
    "disaggregatedset-rollout-screener": {
        "scope": {"labelSelector": "a=b"},
        "revisionGating": {"mode": "disabled"},
    },
    "header-label-affinity-scorer": {"headerName": "x", "labelKey": "y"},
    "endpoint-attribute-filter": {
        "attribute": "GPUUtilization",
        "producer": "dcgm-extractor",
        "algorithm": {"type": "threshold", "threshold": {"operator": "Equal", "value": 0.5}},
    },
    "endpoint-attribute-scorer": {
        "attributeKey": "GPUUtilization",
        "producer": "dcgm-extractor",
        "algorithm": {"type": "linear_lower_is_better"},
    },
    "concurrency-detector": {"maxConcurrency": 10**15, "maxTokenConcurrency": 10**15},
}
PLUGINS = [part for union in (Filters, Scorers) for part in get_args(union)]


@pytest.mark.parametrize("kind", PLUGINS, ids=lambda kind: kind.__struct_config__.tag)
def test_a_plugin_keeps_the_contract_and_comes_back_from_a_record(kind: type[msgspec.Struct]) -> None:
    tag = str(kind.__struct_config__.tag)
    part = {"type": tag, **NEEDED.get(tag, {})}
    params: dict[str, Any] = {"filters": {tag: part}, "picker": "weighted-random-picker"}
    if kind in get_args(Scorers):
        params = {"scorers": {tag: part}, "scorer_weights": {tag: 1.5}}
    policy = create(LlmDProfile.name, params)
    assert msgspec.to_builtins(policy)["filters" if "filters" in params else "scorers"] == {tag: part}
    # Cold requests go by the order of the pool where nobody had one.
    assert set(breaches(policy, 30, in_order=tag == "no-hit-lru-scorer")) == set()


def test_a_screener_keeps_who_has_the_value_of_a_strict_header() -> None:
    selector = HeaderSelector(name="r", header_name="X-Rev", label_key="rev", mode="strict")
    screener = RolloutScreener(
        scope={}, revision_gating=RevisionGating(mode="sum"), header_selectors=[selector]
    )
    view = replace(fleet_view(3), extra={"label:x-rev=rev": np.array([0.0, 1.0, 0.0])})
    assert screener.keep(request(headers={"x-rev": "a"}), view, 0.0).tolist() == [False, True, False]
    assert screener.keep(request(), view, 0.0).all()


def test_the_source_of_a_kv_cache_has_most_of_the_prompt_and_a_short_queue() -> None:
    """As ``p2p-source-producer``: drawn among those within a block of the most, by ``1 / (1 + waiting)``."""
    policy = LlmDProfile(kv_source_min_tokens=512)
    snapshot = fleet_view(4, cached_tokens=[0, 640, 600, 400], engine_waiting=[0, 2, 0, 0])
    asked = [request(decision_id=f"d{number}", block_tokens=64.0) for number in range(400)]
    found = [policy.told_endpoints(each, snapshot, 0, 1)[KV_SOURCE_HEADER] for each in asked]
    assert found.count(snapshot.endpoints[1]) == pytest.approx(100, abs=30)
    assert found.count(snapshot.endpoints[2]) == pytest.approx(300, abs=30)
    told = [policy.told_endpoints(each, snapshot, 3, 1) for each in asked]
    assert not any(told), "what is gained is too little"
