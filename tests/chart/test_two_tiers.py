"""Both tiers from one values file: the renderer's configuration, taken by a real Envoy, and nothing else in a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.k8s.chart_files import FIRST_TOKEN
from epp.config.load import parse_config
from epp.config.pool import parse_pool
from epp.envoy.render import render, render_relay
from epp.envoy.settings import EnvoySettings
from tests.kit.certificates import self_signed
from tests.kit.chart import container, example, find, kinds, pods, refused, rendered
from tests.kit.envoy import accepted, require_version

if TYPE_CHECKING:
    from pathlib import Path

    from epp.config.relays import Relays
    from tests.kit.chart import Object

REGIONS = ("us-east", "eu-central", "ap-northeast")
CA = "/etc/ssl/certs/ca-certificates.crt"
BASE = (
    "standalone.enabled=true", "endpoints.from=list", "relays.secretName=tls", "relays.regions.eu=relay.example:8443",
    "endpoints.list[0].address=a.example:443", "endpoints.list[0].region=eu", "endpoints.list[0].tls=true",
)  # fmt: skip


def relay(region: str) -> list[Object]:
    return example("multi-region", "--set", f"tier=relay,region={region}")


def envoy(objects: list[Object], name: str) -> Any:
    return yaml.safe_load(find(objects, "ConfigMap", f"gorgo-epp-{name}")["data"]["envoy.yaml"])


def wanted(objects: list[Object]) -> EnvoySettings:
    """The renderer's settings for what the picker of these objects is configured with."""
    data = find(objects, "ConfigMap")["data"]
    specs = parse_pool(data["endpoints.yaml"], "test")
    relays: Relays = parse_config(data["epp.yaml"], "test").relays
    return EnvoySettings(
        endpoints=tuple(spec.endpoint() for spec in specs.values()),
        relays=relays,
        listener_host="0.0.0.0",
        first_token_path=FIRST_TOKEN,
        first_token_port=0,
        max_heap_bytes=1610612736,
        upstream_ca_file=CA,
    )


def test_the_global_tier_is_the_renderers() -> None:
    objects = example("multi-region")
    assert envoy(objects, "envoy") == yaml.safe_load(render(wanted(objects)))


@pytest.mark.parametrize("region", REGIONS)
def test_each_relay_is_the_renderers(region: str) -> None:
    settings = wanted(example("multi-region"))
    assert envoy(relay(region), "relay") == yaml.safe_load(render_relay(settings, region))


@pytest.mark.parametrize("more", [(), ("relays.connections=1",), ("endpoints.list[0].draining=true",)])
def test_names_tls_and_numbers_of_connections(more: tuple[str, ...]) -> None:
    settings = wanted(rendered(*BASE, *more))
    assert envoy(rendered(*BASE, *more), "envoy") == yaml.safe_load(render(settings))
    objects = rendered(*BASE, *more, "tier=relay", "region=eu")
    assert envoy(objects, "relay") == yaml.safe_load(render_relay(settings, "eu"))


@pytest.mark.parametrize("tier", ["global", *REGIONS])
async def test_a_real_envoy_takes_it(tier: str, tmp_path: Path) -> None:
    await require_version(1, 38, "the chart's configuration")
    found = envoy(example("multi-region"), "envoy") if tier == "global" else envoy(relay(tier), "relay")
    self_signed(tmp_path / "tls.crt", tmp_path / "tls.key", "any")
    (tmp_path / "ca.crt").write_text((tmp_path / "tls.crt").read_text())
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(found).replace("/etc/epp-relay", str(tmp_path)))
    await accepted(path)


def test_a_region_gets_its_relay_and_nothing_else() -> None:
    objects = relay("eu-central")
    assert kinds(objects) == {"ConfigMap", "Deployment", "Service", "NetworkPolicy"}
    assert {each["metadata"]["name"] for each in objects} == {"gorgo-epp-relay"}
    ports = [port["port"] for port in find(objects, "Service", "gorgo-epp-relay")["spec"]["ports"]]
    open_ports = [port["containerPort"] for port in container(objects, "envoy", "gorgo-epp-relay")["ports"]]
    rules = find(objects, "NetworkPolicy", "gorgo-epp-relay")["spec"]["ingress"][0]["ports"]
    assert ports == open_ports == [rule["port"] for rule in rules] == list(range(8443, 8451))


def test_both_tiers_mount_certificates_where_their_envoy_looks() -> None:
    for objects, name in ((example("multi-region"), "gorgo-epp"), (relay("us-east"), "gorgo-epp-relay")):
        assert {"name": "relay-tls", "mountPath": "/etc/epp-relay", "readOnly": True} in container(
            objects, "envoy", name
        )["volumeMounts"]
        [pod] = pods(objects)
        assert {"name": "relay-tls", "secret": {"secretName": "epp-relay"}} in pod["volumes"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((*BASE, "tier=relay", "region=us"), 'region "us" has no relay: set region to one of relays.regions'),
        (("tier=relay", "endpoints.matchLabels.app=vllm"), 'region "" has no relay'),
        ((*BASE, "endpoints.list[0].region=us"), "which has no relay"),
    ],
)
def test_what_cannot_work_is_refused(settings: tuple[str, ...], words: str) -> None:
    assert words in refused(*settings)
