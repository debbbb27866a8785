"""Regions as peers and their entry as rendered by the command, and what Envoy says to many regions."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from epp.cli import main
from epp.config.federation import MAX_REGIONS, Federation
from epp.config.schema import RegionRule
from epp.envoy.examples import RELAYS
from epp.envoy.render import render
from epp.envoy.settings import EnvoySettings
from epp.errors import ConfigError
from epp.types import Endpoint
from tests.kit.envoy import accepted, require_envoy
from tests.kit.ports import free_ports
from tests.kit.relays import certificates, relays

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
relays:
  regions: {eu: '10.1.0.1:8443', us: '10.2.0.1:8443'}
  connections: 2
  ca_file: /ca
  cert_file: /cert
  key_file: /key
nats: {url: 'nats://127.0.0.1:4222'}
prefix: {secret_file: secret}
federation: {region: eu, key_file: hops}
"""


def rendered(tmp_path: Path, *words: str) -> dict[str, Any]:
    config, out = tmp_path / "epp.yaml", tmp_path / "envoy.yaml"
    config.write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text("endpoints: [{address: '10.0.0.2:8000'}]\n")
    assert main(["envoy", "render", "--config", str(config), "--out", str(out), *words]) == 0
    found: dict[str, Any] = yaml.safe_load(out.read_text())["static_resources"]
    return found


def test_the_command_renders_the_configured_region_or_the_one_named(tmp_path: Path) -> None:
    names = [each["name"] for each in rendered(tmp_path)["listeners"]]
    assert names == ["requests", "peers", "forward-us"]
    names = [each["name"] for each in rendered(tmp_path, "--region", "us")["listeners"]]
    assert names == ["requests", "peers", "forward-eu"]
    words = ["envoy", "render", "--config", str(tmp_path / "epp.yaml")]
    assert main([*words, "--region", "mars"]) == 2
    assert main([*words, "--eds", str(tmp_path / "eds"), "--eds-only"]) == 0
    own, peers = msgspec.json.decode((tmp_path / "eds").read_bytes())["resources"][0]["endpoints"]
    assert (len(own["lb_endpoints"]), peers["priority"]) == (1, 1)
    [forward] = peers["lb_endpoints"]
    assert forward["endpoint"]["address"]["socket_address"]["port_value"] == 9101


def test_an_engine_of_another_region_is_refused() -> None:
    engines = (Endpoint("10.0.0.1:8000", region="ap-northeast"),)
    with pytest.raises(ConfigError, match="ap-northeast"):
        render(EnvoySettings(endpoints=engines, relays=RELAYS, federation=Federation(region="eu-central")))


@pytest.mark.envoy
async def test_envoy_takes_as_many_regions_as_there_may_be(tmp_path: Path) -> None:
    """Its limits on patterns are the reason to ask."""
    require_envoy()
    names = [f"region.{number}" for number in range(MAX_REGIONS)]
    known = relays(certificates(tmp_path), names, connections=1)
    rules = (RegionRule(allow=names[1:], header="X-Tenant", value='"a"\\ {b}', path_prefix="/v1"),)
    config = tmp_path / "envoy.yaml"
    federation = Federation(region=names[7])
    chosen = EnvoySettings(endpoints=(), relays=known, federation=federation, region_rules=rules)
    config.write_text(render(chosen))
    await accepted(config)


def test_the_command_measures_the_way_to_regions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here is nothing but one listener: it comes first, the others as the configuration has them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "epp.yaml").write_text(
            f"relays: {{regions: {{eu: '127.0.0.1:{free_ports(1)}', us: '127.0.0.1:{server.getsockname()[1]}'}},"
            " connections: 1, ca_file: /ca, cert_file: /cert, key_file: /key}\n"
            "federation: {coordinates: {eu: [50.1, 8.7]}}\n"
        )
        words = [
            "envoy",
            "render",
            "--config",
            str(tmp_path / "epp.yaml"),
            "--entry",
            "--eds",
            str(tmp_path / "eds"),
        ]
        assert main([*words, "--eds-only"]) == 0
    assert "us, eu" in capsys.readouterr().err
    found = msgspec.json.decode((tmp_path / "eds").read_bytes())["resources"][0]["endpoints"]
    ports = [
        group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] for group in found
    ]
    assert ([group["priority"] for group in found], ports) == ([0, 1], [9101, 9100])
