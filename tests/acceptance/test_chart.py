"""The Helm chart rendered with values of users, its configuration taken by the program; needs Helm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.kit import run
from tests.kit.chart import container, example, find, refused, rendered

if TYPE_CHECKING:
    from pathlib import Path

APP = "endpoints.matchLabels.app=vllm"


def test_with_labels_alone_a_gateways_picker_follows_its_pool() -> None:
    objects = rendered(APP)
    picker = container(objects, "picker")
    assert picker["args"][:2] == ["--config", "/etc/epp/epp.yaml"]
    pool = find(objects, "InferencePool")["spec"]
    assert pool["endpointPickerRef"]["name"] == find(objects, "Service")["metadata"]["name"]
    assert pool["selector"]["matchLabels"] == {"app": "vllm"}


def test_standalone_brings_an_envoy_beside_the_picker() -> None:
    objects = rendered(APP, "standalone.enabled=true", "endpoints.from=selector")
    assert "ext_proc" in find(objects, "ConfigMap", "gorgo-epp-envoy")["data"]["envoy.yaml"]
    assert container(objects, "envoy")


def test_values_reach_the_configuration() -> None:
    objects = rendered(APP, "config.policy.name=least-request", "config.scrape.interval_s=3")
    text = find(objects, "ConfigMap")["data"]["epp.yaml"]
    assert "least-request" in text
    assert "interval_s: 3" in text


def test_tuner_and_learner_run_beside_the_picker() -> None:
    assert container(example("tuned"), "tuner")["command"] == ["epp", "tune"]
    assert container(example("learned"), "learner")["command"] == ["epp", "learn"]


def test_a_list_of_endpoints_is_what_the_program_renders_an_envoy_of(tmp_path: Path) -> None:
    data = find(example("one-tier"), "ConfigMap")["data"]
    config = data["epp.yaml"].replace("/etc/epp/endpoints.yaml", "endpoints.yaml")
    (tmp_path / "epp.yaml").write_text(config)
    (tmp_path / "endpoints.yaml").write_text(data["endpoints.yaml"])
    assert "ext_proc" in run("envoy", "render", "--config", "epp.yaml", cwd=tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((), "matchLabels"),
        ((APP, "endpoints.from=nowhere"), "/endpoints/from"),
        ((APP, "nonsense=1"), "nonsense"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(settings: tuple[str, ...], words: str) -> None:
    assert words in refused(*settings)
