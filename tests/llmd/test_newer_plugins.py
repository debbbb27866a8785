"""Plugins that llm-d got since July 2026, each with values worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from epp.config.schema import Saturation
from epp.errors import ConfigError
from epp.llmd.flags import read_flags
from epp.llmd.parameters import ALTERNATIVES
from epp.llmd.policies.filters import ResidencyFilter
from epp.llmd.policies.plugins import TTFT
from epp.llmd.policies.scorers import LMetricScorer, ObservationScorer
from epp.llmd.settings import translate
from epp.schedule.admission import AdmissionController
from epp.signals.metrics_text import parse_metrics
from epp.types import Endpoint
from tests.kit.fleets import fleet_view, request
from tests.kit.records import ask_of, picker_of
from tests.llmd.test_picker_config import config_of

QUEUED = {"featureGates": ["flowControl"]}


def test_lmetric_multiplies_the_uncached_blocks_with_the_requests_in_flight() -> None:
    """Of 100 tokens, two blocks: costs are 64 * 2, 128 * 1 and 0 * 4, and 128 * 0.5 of the fourth's, 64 * 1."""
    seen = fleet_view(4, cached_tokens=[64, 0, 100, 64], running_requests=[1, 0, 3, 0])
    asked = request(prompt_tokens=100, block_tokens=64.0)
    assert LMetricScorer().score(asked, seen).tolist() == [0.0, 0.0, 1.0, 0.5]
    assert LMetricScorer().score(request(), seen).tolist() == [0.0] * 4


def test_observed_latency_scores_by_the_predicted_time_to_first_token() -> None:
    seen = replace(fleet_view(3), extra={TTFT: np.array([100.0, 300.0, 200.0])})
    assert ObservationScorer().score(request(), seen) == pytest.approx(np.array([1.0, 0.0, 0.5]))
    assert ObservationScorer(round_s=0.25).score(request(), seen).tolist() == [1.0, 0.0, 0.0]
    plugins = [{"type": "latency-observer-producer-hub", "parameters": {"minRequests": 5}}]
    plugins += [{"type": "latency-observation-scorer-hub", "parameters": {"roundTTFTStep": 0.01}}]
    section = config_of(plugins).config.policy
    scheduler = picker_of(section.name, params=section.params)
    assert scheduler.decide(ask_of(1), 0.0, 0.0).ranking.terms["latency-observation-scorer-hub"].max() == 1.0


@pytest.mark.parametrize(
    ("told", "left"),
    [({}, "b:1"), ({"x-gateway-model-name": "other"}, "a:1")],
)
def test_model_affinity_keeps_whose_label_is_the_model_of_the_header_else_of_the_body(
    told: dict[str, str], left: str
) -> None:
    section = config_of([{"type": "model-affinity-filter"}, {"type": "queue-scorer"}]).config.policy
    pool = [
        Endpoint("a:1", labels={"model": "other"}),
        Endpoint("b:1", labels={"model": "m"}),
        Endpoint("c:1"),
    ]
    scheduler = picker_of(section.name, params=section.params, pool=pool)
    decision = scheduler.decide(ask_of(1, headers=told), 0.0, 0.0)
    assert decision.endpoint == left


@pytest.mark.parametrize(
    ("waiting", "parameters", "left"),
    [
        ([9, 8, 0, 0], {}, [True, True, False, False]),  # one who runs the adapter has room
        ([9, 9, 0, 9], {}, [False, False, True, False]),  # none has: a third opens
        ([9, 9, 0, 9], {"max_replicas": 2}, [True, True, False, False]),
        ([9, 9, 9, 9], {}, [True, True, False, False]),
        ([9, 9, 9, 9], {"queue_threshold": 0}, [True, True, False, False]),
    ],
)
def test_residency_keeps_who_runs_the_adapter_until_all_of_those_are_full(
    waiting: list[int], parameters: dict[str, int], left: list[bool]
) -> None:
    extra = {"lora": np.array([1.0, 1.0, 0.8, 0.0])}
    seen = replace(fleet_view(4, engine_waiting=waiting), extra=extra)
    assert ResidencyFilter(**parameters).keep(request(model="m"), seen, 0.0).tolist() == left  # type: ignore[arg-type]
    nobody = replace(seen, extra={"lora": np.array([0.8, 0.6, 0.0, 0.0])})
    assert ResidencyFilter().keep(request(model="m"), nobody, 0.0).all()


def test_the_largest_of_several_detectors_counts() -> None:
    """Two requests of four allowed are 0.5; a KV cache of 0.72 of 0.8 is 0.9."""
    detectors = {"detectors": ["concurrency-detector", "utilization-detector"]}
    plugins: list[dict[str, Any]] = [
        {"type": "concurrency-detector", "parameters": {"maxConcurrency": 4}},
        {"type": "utilization-detector"},
        {"type": "max-saturation-detector", "parameters": detectors},
        {"type": "queue-scorer"},
    ]
    flow = {"saturationDetector": {"pluginRef": "max-saturation-detector"}}
    settings = config_of(plugins, [{"pluginRef": "queue-scorer"}], flowControl=flow).config.saturation
    datastore = picker_of(pool=[Endpoint("a:1")]).datastore
    for number in range(2):
        datastore.ledger.reserve(f"r{number}", 0, 10, 10, 0.0)
    datastore.engine.update(
        0, parse_metrics(b"vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.72\n"), 0.0
    )
    assert AdmissionController(datastore, settings, lambda _: 0).saturation(0.0) == pytest.approx(0.9)
    alone = Saturation(running_requests=4.0)
    assert AdmissionController(datastore, alone, lambda _: 0).saturation(0.0) == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="no detector"):
        config_of(
            [{"type": "max-saturation-detector", "parameters": {"detectors": ["nobody"]}}],
            flowControl=flow,
        )


def test_served_models_are_those_that_endpoints_state_and_no_others() -> None:
    made = config_of([{"type": "served-model-filter"}, {"type": "queue-scorer"}])
    assert "models are matched" in " ".join(made.warnings)
    with pytest.raises(ConfigError, match="state models"):
        config_of([{"type": "served-model-filter", "parameters": {"onMissing": "Fail"}}])


@pytest.mark.parametrize(
    ("kind", "parameters", "fairness"),
    [
        ("vtc-fairness-policy", {"outputTokenWeight": 2}, "tokens"),
        (
            "program-aware-fairness",
            {"strategy": "turn-priority", "turnPriorityTimeWeight": 0.1},
            "turn-priority",
        ),
        ("program-aware-fairness", {"strategy": "las"}, "program-aware"),
    ],
)
def test_kinds_of_fairness_are_ours_of_the_same_rule(
    kind: str, parameters: dict[str, Any], fairness: str
) -> None:
    bands = [{"priority": 5, "fairnessPolicyRef": kind, "defaultRequestTTL": "7s"}]
    plugins: list[dict[str, Any]] = [{"type": kind, "parameters": parameters}, {"type": "queue-scorer"}]
    queue = config_of(
        plugins, [{"pluginRef": "queue-scorer"}], flowControl={"priorityBands": bands}, **QUEUED
    ).config.queue
    band = queue.of(5)
    assert (band.fairness, band.ttl_s, band.turn_idle_s) == (fairness, 7.0, 120.0)
    assert band.turn_wait_weight == parameters.get("turnPriorityTimeWeight", 0.05)


def test_endpoints_are_discovered_by_the_newer_key_too() -> None:
    plugins: list[dict[str, Any]] = [
        {"type": "file-discovery", "parameters": {"path": "/e.yaml"}},
        {"type": "queue-scorer"},
    ]
    for discovery in ({"pluginRef": "file-discovery"}, {"endpoints": {"pluginRef": "file-discovery"}}):
        document = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": plugins}
        text = msgspec.json.encode({**document, "dataLayer": {"discovery": discovery}})
        assert translate(read_flags({}), text, {}).config.pool.file == "/e.yaml"
    with pytest.raises(ConfigError, match=r"discovery\.endpoints\.pluginRef.*nobody"):
        config_of(plugins, dataLayer={"discovery": {"endpoints": {"pluginRef": "nobody"}}})


@pytest.mark.parametrize("kind", ["program-score-ordering-policy", "session-interturn-latency-producer"])
def test_what_has_no_counterpart_is_refused_by_its_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=kind) as found:
        config_of([{"type": kind}])
    assert ALTERNATIVES[kind] in str(found.value)
