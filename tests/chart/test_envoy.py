"""The chart's Envoys, of one tier and of two, are the renderer's; a real Envoy takes them; a region gets nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.k8s.chart_files import FIRST_TOKEN
from epp.config.load import parse_config
from epp.config.pool import parse_pool
from epp.envoy.render import render, render_relay
from epp.envoy.settings import EnvoySettings, Variant
from tests.kit.certificates import self_signed
from tests.kit.chart import container, example, find, kinds, pods, rendered
from tests.kit.envoy import accepted, require_version

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.chart import Object

CA = "/etc/ssl/certs/ca-certificates.crt"
LIST = ("standalone.enabled=true", "endpoints.from=list")
PORTS = "(?:([0-9.]+|\\[[0-9a-f:]+\\]):(%s))"
REGION = "eu-central"
RELAYED = (
    *LIST, "relays.secretName=tls", "relays.regions.eu=relay.example:8443",
    "endpoints.list[0].address=a.example:443", "endpoints.list[0].region=eu", "endpoints.list[0].tls=true",
)  # fmt: skip


def relay(region: str) -> list[Object]:
    return example("multi-region", "--set", f"tier=relay,region={region}")


def envoy(objects: list[Object], name: str = "envoy") -> Any:
    return yaml.safe_load(find(objects, "ConfigMap", f"gorgo-epp-{name}")["data"]["envoy.yaml"])


def wanted(objects: list[Object], **changes: Any) -> EnvoySettings:
    """The renderer's settings for what the picker of these objects is configured with."""
    data = find(objects, "ConfigMap")["data"]
    specs = parse_pool(data["endpoints.yaml"], "test") if "endpoints.yaml" in data else {}
    relays = parse_config(data["epp.yaml"], "test").relays
    settings: dict[str, Any] = {
        "endpoints": tuple(spec.endpoint() for spec in specs.values()),
        "relays": relays if relays.regions else None,
        "listener_host": "0.0.0.0", "first_token_path": FIRST_TOKEN,
        "first_token_port": 0, "max_heap_bytes": 1610612736, "upstream_ca_file": CA,
    }  # fmt: skip
    return EnvoySettings(**{**settings, **changes})


def same(objects: list[Object], **changes: Any) -> bool:
    """Whether the chart's Envoy is the renderer's."""
    made: bool = envoy(objects) == yaml.safe_load(render(wanted(objects, **changes)))
    return made


def test_values_reach_it() -> None:
    objects = rendered(
        "standalone.enabled=true", "endpoints.from=selector", "endpoints.matchLabels.app=x",
        "endpoints.targetPorts={8000,8001}", "maxBodyBytes=50331648", "standalone.maxHeapBytes=3221225472",
        "standalone.listenHost=::",
    )  # fmt: skip
    assert same(
        objects,
        variant=Variant.ORIGINAL_DST,
        destination_patterns=(PORTS[3:-1] % "8000|8001",),
        max_body_bytes=50331648,
        max_heap_bytes=3221225472,
        listener_host="::",
    )


def test_paths_that_the_configuration_opens_are_open_in_envoy() -> None:
    objects = rendered(
        *LIST, "endpoints.list[0].address=10.0.0.1:1", "config.request.open_paths={/metrics,/v.1/}"
    )
    assert same(objects, open_paths=("/metrics", "/v.1/"))


def test_regions_by_name_over_tls() -> None:
    objects = example("one-tier")
    assert [endpoint.tls for endpoint in wanted(objects).endpoints] == [True] * 4
    assert same(objects)


LISTS = [
    ("address=10.0.0.1:8000", "address=[fd00::1]:8000", "draining=true"),
    ("address=a.example:80", "address=10.0.0.2:443", "tls=true", "server_name=b.example"),
]


@pytest.mark.parametrize("entries", LISTS)
def test_addresses_names_and_tls_in_any_mixture(entries: tuple[str, ...]) -> None:
    position, settings = -1, []
    for entry in entries:
        position += entry.startswith("address=")
        settings.append(f"endpoints.list[{position}].{entry}")
    assert same(rendered(*LIST, *settings))


def test_a_relay_is_the_renderers() -> None:
    both = example("multi-region")
    assert same(both)
    assert envoy(relay(REGION), "relay") == yaml.safe_load(render_relay(wanted(both), REGION))


@pytest.mark.parametrize("name", ["standalone", "service", "one-tier", "multi-region", REGION])
async def test_a_real_envoy_takes_it(name: str, tmp_path: Path) -> None:
    await require_version(1, 38, "the chart's configuration")
    found = envoy(relay(name), "relay") if name == REGION else envoy(example(name))
    self_signed(tmp_path / "tls.crt", tmp_path / "tls.key", "any")
    (tmp_path / "ca.crt").write_text((tmp_path / "tls.crt").read_text())
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(found).replace("/etc/epp-relay", str(tmp_path)))
    await accepted(path)


def test_picker_and_envoy_meet_in_the_pod() -> None:
    objects = example("standalone")
    config = yaml.safe_load(find(objects, "ConfigMap")["data"]["epp.yaml"])
    assert config["listen"]["first_token"] == f"unix:{FIRST_TOKEN}"
    assert config["listen"]["grpc"] == "127.0.0.1:9002"
    for name in ("picker", "envoy"):
        assert {"name": "run", "mountPath": "/run/epp"} in container(objects, name)["volumeMounts"]


SHARED = ("standalone.enabled=true", "nats.server.enabled=true", "prefixSecret=s")
PODS = ("endpoints.from=selector", "endpoints.matchLabels.app=x")


async def test_pickers_that_share_are_the_fallbacks_of_each_others_envoys(tmp_path: Path) -> None:
    objects = rendered(*SHARED, *PODS)
    others = {"fallback_pickers": (("gorgo-epp-pickers", 9002),)}
    patterns = (PORTS[3:-1] % "8000",)
    assert same(objects, variant=Variant.ORIGINAL_DST, destination_patterns=patterns, **others)
    assert same(rendered(*SHARED, *RELAYED), **others)
    listed = rendered(*SHARED, *LIST, "endpoints.list[0].address=a.example:80")
    assert same(listed, **others)
    await require_version(1, 38, "the chart's configuration")
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(envoy(listed)))
    await accepted(path)


def test_pods_reach_each_others_pickers_where_these_share() -> None:
    objects = rendered(*SHARED, *PODS)
    service = find(objects, "Service", "gorgo-epp-pickers")["spec"]
    assert service["clusterIP"] == "None", "its name has the addresses of all pods"
    assert service["selector"] == find(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    assert {"name": service["ports"][0]["targetPort"], "containerPort": 9002} in container(objects, "picker")[
        "ports"
    ]
    assert yaml.safe_load(find(objects, "ConfigMap")["data"]["epp.yaml"])["listen"]["grpc"] == "[::]:9002"
    policy, ports = find(objects, "NetworkPolicy")["spec"], [{"port": 9002, "protocol": "TCP"}]
    pickers = [{"podSelector": policy["podSelector"]}]
    assert {"ports": ports, "from": pickers} in policy["ingress"]
    assert {"ports": ports, "to": pickers} in policy["egress"]


def test_a_region_gets_its_relay_and_nothing_else() -> None:
    objects = relay(REGION)
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
