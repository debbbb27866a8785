"""`epp migrate llm-d` and `epp config check`: values and configurations of llm-d's, without starting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.k8s.helm import template
from epp.cli import main
from epp.llmd.check import check_text
from tests.kit.chart import container, find, objects_of, require_helm

if TYPE_CHECKING:
    from pathlib import Path

BASE = """
router:
  epp: {replicas: 1, flags: {v: 2, tracing: false, secure-serving: true}, pluginsConfigFile: default-plugins.yaml}
  inferencePool: {failureMode: FailOpen}
  tracing: {sampling: {sampler: x}}
"""
GUIDE = """
router:
  epp:
    replicas: 2
    metricsDataSource: {path: /m}
    pluginsConfigFile: mine.yaml
    pluginsCustomConfig:
      mine.yaml: |
        apiVersion: llm-d.ai/v1
        kind: EndpointPickerConfig
        plugins:
        - type: token-producer
          parameters: {modelName: m, vllm: {url: "http://render:8000"}}
        - type: prefix-cache-affinity-filter
        - type: token-load-scorer
        schedulingProfiles:
        - name: default
          plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: token-load-scorer, weight: 2}]
  modelServers: {type: vllm, targetPorts: [{number: 8000}, {number: 8001}], matchLabels: {app: qwen}}
httpRoute: {create: true, inferenceGatewayName: gateway}
"""
STAGED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: context-length-aware}
- {type: sheddable-eviction-filter}
- {type: disagg-profile-handler}
- {type: queue-scorer, parameters: {x: 1}}
- {type: round-robin-fairness-policy}
schedulingProfiles: [{name: prefill, plugins: []}, {name: decode, plugins: []}]
"""


def test_a_guide_s_values_become_ours_and_what_is_left_out_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("base.yaml", BASE), ("guide.yaml", GUIDE)):
        (tmp_path / name).write_text(text)
    assert main(["migrate", "llm-d", str(tmp_path / "base.yaml"), str(tmp_path / "guide.yaml")]) == 0
    out = capsys.readouterr().out
    assert [line.split(": ")[:2] for line in out.splitlines() if line.startswith("#")] == [
        ["# left out", "epp.flags.secure-serving"], ["# left out", "tracing"],
        ["# left out", "modelServers.type"], ["# changed", "token-producer"],
        ["# changed", "epp.replicas"],
    ]  # fmt: skip
    ours = yaml.safe_load(out)
    config = ours.pop("endpointPickerConfig")
    assert config["plugins"][-1] == {
        "type": "metrics-data-source",
        "parameters": {"scheme": "http", "path": "/m", "insecureSkipVerify": True},
    }
    assert ours == {
        "endpoints": {"from": "inferencePool", "matchLabels": {"app": "qwen"}, "targetPorts": [8000, 8001]},
        "replicas": 2,
        "flags": {"v": 2, "tracing": False},
        "inferencePool": {"failureMode": "FailOpen"},
        "httpRoute": {"create": True, "gateway": {"name": "gateway"}},
    }


@pytest.mark.parametrize("proxy", ["", "router: {proxy: {enabled: true}, extraServicePorts: [{port: 8080}]}"])
def test_our_chart_takes_migrated_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], proxy: str
) -> None:
    require_helm()
    (tmp_path / "guide.yaml").write_text(GUIDE)
    (tmp_path / "proxy.yaml").write_text(proxy)
    assert main(["migrate", "llm-d", str(tmp_path / "guide.yaml"), str(tmp_path / "proxy.yaml")]) == 0
    (tmp_path / "ours.yaml").write_text(capsys.readouterr().out)
    objects = objects_of(template("--values", str(tmp_path / "ours.yaml")))
    assert ("--config" if proxy else "--config-file") in container(objects, "picker")["args"]
    texts = find(objects, "ConfigMap", "gorgo-epp")["data"]
    assert "token-load-scorer" in texts["epp.yaml" if proxy else "picker-config.yaml"]


def test_a_check_says_of_each_what_becomes_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text(GUIDE)
    (tmp_path / "staged.yaml").write_text(STAGED)
    (tmp_path / "other.yaml").write_text("kind: ConfigMap")
    (tmp_path / "workflow.yaml").write_text("on: push")  # a key that is no text
    assert main(["config", "check", "--json", str(tmp_path)]) == 1
    staged, guide = json.loads(capsys.readouterr().out)
    assert (guide["status"], guide["policy"]) == ("mapped", "llm-d-profile")
    assert [line.partition(":")[0] for line in guide["mapped"]] == ["token-producer"]
    assert staged["status"] == "refused"
    said = [f"{each['problem']} ({each['fix']})" for each in staged["refused"]]
    assert len(said) == 3, "all at once"
    for words in ("unknown key", "context-length-aware", "sheddable-eviction-filter"):
        assert any(words in line for line in said), words
    assert main(["config", "check", str(tmp_path / "values.yaml"), str(tmp_path / "staged.yaml")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 accepted, 1 mapped, 1 refused"


@pytest.mark.parametrize(
    ("plugin", "flow", "said"),
    [
        ("program-aware-fairness", {}, "program-aware-fairness"),
        ("slo-deadline-ordering-policy", {}, "slo-deadline-ordering-policy"),
        ("round-robin-fairness-policy", {}, "round-robin-fairness-policy"),
        ("queue-scorer", {"defaultPriorityBand": {"maxRequests": 5}}, "flowControl maxRequests, maxBytes"),
        ("queue-scorer", {"maxBytes": "1G"}, "flowControl maxRequests, maxBytes"),
        ("queue-scorer", {}, ""),
    ],
)
def test_flow_control_is_accepted_where_all_of_it_means_the_same(
    plugin: str, flow: dict[str, Any], said: str
) -> None:
    config = {
        "apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "featureGates": ["flowControl"],
        "plugins": [{"type": name} for name in dict.fromkeys(("queue-scorer", plugin))], "flowControl": flow,
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
    }  # fmt: skip
    (verdict,) = check_text(json.dumps(config), "x")
    assert [line.partition(":")[0] for line in verdict.mapped] == ([said] if said else [])
    assert verdict.status == ("mapped" if said else "accepted")


def test_values_without_plugins_stand_for_llm_ds_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "values.yaml").write_text("router: {modelServers: {matchLabels: {app: qwen}}}")
    assert main(["config", "check", str(tmp_path / "values.yaml")]) == 0
    assert capsys.readouterr().out.endswith("llm-d's default plugins: accepted, policy llm-d\n")
    assert main(["migrate", "llm-d", str(tmp_path / "values.yaml")]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["endpoints"]["matchLabels"] == {"app": "qwen"}


@pytest.mark.parametrize(
    ("kind", "given", "successor"),
    [
        ("prefix-cache-scorer", {"hashBlockSize": 5}, "blockSizeTokens"),
        ("pd-profile-handler", {"threshold": 0}, "nonCachedTokens of prefix-based-pd-decider"),
        ("approx-prefix-cache-producer", {"blockSize": 64}, "blockSizeTokens"),
        ("disagg-profile-handler", {"decodeProfile": "default"}, "profiles.decode"),
    ],
)
def test_migration_names_the_successor_of_an_old_parameter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, given: object, successor: str
) -> None:
    plugins = [{"type": kind, "parameters": given}, {"type": "queue-scorer"}]
    config = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": plugins}
    config["schedulingProfiles"] = [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]
    epp = {"pluginsConfigFile": "a.yaml", "pluginsCustomConfig": {"a.yaml": yaml.safe_dump(config)}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"router": {"epp": epp}}))
    main(["migrate", "llm-d", str(tmp_path / "values.yaml")])
    assert successor in "".join(capsys.readouterr())


def test_a_null_removes_a_value_as_it_does_for_helm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "guide.yaml").write_text(GUIDE)
    (tmp_path / "mine.yaml").write_text(
        "router: {epp: {replicas: null, resources: {limits: null}}, httpRoute: null}"
    )
    assert main(["migrate", "llm-d", str(tmp_path / "guide.yaml"), str(tmp_path / "mine.yaml")]) == 0
    ours = yaml.safe_load(capsys.readouterr().out)
    assert "replicas" not in ours
    assert ours["resources"] == {}


def test_values_of_earlier_charts_are_told_where_they_stand_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.yaml").write_text("inferenceExtension: {replicas: 1}")
    assert main(["migrate", "llm-d", str(tmp_path / "old.yaml")]) == 2
    assert (
        "inferenceExtension: of a chart before llm-d-router's (move it to router.epp"
        in capsys.readouterr().err
    )


def test_standalone_values_tell_that_engines_are_not_scraped_over_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GUIDE.replace("{path: /m}", "{scheme: https}") + "  proxy: {enabled: true}\n"
    (tmp_path / "values.yaml").write_text(
        text.replace("httpRoute: {create: true, inferenceGatewayName: gateway}\n", "")
    )
    assert main(["migrate", "llm-d", str(tmp_path / "values.yaml")]) == 0
    assert "# left out: metrics-data-source scheme" in capsys.readouterr().out
