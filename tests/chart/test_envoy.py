"""The chart's Envoy is the renderer's, and a real Envoy takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.k8s.chart_files import FIRST_TOKEN
from epp.config.pool import parse_pool
from epp.envoy.render import render
from epp.envoy.settings import EnvoySettings, Variant
from tests.kit.chart import container, example, find, refused, rendered
from tests.kit.envoy import accepted, require_version

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.chart import Object

CA = "/etc/ssl/certs/ca-certificates.crt"
LIST = ("standalone.enabled=true", "endpoints.from=list")
PORTS = "(?:([0-9.]+|\\[[0-9a-f:]+\\]):(%s))"


def envoy_of(objects: list[Object]) -> Any:
    return yaml.safe_load(find(objects, "ConfigMap", "gorgo-epp-envoy")["data"]["envoy.yaml"])


def renderer(variant: Variant, **settings: Any) -> Any:
    base: dict[str, Any] = {
        "endpoints": (), "listener_host": "0.0.0.0", "first_token_path": FIRST_TOKEN,
        "first_token_port": 0, "max_heap_bytes": 1610612736, "upstream_ca_file": CA,
    }  # fmt: skip
    return yaml.safe_load(render(EnvoySettings(variant=variant, **{**base, **settings})))


def test_pods_of_a_cluster() -> None:
    wanted = renderer(Variant.ORIGINAL_DST, destination_patterns=(PORTS[3:-1] % "8000",))
    assert envoy_of(example("standalone")) == wanted


def test_values_reach_it() -> None:
    objects = rendered(
        "standalone.enabled=true", "endpoints.from=selector", "endpoints.matchLabels.app=x",
        "endpoints.targetPorts={8000,8001}", "maxBodyBytes=50331648", "standalone.maxHeapBytes=3221225472",
        "standalone.listenHost=::",
    )  # fmt: skip
    wanted = renderer(
        Variant.ORIGINAL_DST,
        destination_patterns=(PORTS[3:-1] % "8000|8001",),
        max_body_bytes=50331648,
        max_heap_bytes=3221225472,
        listener_host="::",
    )
    assert envoy_of(objects) == wanted


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("config.request.max_body_bytes=1000", "say maxBodyBytes"),
        ("config.relays.compression=gzip", "config.relays.compression reaches no Envoy"),
    ],
)
def test_configuration_that_would_reach_the_picker_alone_is_refused(setting: str, words: str) -> None:
    assert words in refused(*LIST, "endpoints.list[0].address=10.0.0.1:8000", setting)


def test_regions_by_name_over_tls() -> None:
    objects = example("one-tier")
    specs = parse_pool(find(objects, "ConfigMap")["data"]["endpoints.yaml"], "test")
    endpoints = tuple(spec.endpoint() for spec in specs.values())
    assert len(endpoints) == 4
    assert all(endpoint.tls for endpoint in endpoints)
    assert envoy_of(objects) == renderer(Variant.STANDALONE, endpoints=endpoints)


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
    objects = rendered(*LIST, *settings)
    specs = parse_pool(find(objects, "ConfigMap")["data"]["endpoints.yaml"], "test")
    endpoints = tuple(spec.endpoint() for spec in specs.values())
    assert envoy_of(objects) == renderer(Variant.STANDALONE, endpoints=endpoints)


@pytest.mark.parametrize("name", ["standalone", "service", "one-tier"])
async def test_a_real_envoy_takes_it(name: str, tmp_path: Path) -> None:
    await require_version(1, 38, "the chart's configuration")
    text = yaml.safe_dump(envoy_of(example(name)))
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    await accepted(path)


def test_picker_and_envoy_meet_in_the_pod() -> None:
    objects = example("standalone")
    config = yaml.safe_load(find(objects, "ConfigMap")["data"]["epp.yaml"])
    assert config["listen"]["first_token"] == f"unix:{FIRST_TOKEN}"
    assert config["listen"]["grpc"] == "127.0.0.1:9002"
    for name in ("picker", "envoy"):
        assert {"name": "run", "mountPath": "/run/epp"} in container(objects, name)["volumeMounts"]
