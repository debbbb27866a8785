"""What the chart makes of values: objects, rights, security, how many of what."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from deploy.k8s.chart_files import contents
from deploy.k8s.helm import CHART, EXAMPLES, KUBE_VERSION, MANIFESTS, PLAIN, helm, manifest
from epp import __version__
from epp.config.load import parse_config, parse_weights
from epp.config.pool import parse_pool
from epp.config.schema import Config
from epp.llmd.flags import FLAGS, read_flags
from epp.llmd.settings import translate
from epp.policies.registry import create
from tests.kit.chart import (
    EXAMPLE_NAMES,
    container,
    example,
    find,
    kinds,
    pods,
    refused,
    rendered,
    require_helm,
)

if TYPE_CHECKING:
    from pathlib import Path

APP = "endpoints.matchLabels.app=vllm"
STANDALONE = ("standalone.enabled=true", "endpoints.from=selector", APP)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_every_example_passes_lint(name: str) -> None:
    require_helm()
    said = helm(
        "lint", str(CHART), "--strict", "--kube-version", KUBE_VERSION,
        "--values", str(EXAMPLES / f"{name}.yaml"),
    )  # fmt: skip
    assert "0 chart(s) failed" in said


def test_the_chart_is_of_the_program_s_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == (__version__, __version__)


def test_the_weight_that_values_name_as_an_example_is_one_of_the_default_policy() -> None:
    (shown,) = re.findall(r"pinned by the operator.*: (\{.*\})", (CHART / "values.yaml").read_text())
    policy = create(Config().policy.name)
    bounds = {name: (spec.low, spec.high) for name, spec in policy.weight_specs.items()}
    assert parse_weights(f"weights: {shown}", "values.yaml", policy=policy.name, bounds=bounds)


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


def test_flags_that_are_large_numbers_are_written_in_digits() -> None:
    """A values file's numbers are fractions to Helm, which writes a million of them as 1e+06."""
    flags = "{grpc-max-recv-msg-size: 26214400, v: 4, drain: 0.5, tracing: false, zap-encoder: json}"
    objects = example("llm-d", "--set-json", "flags=" + json.dumps(yaml.safe_load(flags)))
    words = container(objects, "picker")["args"]
    assert {"--grpc-max-recv-msg-size=26214400", "--v=4", "--drain=0.5", "--tracing=false"} <= set(words)


def test_what_an_operator_writes_goes_before_what_the_chart_writes() -> None:
    objects = rendered(
        APP, "config.policy.fallbacks=2", "config.scrape.interval_s=3", "maxBodyBytes=50331648"
    )
    config = parse_config(find(objects, "ConfigMap")["data"]["epp.yaml"], "test")
    assert config.policy.fallbacks == 2
    assert config.scrape.interval_s == 3.0
    assert config.request.max_body_bytes == 50331648


@pytest.mark.parametrize(
    ("setting", "held"),
    [
        ("maxBodyBytes=33554432", 536_870_912),
        ("maxBodyBytes=2147483648", 2_147_483_648),
        ("config.request.max_body_bytes=2147483648", 2_147_483_648),
    ],
)
def test_bodies_that_wait_fit_the_memory_and_one_of_the_longest_fits_them(setting: str, held: int) -> None:
    data = find(rendered(APP, setting), "ConfigMap")["data"]
    assert parse_config(data["epp.yaml"], "test").request.max_held_body_bytes == held


RIGHTS = [
    (("endpoints.from=inferencePool", APP), {"pods", "inferencepools", "inferenceobjectives"}),
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


def test_nodes_are_read_only_for_regions() -> None:
    objects = rendered(APP, "endpoints.regionFromNodeLabel=true")
    role = find(objects, "ClusterRole", "inference-gorgo-epp")
    assert [rule["resources"] for rule in role["rules"]] == [["nodes"]]
    config = parse_config(find(objects, "ConfigMap")["data"]["epp.yaml"], "test")
    assert config.pool.kubernetes is not None
    assert config.pool.kubernetes.watch_nodes


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
            token = any("serviceaccount" in mount["mountPath"] for mount in each["volumeMounts"])
            assert not (token and each["name"] != "picker")


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_every_mount_has_its_volume(name: str) -> None:
    for pod in pods(example(name)):
        volumes = [volume["name"] for volume in pod["volumes"]]
        assert len(set(volumes)) == len(volumes)
        mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounted == set(volumes)


def test_one_replica_rolls_by_surge_without_a_disruption_budget() -> None:
    objects = example("gateway")
    deployment = find(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "PodDisruptionBudget" not in kinds(objects)


def test_probes_end_a_stopped_picker_within_ten_seconds_and_are_values() -> None:
    picker = container(example("gateway"), "picker")
    probe = picker["livenessProbe"]
    found_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert found_s + probe["terminationGracePeriodSeconds"] <= 10
    settings = [f"probes.{name}.periodSeconds=7" for name in ("startup", "liveness", "readiness")]
    changed = container(rendered(APP, *settings), "picker")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert changed[name] == picker[name] | {"periodSeconds": 7}


def test_the_tuner_is_one_whatever_the_replicas() -> None:
    beside = example("tuned")
    assert [each["name"] for each in pods(beside)[0]["containers"]] == ["picker", "tuner"]
    apart = example("replicas")
    assert [each["name"] for pod in pods(apart) for each in pod["containers"]] == ["picker", "tuner"]
    tuner = find(apart, "Deployment", "gorgo-epp-tuner")["spec"]
    assert (tuner["replicas"], tuner["strategy"]) == (1, {"type": "Recreate"})
    claims = {pod["volumes"][index]["persistentVolumeClaim"]["claimName"]
              for pod in pods(apart) for index, each in enumerate(pod["volumes"]) if each["name"] == "shared"}  # fmt: skip
    assert claims == {"epp-shared"}
    assert "tuner" not in str(pods(example("gateway")))


@pytest.mark.parametrize("worker", ["tuner", "learner"])
@pytest.mark.parametrize("apart", [False, True])
def test_settings_of_a_worker_may_be_in_a_volume(worker: str, apart: bool) -> None:
    volume = ("extraVolumes[0].name=more", "extraVolumes[0].configMap.name=more")
    mount = ("extraVolumeMounts[0].name=more", "extraVolumeMounts[0].mountPath=/more")
    two = ("replicas=2", "shared.existingClaim=epp-shared") if apart else ()
    objects = rendered(APP, f"{worker}.enabled=true", *volume, *mount, *two)
    name = f"gorgo-epp-{worker}" if apart else "gorgo-epp"
    assert {"name": "more", "mountPath": "/more"} in container(objects, worker, name)["volumeMounts"]
    volumes = find(objects, "Deployment", name)["spec"]["template"]["spec"]["volumes"]
    assert {"name": "more", "configMap": {"name": "more"}} in volumes


def test_the_learner_is_one_too_and_the_picker_is_told_its_model() -> None:
    beside = example("learned")
    assert [each["name"] for each in pods(beside)[0]["containers"]] == ["picker", "learner"]
    learner = container(beside, "learner")
    assert [*learner["command"], *learner["args"]] == ["epp", "learn", "--config", "/etc/epp/epp.yaml"]
    assert {"name": "shared", "mountPath": "/shared"} in learner["volumeMounts"]
    config = parse_config(find(beside, "ConfigMap")["data"]["epp.yaml"], "epp.yaml")
    assert (config.policy.name, config.policy.model_file) == ("lodestar", "/shared/reward.json")
    assert config.policy.fallbacks == 0  # what else the chart says of the policy stays
    two = ("replicas=2", "shared.existingClaim=epp-shared", "learner.enabled=true")
    apart = rendered(APP, "tuner.enabled=true", *two)
    names = [each["metadata"]["name"] for each in apart if each["kind"] == "Deployment"]
    assert sorted(names) == ["gorgo-epp", "gorgo-epp-learner", "gorgo-epp-tuner"]
    assert find(apart, "Deployment", "gorgo-epp-learner")["spec"]["replicas"] == 1
    assert "learner" not in str(pods(example("tuned")))
    assert "model_file" not in find(example("tuned"), "ConfigMap")["data"]["epp.yaml"]


def test_services_send_to_pickers_alone() -> None:
    objects = example("replicas")
    selector = find(objects, "Service")["spec"]["selector"]
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    chosen = [each["metadata"]["name"] for each in deployments
              if selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()]  # fmt: skip
    assert chosen == ["gorgo-epp"]


PROTOCOLS = [
    ((), None),
    (("tls.mode=none",), "kubernetes.io/h2c"),
    (("provider.name=gke",), "HTTP2"),
    (("service.appProtocol=https",), "https"),
]


@pytest.mark.parametrize(("settings", "wanted"), PROTOCOLS)
def test_the_service_says_what_its_port_speaks(settings: tuple[str, ...], wanted: str | None) -> None:
    service = find(rendered(APP, *settings), "Service")
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert {port["port"] for port in ports.values()} == {9002, 9003, 9090}
    assert ports["grpc-ext-proc"].get("appProtocol") == wanted


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


def test_the_kernel_is_left_alone_unless_asked_for() -> None:
    assert "initContainers" not in pods(rendered(*STANDALONE))[0]


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


def test_the_script_that_sets_the_kernel_writes_what_it_is_told(tmp_path: Path) -> None:
    (pod,) = pods(rendered(*STANDALONE, "kernel.enabled=true"))
    script = pod["initContainers"][0]["command"][2]
    setting = tmp_path / "net" / "ipv4" / "tcp_slow_start_after_idle"
    setting.parent.mkdir(parents=True)
    setting.write_text("1\n")
    script = script.replace('"/proc/sys"', repr(str(tmp_path)))
    asked = [sys.executable, "-c", script, *pod["initContainers"][0]["args"]]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert setting.read_text() == "0"
    assert said.stdout == "net.ipv4.tcp_slow_start_after_idle: 1 -> 0\n"


def test_kernel_settings_that_would_reach_no_envoy_are_refused() -> None:
    assert "kernel.enabled=false" in refused("kernel.enabled=true", APP)
    refused(*STANDALONE, "kernel.enabled=true", r"kernel.sysctls.vm\.swappiness=1")


def test_decimals_on_the_command_line_are_given_as_the_documents_say() -> None:
    assert "got string, want number" in refused(APP, "overrides.queue_weight=0.3")
    found = find(
        example("gateway", "--set-json", "overrides.queue_weight=0.3"), "ConfigMap", "gorgo-epp-overrides"
    )
    assert yaml.safe_load(found["data"]["overrides.yaml"]) == {"weights": {"queue_weight": 0.3}}
    for said in ((CHART / "values.yaml"), (CHART.parents[2] / "docs" / "kubernetes.md")):
        assert "--set-json overrides." in said.read_text()


def test_scraped_endpoints_keep_the_name_that_alerts_and_dashboard_know() -> None:
    """Prometheus Operator calls a target's port `endpoint`, as our metrics call a replica."""
    monitor = find(example("gateway"), "ServiceMonitor")
    assert "by (endpoint)" in (CHART / "files" / "dashboard.json").read_text()
    assert all(scraped["honorLabels"] for scraped in monitor["spec"]["endpoints"])
