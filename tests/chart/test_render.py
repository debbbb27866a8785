"""What the chart makes of values, with the oldest Helm as well: objects, rights, security, how many of what."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from deploy.k8s.chart_files import contents
from deploy.k8s.helm import (
    CHART,
    EXAMPLES,
    KUBE_VERSION,
    MANIFESTS,
    PLAIN,
    HelmError,
    find_oldest_helm,
    helm,
    manifest,
    template,
)
from epp.config.load import parse_config, parse_weights
from epp.config.pool import parse_pool
from epp.llmd.flags import FLAGS, read_flags
from epp.llmd.settings import translate
from tests.kit.chart import (
    EXAMPLE_NAMES,
    container,
    example,
    find,
    kinds,
    objects_of,
    pods,
    rendered,
    require_helm,
)

if TYPE_CHECKING:
    from pathlib import Path

APP = "endpoints.matchLabels.app=vllm"
CLAIM = "shared.existingClaim=epp-shared"
STANDALONE = ("standalone.enabled=true", "endpoints.from=selector", APP)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_the_oldest_helm_renders_the_same(name: str) -> None:
    text = template("--values", str(EXAMPLES / f"{name}.yaml"), binary=require_helm(find_oldest_helm))
    assert objects_of(text) == example(name)


def test_a_helm_that_is_too_old_is_refused(tmp_path: Path) -> None:
    require_helm()
    chart = shutil.copytree(CHART, tmp_path / "chart")
    helpers = chart / "templates" / "_helpers.tpl"
    helpers.write_text(helpers.read_text().replace("<3.14.0-0", "<99.0.0-0"))
    with pytest.raises(HelmError, match=r"Helm 3\.14 or newer is needed, and this is v"):
        template("--set", "endpoints.matchLabels.app=vllm", chart=chart)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_every_example_passes_lint(name: str) -> None:
    require_helm()
    said = helm(
        "lint", str(CHART), "--strict", "--kube-version", KUBE_VERSION,
        "--values", str(EXAMPLES / f"{name}.yaml"),
    )  # fmt: skip
    assert "0 chart(s) failed" in said


def test_what_comes_from_elsewhere_in_the_tree_is_fresh() -> None:
    for path, text in contents().items():
        assert path.read_text() == text, f"{path.name}: run `make manifests`"


@pytest.mark.parametrize("name", PLAIN)
def test_plain_manifests_are_fresh(name: str) -> None:
    require_helm()
    committed = (MANIFESTS / f"{name}.yaml").read_text()
    # Helms of different versions order objects of one kind differently.
    assert _sorted(committed) == _sorted(manifest(name)), "run `make manifests`"
    assert "Helm" not in committed


def _sorted(text: str) -> list[str]:
    return sorted(msgspec.json.encode(each).decode() for each in yaml.safe_load_all(text) if each)


@pytest.mark.parametrize("name", [name for name in EXAMPLE_NAMES if name != "llm-d"])
def test_the_picker_takes_the_configuration(name: str) -> None:
    objects = example(name)
    data = find(objects, "ConfigMap")["data"]
    config = parse_config(data["epp.yaml"], name)
    assert config.drain_s < pods(objects)[0]["terminationGracePeriodSeconds"]
    mounts = {each["mountPath"] for each in container(objects, "picker")["volumeMounts"]}
    wanted = [config.weights_file, config.overrides_file, config.prefix.secret_file, config.records.folder]
    if config.listen.tls is not None:
        wanted += [config.listen.tls.cert_file, config.listen.tls.key_file]
    for path in filter(None, wanted):
        assert any(path.startswith(f"{mount}/") for mount in mounts), path
    if config.pool.kubernetes is None:
        assert config.pool.file == "/etc/epp/endpoints.yaml"
        assert parse_pool(data["endpoints.yaml"], name)
    overrides = find(objects, "ConfigMap", "gorgo-epp-overrides")["data"]["overrides.yaml"]
    parse_weights(overrides, name, policy=config.policy.name, bounds={"queue_weight": (0.0, 1.0)})


def test_the_picker_takes_llm_d_s_flags() -> None:
    objects = example("llm-d")
    words = container(objects, "picker")["args"]
    given: dict[str, str | list[str]] = {}
    while words:
        word, *words = words
        name, _, value = word.removeprefix("--").partition("=")
        if not value:
            value, *words = words
        given[name] = value
    assert set(given) <= {flag.name for flag in FLAGS}
    flags = read_flags(given)
    found = translate(flags, find(objects, "ConfigMap")["data"]["picker-config.yaml"], {})
    kubernetes = found.config.pool.kubernetes
    assert kubernetes is not None
    assert kubernetes.pool_name == find(objects, "InferencePool")["metadata"]["name"]
    assert found.config.policy.name == "llm-d"
    assert found.config.drain_s == 120.0
    assert not found.warnings


RIGHTS = [
    (
        ("endpoints.from=inferencePool", APP),
        {"pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"},
    ),
    (STANDALONE, {"pods"}),
    (("standalone.enabled=true", "endpoints.from=service", "endpoints.service=s"), {"endpointslices"}),
]


@pytest.mark.parametrize(("settings", "wanted"), RIGHTS)
def test_the_picker_may_read_what_it_needs_and_no_more(settings: tuple[str, ...], wanted: set[str]) -> None:
    objects = rendered(*settings)
    rules = find(objects, "Role")["rules"]
    assert {name for rule in rules for name in rule["resources"]} == wanted
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in rules)
    assert not kinds(objects) & {"ClusterRole", "ClusterRoleBinding"}


def test_the_chart_brings_nats_for_its_pickers_alone() -> None:
    objects = example("replicas")
    url = parse_config(find(objects, "ConfigMap")["data"]["epp.yaml"], "epp.yaml").nats.url
    service = find(objects, "Service", "gorgo-epp-nats")
    assert url == f"nats://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    pod = find(objects, "Deployment", "gorgo-epp-nats")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    policy = find(objects, "NetworkPolicy", "gorgo-epp-nats")["spec"]
    assert policy["podSelector"]["matchLabels"] == service["spec"]["selector"]
    (allowed,) = policy["ingress"][0]["from"]
    picker = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert allowed["podSelector"]["matchLabels"].items() <= picker.items()


@pytest.mark.parametrize(("region", "network"), [("us-east", "10.10."), ("eu-central", "10.20.")])
def test_a_region_among_peers_knows_its_own_engines_and_takes_its_peers_requests(
    region: str, network: str
) -> None:
    objects = example("regions", "--set", f"region={region}")
    data = find(objects, "ConfigMap")["data"]
    config = parse_config(data["epp.yaml"], "epp.yaml")
    assert config.federation.region == region
    pool = parse_pool(data["endpoints.yaml"], "endpoints.yaml")
    assert [address[:6] for address in pool] == [network] * 2
    (pod,) = pods(objects)
    (render,) = pod["initContainers"]
    assert render["command"][:3] == ["epp", "envoy", "render"]
    assert region in render["command"]
    first = int(config.relays.regions[region].rpartition(":")[2])
    wanted = set(range(first, first + config.relays.connections))
    ports = {each["containerPort"] for each in container(objects, "envoy")["ports"]}
    assert wanted <= ports
    assert {each["port"] for each in find(objects, "Service", "gorgo-epp-peers")["spec"]["ports"]} == wanted
    allowed = find(objects, "NetworkPolicy")["spec"]["ingress"]
    assert wanted in [{port["port"] for port in rule["ports"]} for rule in allowed]


def test_a_list_of_endpoints_needs_no_rights_and_no_token() -> None:
    objects = example("one-tier")
    assert not kinds(objects) & {"Role", "RoleBinding", "ClusterRole"}
    assert not any("projected" in volume for volume in pods(objects)[0]["volumes"])


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_every_container_runs_with_nothing_that_it_does_not_need(name: str) -> None:
    for pod in pods(example(name)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            security = each["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert set(each["resources"]["requests"]) == {"cpu", "memory"}
            # A limit on CPU throttles in bursts, just when a pick has to be quick.
            assert set(each["resources"]["limits"]) == {"memory"}
            token = any("serviceaccount" in mount["mountPath"] for mount in each.get("volumeMounts", ()))
            assert not (token and each["name"] != "picker")


def test_probes_end_a_stopped_picker_within_ten_seconds_and_are_values() -> None:
    picker = container(example("gateway"), "picker")
    probe = picker["livenessProbe"]
    found_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert found_s + probe["terminationGracePeriodSeconds"] <= 10
    settings = [f"probes.{name}.periodSeconds=7" for name in ("startup", "liveness", "readiness")]
    changed = container(rendered(APP, *settings), "picker")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert changed[name] == picker[name] | {"periodSeconds": 7}


def test_the_tuner_is_beside_each_picker_that_hears_the_others_or_one_with_a_claim() -> None:
    for name in ("tuned", "replicas"):
        assert [each["name"] for each in pods(example(name))[0]["containers"]] == ["picker", "tuner"]
    text = find(example("replicas"), "ConfigMap")["data"]["epp.yaml"]
    assert parse_config(text, "epp.yaml").nats.lead
    url = "nats.url=nats://nats:4222"
    apart = rendered(APP, url, "prefixSecret=p", "replicas=2", "tuner.enabled=true", CLAIM)
    assert [each["name"] for pod in pods(apart) for each in pod["containers"]] == ["picker", "tuner"]
    tuner = find(apart, "Deployment", "gorgo-epp-tuner")["spec"]
    assert (tuner["replicas"], tuner["strategy"]) == (1, {"type": "Recreate"})
    claims = {pod["volumes"][index]["persistentVolumeClaim"]["claimName"]
              for pod in pods(apart) for index, each in enumerate(pod["volumes"]) if each["name"] == "shared"}  # fmt: skip
    assert claims == {"epp-shared"}
    assert not parse_config(find(apart, "ConfigMap")["data"]["epp.yaml"], "epp.yaml").nats.lead
    assert "tuner" not in str(pods(example("gateway")))


def test_values_of_before_are_read_under_their_old_names() -> None:
    for old, new in (
        ("cluster.url=nats://n:1", "nats.url=nats://n:1"),
        ("cluster.nats.enabled=true", "nats.server.enabled=true"),
    ):
        objects = rendered(APP, old, "prefixSecret=p")
        assert objects == rendered(APP, new, "prefixSecret=p")


def test_the_learner_is_one_too_and_the_picker_is_told_its_model() -> None:
    beside = example("learned")
    assert [each["name"] for each in pods(beside)[0]["containers"]] == ["picker", "learner"]
    learner = container(beside, "learner")
    assert [*learner["command"], *learner["args"]] == ["epp", "learn", "--config", "/etc/epp/epp.yaml"]
    assert {"name": "shared", "mountPath": "/shared"} in learner["volumeMounts"]
    config = parse_config(find(beside, "ConfigMap")["data"]["epp.yaml"], "epp.yaml")
    assert (config.policy.name, config.policy.model_file) == ("lodestar", "/shared/reward.json")
    assert config.policy.fallbacks == 0  # what else the chart says of the policy stays
    two = ("replicas=2", CLAIM, "learner.enabled=true")
    apart = rendered(APP, "tuner.enabled=true", *two)
    names = [each["metadata"]["name"] for each in apart if each["kind"] == "Deployment"]
    assert sorted(names) == ["gorgo-epp", "gorgo-epp-learner", "gorgo-epp-tuner"]
    assert find(apart, "Deployment", "gorgo-epp-learner")["spec"]["replicas"] == 1
    assert "learner" not in str(pods(example("tuned")))
    assert "model_file" not in find(example("tuned"), "ConfigMap")["data"]["epp.yaml"]


def test_pool_route_and_picker_refer_to_each_other() -> None:
    objects = example("gateway")
    pool = find(objects, "InferencePool")
    assert pool["spec"]["endpointPickerRef"] == {
        "kind": "Service", "name": find(objects, "Service")["metadata"]["name"],
        "port": {"number": 9002}, "failureMode": "FailOpen",
    }  # fmt: skip
    backend = find(objects, "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert backend == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool["metadata"]["name"]}
    ]
    objective = find(objects, "InferenceObjective", "batch")
    assert objective["spec"]["poolRef"]["name"] == pool["metadata"]["name"]


def test_istio_is_told_to_encrypt_and_gke_to_check_the_engines() -> None:
    rule = find(example("istio"), "DestinationRule")["spec"]
    assert rule["host"] == "gorgo-epp", "a name with a dot is that of the whole domain for Istio"
    assert rule["trafficPolicy"]["portLevelSettings"][0]["tls"] == {
        "mode": "SIMPLE",
        "insecureSkipVerify": True,
    }
    assert "DestinationRule" not in kinds(rendered(APP, "provider.name=istio", "tls.mode=none"))
    gke = example("gke")
    for kind in ("HealthCheckPolicy", "GCPBackendPolicy"):
        target = find(gke, kind)["spec"]["targetRef"]
        assert target == {
            "group": "inference.networking.k8s.io",
            "kind": "InferencePool",
            "name": "gorgo-epp",
        }
    assert find(gke, "HealthCheckPolicy")["spec"]["default"]["config"]["httpHealthCheck"]["port"] == 8000


@pytest.mark.parametrize(("name", "ports"), [("gateway", {9002, 9003, 9090}), ("standalone", {8080, 9090})])
def test_the_network_policy_lets_in_what_is_served(name: str, ports: set[int]) -> None:
    rules = find(example(name), "NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == ports


def test_weights_and_labels_restart_nothing_and_configuration_does() -> None:
    def checksum(*settings: str) -> str:
        found = find(rendered(APP, *settings), "Deployment")
        text: str = found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return text

    assert checksum() == checksum("overrides.rtt_weight=1")
    assert checksum() != checksum("config.policy.seed=7")


def test_kernel_settings_are_made_before_anything_connects() -> None:
    wanted = r"kernel.sysctls.net\.ipv4\.tcp_congestion_control=bbr"
    (pod,) = pods(rendered(*STANDALONE, "kernel.enabled=true", wanted))
    (first,) = pod["initContainers"]
    assert first["args"] == [
        "net.ipv4.tcp_congestion_control=bbr",
        "net.ipv4.tcp_slow_start_after_idle=0",
    ]
    assert first["securityContext"]["privileged"] is True
    assert all(not each["securityContext"].get("privileged") for each in pod["containers"])
    assert pod["securityContext"]["runAsNonRoot"] is True
