"""`EndpointPickerConfig` becomes a policy with weights, or is refused by name with the alternative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from epp.config.pool import parse_pool
from epp.config.schema import BandSettings, Limits, QueueBand, QueueSection
from epp.errors import ConfigError, NoEndpointError
from epp.llmd.flags import read_flags
from epp.llmd.parameters import ALTERNATIVES
from epp.llmd.settings import Translation, translate
from epp.policies.registry import create
from epp.types import Endpoint, RequestInfo
from tests.kit.llmd import BANDS, PROGRAMS

if TYPE_CHECKING:
    from epp.config.schema import Config

SCORED = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates: [haPopulateNonLeaderDatastore, flowControl=false]
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- {type: prefix-cache-scorer, name: prefix, parameters: {blockSize: 128, maxPrefixBlocksToMatch: 256, lruCapacityPerServer: 31250}}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1.5}
  - {pluginRef: prefix, weight: 4}
  - {pluginRef: max-score-picker}
"""


def read(text: str) -> Translation:
    return translate(read_flags({"pool-name": "p"}), text, {})


def config_of(
    plugins: list[dict[str, Any]], profile: list[dict[str, Any]] | None = None, **rest: Any
) -> Translation:
    document: dict[str, Any] = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", **rest}
    document["plugins"] = plugins
    if profile is not None:
        document["schedulingProfiles"] = [{"name": "default", "plugins": profile}]
    return read(msgspec.json.encode(document).decode())


def test_scorers_with_weights() -> None:
    made = read(SCORED)
    policy = made.config.policy
    assert policy.name == "llm-d"
    assert policy.weights == {"queue_weight": 1.0, "kv_weight": 1.5, "prefix_weight": 4.0}
    assert policy.fallbacks == 2
    assert made.config.prefix.block_bytes == 128 * 4
    assert made.config.prefix.capacity_tokens == 31250 * 128
    assert any("maxPrefixBlocksToMatch" in warning for warning in made.warnings)


def test_the_old_name_of_a_block_s_size_alone_is_read_as_llm_d_reads_it_and_told() -> None:
    made = config_of([{"type": "prefix-cache-scorer", "parameters": {"blockSize": 256}}])
    assert made.config.prefix.block_bytes == 256 * 4
    assert "prefix-cache-scorer blockSize: is in tokens, as in today's llm-d" in " ".join(made.warnings)


def test_without_profiles_every_plugin_is_in_one_with_weight_one() -> None:
    policy = config_of([{"type": "queue-scorer"}, {"type": "prefix-cache-scorer"}]).config.policy
    assert policy.weights == {"queue_weight": 1.0, "kv_weight": 0.0, "prefix_weight": 1.0}


def test_what_the_policy_llm_d_lacks_makes_a_profile_of_its_own() -> None:
    made = config_of(
        [
            {"type": "queue-scorer", "name": "q"},
            {"type": "prefix-cache-scorer", "parameters": {"matchLengthWeight": 0.5}},
            {"type": "label-selector-filter", "name": "eu", "parameters": {"matchLabels": {"zone": "eu"}}},
            {"type": "probabilistic-admitter"},
            {"type": "p2p-source-producer", "parameters": {"minCachedTokenDelta": 512}},
            {"type": "weighted-random-picker"},
            {"type": "utilization-detector", "parameters": {"metricsStalenessThreshold": "2s"}},
        ],
        [{"pluginRef": "eu"}, {"pluginRef": "q", "weight": 50}, {"pluginRef": "prefix-cache-scorer"},
         {"pluginRef": "utilization-detector"}, {"pluginRef": "weighted-random-picker"}],
        flowControl={"saturationDetector": {"pluginRef": "utilization-detector"}},
    )  # fmt: skip
    assert made.config.policy.name == "llm-d-profile"
    assert made.config.policy.params == {
        "filters": {
            "probabilistic-admitter": {"type": "probabilistic-admitter"},
            "eu": {"type": "label-selector-filter", "matchLabels": {"zone": "eu"}},
            "utilization-detector": {"type": "utilization-detector", "metricsStalenessThreshold": 2000.0},
        },
        "scorers": {
            "q": {"type": "queue-scorer"},
            "prefix-cache-scorer": {
                "type": "prefix-cache-scorer",
                "matchLengthWeight": 0.5,
                "matchLengthScaleTokens": 8192,
            },
        },
        "scorer_weights": {"q": 50.0, "prefix-cache-scorer": 1.0},
        "picker": "weighted-random-picker",
        "kv_source_min_tokens": 512,
    }
    assert made.config.saturation.stale_after_s == 2.0


def test_gpu_counters_of_an_exporter_in_the_pod() -> None:
    attribute = {"attributeKey": "GPUUtilization", "producer": "dcgm-extractor"}
    scorer = {
        "type": "endpoint-attribute-scorer",
        "parameters": {**attribute, "algorithm": {"type": "linear_lower_is_better"}},
    }
    source: dict[str, Any] = {"type": "dcgm-data-source", "parameters": {"port": 9500}}
    assert config_of([source, {"type": "dcgm-extractor"}, scorer]).config.scrape.gpu_port == 9500
    source["parameters"]["useNodeAddress"] = True
    with pytest.raises(ConfigError, match="in the engine's pod"):
        config_of([source, scorer])
    assert config_of([source, {"type": "queue-scorer"}]).config.scrape.gpu_port == 0


def test_endpoints_from_a_file_that_llm_d_reads() -> None:
    plugins: list[dict[str, Any]] = [
        {"type": "file-discovery", "parameters": {"path": "/e.yaml"}},
        {"type": "queue-scorer"},
    ]
    document = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": plugins}
    config = translate(read_flags({}), msgspec.json.encode(document), {}).config
    assert (config.pool.file, config.pool.kubernetes) == ("/e.yaml", None)
    [(address, spec)] = parse_pool("endpoints: [{name: a, address: 10.0.0.1, port: '80'}]", "e").items()
    assert (address, spec.endpoint().address) == ("10.0.0.1:80", "10.0.0.1:80")


def test_a_header_names_one_of_several_profiles() -> None:
    made = config_of(
        [
            {"type": "header-profile-handler", "parameters": {"headerName": "X-Stage"}},
            {"type": "decode-filter"},
            {"type": "prefill-filter"},
            {"type": "queue-scorer"},
        ],
        schedulingProfiles=[
            {"name": "prefill", "plugins": [{"pluginRef": "prefill-filter"}]},
            {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, {"pluginRef": "queue-scorer"}]},
        ],
    )
    policy = create(made.config.policy.name, made.config.policy.params)
    assert (policy.name, policy.headers) == ("llm-d-profiles", frozenset({"x-stage"}))
    roles = {role: Endpoint("a:1", labels={"llm-d.ai/role": role}) for role in ("prefill", "decode")}
    for told, profile in (("prefill", "prefill"), (" ", "decode"), ("", "decode")):
        chosen = policy.chosen(RequestInfo(headers={"x-stage": told}))
        assert [role for role, endpoint in roles.items() if chosen.admits(endpoint)] == [profile]
    with pytest.raises(NoEndpointError, match="encode"):
        policy.chosen(RequestInfo(headers={"x-stage": "encode"}))


@pytest.mark.parametrize("scored", [True, False])
def test_a_random_picker(scored: bool) -> None:
    plugins: list[dict[str, Any]] = [{"type": "random-picker"}] + [{"type": "queue-scorer"}] * scored
    made = config_of(plugins)
    assert made.config.policy.name == "random"
    assert any("decide nothing" in warning for warning in made.warnings) == scored


def test_a_policy_of_ours_with_its_constants() -> None:
    parameters = {"weights": {"rtt_weight": 0.5}, "tolerance": 0.05, "fallbacks": 1}
    policy = config_of(
        [{"type": "gorgo", "name": "mine", "parameters": parameters}, {"type": "max-score-picker"}],
        [{"pluginRef": "mine"}, {"pluginRef": "max-score-picker"}],
    ).config.policy
    assert (policy.name, policy.weights, policy.tolerance, policy.fallbacks) == (
        "gorgo", {"rtt_weight": 0.5}, 0.05, 1,
    )  # fmt: skip


def test_settings_of_ours_ride_along_and_win() -> None:
    settings = {"records": {"folder": "/records"}, "weights_file": "/shared/weights.yaml", "drain_s": 7}
    made = config_of(
        [{"type": "gorgo"}, {"type": "epp-settings", "parameters": settings}], [{"pluginRef": "gorgo"}]
    )
    assert made.config.records.folder == "/records"
    assert made.config.weights_file == "/shared/weights.yaml"
    assert made.config.drain_s == 7
    assert made.config.listen.grpc == "[::]:9002"


def test_data_sources_parsers_and_detectors() -> None:
    made = config_of(
        [
            {"type": "metrics-data-source", "parameters": {"path": "/m", "interval": "500ms"}},
            {"type": "core-metrics-extractor", "parameters": {"defaultEngine": "sglang"}},
            {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 9}},
            {"type": "openai-parser"},
            {"type": "queue-scorer"},
        ],
        [{"pluginRef": "queue-scorer"}],
        dataLayer={
            "sources": [
                {"pluginRef": "metrics-data-source", "extractors": [{"pluginRef": "core-metrics-extractor"}]}
            ]
        },
        requestHandler={"parsers": [{"pluginRef": "openai-parser"}]},
        saturationDetector={"pluginRef": "utilization-detector"},
    )
    config: Config = made.config
    assert config.scrape.path == "/m"
    assert config.scrape.interval_s == 0.5
    assert config.saturation.queue_requests == 9
    assert config.saturation.kv_usage == 0.8
    assert any("defaultEngine" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("said", "tls", "insecure", "ca_file"),
    [
        ({"scheme": "https", "insecureSkipVerify": True}, True, True, ""),
        ({"scheme": "https", "caCertPath": "/ca"}, True, True, ""),
        ({"scheme": "https", "caCertPath": "/ca", "insecureSkipVerify": False}, True, False, "/ca"),
        ({"path": "/m"}, False, False, ""),
    ],
)
def test_engines_are_scraped_over_tls_as_the_data_source_says(
    said: dict[str, object], tls: bool, insecure: bool, ca_file: str
) -> None:
    config = config_of([{"type": "metrics-data-source", "parameters": said}, {"type": "queue-scorer"}]).config
    assert config.pool.kubernetes is not None
    assert (config.pool.kubernetes.tls, config.scrape.insecure, config.scrape.ca_file) == (
        tls,
        insecure,
        ca_file,
    )


def test_the_conformance_plugins_turn_the_switch() -> None:
    made = config_of([{"type": "header-based-testing-filter"}, {"type": "queue-scorer"}])
    assert made.config.protocol.conformance
    assert any("conformance suite" in warning for warning in made.warnings)


def test_flow_control_s_defaults_are_llm_ds() -> None:
    made = config_of([{"type": "queue-scorer"}], featureGates=["flowControl"])
    queue = made.config.queue
    assert not made.warnings[1:]
    assert queue == QueueSection(
        enabled=True, full_duplex=True, patience=0.0, fairness="global-strict", ordering="fcfs", ttl_s=60.0, empty_ttl_s=60.0,
        negative=BandSettings(fairness="global-strict", ordering="fcfs", ttl_s=60.0), limits=Limits(),
    )  # fmt: skip
    assert (queue.max_requests, queue.max_bytes, queue.limits and queue.limits.threshold) == (
        5000,
        10**9,
        1.0,
    )
    waits_long = config_of([], featureGates=["flowControl"], flowControl={"defaultRequestTTL": "0s"}).config
    assert (waits_long.policy.name, waits_long.queue.ttl_s) == ("llm-d", 86_400.0)


def test_flow_control_s_bands_limits_and_detector_become_the_queue_s() -> None:
    made = read(BANDS).config
    plain: dict[str, Any] = {"fairness": "global-strict", "ordering": "fcfs", "ttl_s": 20.0}
    assert made.queue == QueueSection(
        enabled=True, full_duplex=True, patience=0.0, **plain, empty_ttl_s=1.0, total_requests=1000, total_bytes=10 * 2**30,
        bands=[QueueBand(priority=9, fairness="round-robin", ordering="slo-deadline", ttl_s=20.0,
                         max_requests=500, max_bytes=10**6)],
        negative=BandSettings(**plain, max_requests=1),
        limits=Limits(policy="priority-holdback", min_ceiling=0.5),
    )  # fmt: skip
    assert made.queue.longest_s == 20.0
    assert made.saturation.running_requests == 2
    made = read(PROGRAMS).config
    assert (made.queue.of(7).fairness, made.queue.half_life_s) == ("program-aware", 30.0)
    assert made.queue.limits == Limits(policy="soft-reflective-ceiling")
    ungated = read(BANDS.replace("flowControl]", "flowControl=false]"))
    assert not ungated.config.queue.enabled
    assert sum("without effect" in warning for warning in ungated.warnings) == 4


def _gated(**flow_control: Any) -> dict[str, Any]:
    return {"featureGates": ["flowControl"], "flowControl": flow_control}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"plugins": [{"type": "queue-scorrer"}]}, "did you mean 'queue-scorer'"),
        ({"plugins": [{"type": "context-length-aware"}]}, ALTERNATIVES["context-length-aware"]),
        ({"plugins": [{"type": "epp-settings", "parameters": {"listen": {}}}]}, "use the flags"),
        ({"plugins": [{"type": "queue-scorer", "parameters": {"x": 1}}]}, "plugins[0].parameters.x"),
        ({"plugins": [{"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 18}}]}, "<= 17"),
        ({"plugins": [{"type": "gorgo"}, {"type": "lmetric"}]}, "keep one"),
        ({"plugins": [{"type": "gorgo"}, {"type": "queue-scorer"}]}, "drop the filters and scorers"),
        ({"plugins": [{"type": "epp-settings", "parameters": {"recods": {}}}]}, "did you mean 'records'"),
        (_gated(enableEviction=True), "enableEviction: requests that run are not evicted here; leave it out"),
        (_gated(priorityBands=[{"orderingPolicyRef": "nobody"}]), "no ordering plugin is named 'nobody'"),
        (_gated(usageLimitPolicyPluginRef="fcfs-ordering-policy"), "no policy plugin is named 'fcfs"),
        (_gated(maxBytes="much"), "'much' is not a size"),
        (_gated(maxbytes=1), "flowControl.maxbytes: unknown key"),
        (
            {"plugins": [{"type": "program-aware-fairness", "parameters": {"strategy": "drr"}}]},
            "strategy",
        ),
        ({"apiVersion": "v1"}, "llm-d.ai/v1alpha1"),
        ({"saturationDetector": {"pluginRef": "nobody"}}, "no plugin is named 'nobody'"),
        (
            {
                "plugins": [{"type": "gorgo"}],
                "schedulingProfiles": [{"name": "prefill", "plugins": []}, {"name": "decode", "plugins": []}],
            },
            "several (prefill, decode), and no plugin that chooses",
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_says_where_and_what_to_do(changes: dict[str, Any], says: str) -> None:
    document = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", **changes}
    text = msgspec.json.encode(document).decode()
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert says in str(caught.value)
    assert caught.value.source == "--config-text"
